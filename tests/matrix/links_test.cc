// What the planner charges each link, beside what the ranks' transports are given for it. Prints a table, and leaves it
// in $TACC_TABLES.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "graph/ir/collective_limits.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/simulate/cluster_times.h"
#include "gtest/gtest.h"
#include "tests/matrix/job.h"
#include "tests/matrix/table.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::matrix {
namespace {

using graph::CollectiveKind;
using graph::LinkBytes;
using worker::CollectiveCall;
using worker::Flat;

using Memory = worker::InProcessRanks::Memory;

// A CPU in a machine with `ranks_a_machine`.
graph::Machine Cpu(int ranks_a_machine) {
  graph::DeviceProfile device;
  device.kind = "cpu";
  device.matmul_flops_per_second[graph::DType::kF32] = 1e11;
  device.memory_bytes_per_second = 1e10;
  device.link_bytes_per_second = 1e9;
  device.link_latency_seconds = 1e-5;
  device.devices_per_machine = ranks_a_machine;
  return graph::MachineOf(device);
}

// The same, but with a library for collectives.
graph::Machine Gpu(int ranks_a_machine, bool sums_in_order = false) {
  graph::Machine gpu = Cpu(ranks_a_machine);
  gpu.shares_cores = false;
  gpu.sums_in_order = sums_in_order;
  return gpu;
}

LinkBytes& operator+=(LinkBytes& sum, const LinkBytes& more) {
  sum.intra += more.intra;
  sum.inter += more.inter;
  return sum;
}

void ExpectNear(const LinkBytes& counted, const LinkBytes& charged) {
  EXPECT_NEAR(counted.intra, charged.intra, 0.05 * charged.intra);
  EXPECT_NEAR(counted.inter, charged.inter, 0.05 * charged.inter);
}

// Of all ranks of one group of `machines` times `mates`, when they run `bytes` of a kind.
LinkBytes Counted(CollectiveKind kind, int machines, int mates, int64_t bytes) {
  const int n = machines * mates;
  auto transports = worker::MakeInProcessTransports(n, absl::Seconds(60), mates);
  std::vector<LinkBytes> sent(n);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      worker::CountingTransport transport(std::move(transports[rank]));
      worker::Collectives collectives(rank, n);
      collectives.Connect(&transport);
      const int64_t part = bytes / n;
      std::vector<char> whole(bytes), other(bytes);
      CollectiveCall call;
      call.me = rank;
      std::vector<worker::Region> parts, other_parts;
      for (int i = 0; i < n; ++i) {
        call.members.push_back(i);
        parts.push_back(Flat(whole.data() + i * part, part));
        other_parts.push_back(Flat(other.data() + i * part, part));
      }
      switch (kind) {
        case CollectiveKind::kAllGather:
          call.kind = CollectiveCall::Kind::kAllGather;
          call.send = {other_parts[rank]};
          call.receive = parts;
          break;
        case CollectiveKind::kReduceScatter:
          call.kind = CollectiveCall::Kind::kReduceScatter;
          call.send = parts;
          call.receive = {other_parts[rank]};
          break;
        case CollectiveKind::kAllReduce:
        case CollectiveKind::kWholeAllReduce:
          call.kind = CollectiveCall::Kind::kAllReduce;
          call.send = call.receive = {Flat(whole.data(), bytes)};
          break;
        case CollectiveKind::kAllToAll:
          call.kind = CollectiveCall::Kind::kExchange;
          call.send = parts;
          call.receive = other_parts;
          break;
        case CollectiveKind::kRotate:
        case CollectiveKind::kSend:
          call.kind = CollectiveCall::Kind::kExchange;
          call.send.resize(n);
          call.receive.resize(n);
          call.send[(rank + 1) % n] = Flat(whole.data(), bytes);
          call.receive[(rank + n - 1) % n] = Flat(other.data(), bytes);
          break;
      }
      ASSERT_EQ(collectives.Run(call), absl::OkStatus());
      sent[rank] = {static_cast<double>(transport.sent_bytes() - transport.crossed_bytes()),
                    static_cast<double>(transport.crossed_bytes())};
    });
  }
  for (std::thread& thread : threads) thread.join();
  LinkBytes all;
  for (const LinkBytes& of_rank : sent) all += of_rank;
  return all;
}

struct Kind {
  CollectiveKind kind;
  const char* name;
  int64_t bytes;  // of f32
};
// Small sums: the largest that all ranks send whole, and the next one.
std::vector<Kind> KindsOf(int machines, int mates) {
  const int64_t small = graph::WholeAllReduceElements(machines * mates, machines);
  return {{CollectiveKind::kAllGather, "all_gather", 1 << 20},
          {CollectiveKind::kReduceScatter, "reduce_scatter", 1 << 20},
          {CollectiveKind::kAllReduce, "all_reduce", 1 << 20},
          {CollectiveKind::kWholeAllReduce, "all_reduce, whole", small * 4},
          {CollectiveKind::kAllReduce, "all_reduce, small", (small + 1) * 4},
          {CollectiveKind::kAllToAll, "all_to_all", 1 << 20},
          {CollectiveKind::kRotate, "rotate_blocks", 1 << 20}};
}

TEST(CollectiveLinksTest, OfEachKind) {
  std::string table = absl::StrFormat("%-17s %8s %8s  %24s  %24s  %9s\n", "collective", "machines", "bytes",
                                      "inside: charged, sent", "between: charged, sent", "of a ring");
  for (const auto& [machines, mates] : {std::pair{1, 8}, {2, 2}, {4, 1}, {2, 8}, {4, 8}, {16, 8}}) {
    for (const Kind& kind : KindsOf(machines, mates)) {
      SCOPED_TRACE(absl::StrCat(kind.name, " on ", machines, " machines of ", mates));
      const int n = machines * mates;
      const graph::GroupShape group{n, mates};
      const auto bytes = static_cast<double>(kind.bytes);
      LinkBytes charged = BytesOverLinks(Cpu(mates), kind.kind, bytes, group);
      charged.intra *= n;
      charged.inter *= n;
      const LinkBytes counted = Counted(kind.kind, machines, mates, kind.bytes);
      ExpectNear(counted, charged);
      const bool is_whole = kind.kind == CollectiveKind::kWholeAllReduce;
      const double ring =
          n * BytesOverLinks(Gpu(mates), is_whole ? CollectiveKind::kAllReduce : kind.kind, bytes, group).inter;
      if (is_whole) {
        // More than a ring sends, but little.
        EXPECT_LE(counted.inter / machines, graph::kWholeBytesOutOfMachine);
      } else {
        EXPECT_LE(counted.inter, 1.05 * ring);
      }
      absl::StrAppendFormat(&table, "%-17s %4d x %d %8d  %11.0f %12.0f  %11.0f %12.0f  %9s\n", kind.name, machines,
                            mates, kind.bytes, charged.intra, counted.intra, charged.inter, counted.inter,
                            ring > 0 ? absl::StrFormat("%.3f", counted.inter / ring) : "");
    }
  }
  PrintTable("links_kinds", table);
}

class LinksTest : public testing::TestWithParam<const char*> {};

// Bytes from machine to machine, by [from][to]; on the diagonal those inside.
using Links = std::vector<std::vector<double>>;

// Within 5 %, or what a ring's rounding makes of scalars, which it cannot cut.
void ExpectNear(const Links& counted, const Links& charged) {
  constexpr double kOfScalars = 512;  // bytes
  for (size_t a = 0; a < charged.size(); ++a) {
    for (size_t b = 0; b < charged.size(); ++b)
      EXPECT_NEAR(counted[a][b], charged[a][b], std::max(kOfScalars, 0.05 * charged[a][b]))
          << "from machine " << a << " to " << b;
  }
}

// Of all inside machines, and of all between them.
LinkBytes TotalOf(const Links& links) {
  LinkBytes total;
  for (size_t a = 0; a < links.size(); ++a) {
    for (size_t b = 0; b < links.size(); ++b) (a == b ? total.intra : total.inter) += links[a][b];
  }
  return total;
}

// The groups of a stage's ranks that run the node.
std::vector<std::vector<int64_t>> GroupsOf(const graph::Node& node, const graph::Mesh& mesh, int64_t stage) {
  const int stage_axis = mesh.Find(graph::kStageAxis);
  std::set<int> varies;
  for (const std::string& name : graph::GetAttr<std::vector<std::string>>(node.attrs, "over"))
    varies.insert(mesh.Find(name));
  const auto among = graph::GetAttr<std::vector<int64_t>>(node.attrs, "stages");
  std::map<std::vector<int64_t>, std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    std::vector<int64_t> at = mesh.Coordinates(rank);
    if (stage_axis >= 0) {
      const bool takes_part = among.empty() ? at[stage_axis] == stage
                                            : std::find(among.begin(), among.end(), at[stage_axis]) != among.end();
      if (!takes_part) continue;
      at[stage_axis] = 0;
    }
    for (int axis : varies) at[axis] = 0;
    groups[at].push_back(rank);
  }
  std::vector<std::vector<int64_t>> all;
  for (auto& [at, ranks] : groups) all.push_back(std::move(ranks));
  return all;
}

// What the nodes of a step are charged, on each link: bytes of each rank on average, as they go in one of two ways:
// from each member of its group to the next, or from each to all, inside and between machines apart.
class LinksOfStep {
 public:
  LinksOfStep(const graph::Cluster& cluster, const std::vector<const graph::Program*>& stages,
              const graph::OpTable& ops)
      : cluster_(cluster),
        machine_(cluster.machine),
        stages_(stages),
        times_(TimesOn(cluster, stages, ops)),
        links_(cluster.num_nodes, std::vector<double>(cluster.num_nodes)) {
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      for (const graph::Call& call : stages[stage]->step) {
        const graph::Graph& graph = *stages[stage]->FindGraph(call.graph);
        for (const graph::Node& node : graph.nodes) Add(static_cast<int64_t>(stage), graph, node);
      }
    }
  }

  const Links& links() const { return links_; }

 private:
  void Add(int64_t stage, const graph::Graph& graph, const graph::Node& node) {
    const graph::Mesh& mesh = stages_[stage]->mesh;
    const LinkBytes sent = times_(static_cast<int>(stage), graph, node).sent;
    if (node.op == graph::Op::kSend) {
      const int axis = mesh.Find(graph::kStageAxis);
      const int64_t ahead = (graph::GetAttr<int64_t>(node.attrs, "to") - stage) * mesh.Stride(axis);
      for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        if (mesh.Coordinates(rank)[axis] == stage) At(rank, rank + ahead) += sent.intra + sent.inter;
      }
      return;
    }
    const bool gathers = node.op == graph::Op::kAllGather, scatters = node.op == graph::Op::kReduceScatter;
    const bool reduces = node.op == graph::Op::kAllReduce || node.op == graph::Op::kStageSum;
    if (!gathers && !scatters && !reduces && node.op != graph::Op::kAllToAll && node.op != graph::Op::kRotateBlocks)
      return;
    const graph::GroupShape shape = GroupOf(node, mesh, machine_.devices_per_node);
    if (shape.size < 2) return;
    LinkBytes around, to_all = sent;
    if (node.op == graph::Op::kRotateBlocks) {
      around = sent;
      to_all = {};
    } else if (!machine_.shares_cores && node.op != graph::Op::kAllToAll) {
      const graph::TensorType &in = graph.type(node.operands[0]), &out = graph.type(node.results[0]);
      const bool in_order = !gathers && (machine_.sums_in_order || in.dtype != out.dtype);
      const graph::CollectiveRanks ranks{false, machine_.sums_in_order, machine_.devices_per_node};
      // Of the library's calls, and of its check of its callers, one for each of the rows in which parts lie.
      double calls = 1;
      if (in_order) {
        // A large sum's pieces are gathered by the library.
        calls = reduces && !IsWholeAllReduce(graph, node, shape, ranks) ? 1 : 0;
        around = BytesOverLinks(machine_, CollectiveKind::kAllGather, calls * static_cast<double>(out.bytes()), shape);
        to_all = {sent.intra - around.intra, sent.inter - around.inter};
      } else {
        around = sent;
        to_all = {};
        if (!reduces && PackedBytes(graph, node, mesh, ranks) == 0) {
          for (int64_t i = 0; i < graph::GetAttr<int64_t>(node.attrs, "dim"); ++i)
            calls *= static_cast<double>(in.dims[i]);
        }
      }
      const LinkBytes header =
          BytesOverLinks(machine_, CollectiveKind::kRotate, worker::SimulatedCommunication::kHeaderBytes, shape);
      around += {calls * header.intra, calls * header.inter};
    }
    const bool sums_stages = !graph::GetAttr<std::vector<int64_t>>(node.attrs, "stages").empty();
    for (const std::vector<int64_t>& ranks : GroupsOf(node, mesh, stage)) {
      // Each stage of a sum over stages has the node.
      if (sums_stages && stage != graph::GetAttr<std::vector<int64_t>>(node.attrs, "stages")[0]) break;
      AddGroup(ranks, around, to_all);
    }
  }

  void AddGroup(const std::vector<int64_t>& ranks, const LinkBytes& around, const LinkBytes& to_all) {
    const size_t n = ranks.size();
    int num_inside = 0, num_between = 0;
    for (int64_t a : ranks) {
      for (int64_t b : ranks) {
        if (a != b) ++(MachineOf(a) == MachineOf(b) ? num_inside : num_between);
      }
    }
    const double size = static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
      At(ranks[i], ranks[(i + 1) % n]) += around.intra + around.inter;
      for (size_t j = 0; j < n; ++j) {
        if (i == j) continue;
        const bool is_inside = MachineOf(ranks[i]) == MachineOf(ranks[j]);
        At(ranks[i], ranks[j]) += size * (is_inside ? to_all.intra / num_inside : to_all.inter / num_between);
      }
    }
  }

  int64_t MachineOf(int64_t rank) const { return rank / machine_.devices_per_node; }
  double& At(int64_t from, int64_t to) { return links_[MachineOf(from)][MachineOf(to)]; }

  const graph::Cluster& cluster_;
  const graph::Machine& machine_;
  const std::vector<const graph::Program*>& stages_;
  const graph::NodeTimes times_;
  Links links_;
};

// The same as the ranks' transports were given it.
Links CountedLinks(const std::vector<worker::InProcessRanks::Sent>& sent, const graph::Cluster& cluster) {
  Links links(cluster.num_nodes, std::vector<double>(cluster.num_nodes));
  const auto per_node = static_cast<size_t>(cluster.machine.devices_per_node);
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    for (size_t peer = 0; peer < sent.size(); ++peer)
      links[rank / per_node][peer / per_node] += static_cast<double>(sent[rank].to[peer]);
  }
  return links;
}

// Gathers of weights and sums of gradients around which something is packed: "op of type over dims".
std::set<std::string> PackedOverFsdp(const std::vector<const graph::Program*>& stages) {
  std::set<std::string> packed;
  for (const graph::Program* program : stages) {
    for (const graph::Graph& graph : program->graphs) {
      for (const graph::Node& node : graph.nodes) {
        if (graph::GetAttr<std::vector<std::string>>(node.attrs, "over") != std::vector<std::string>{"fsdp"}) continue;
        if (PackedBytes(graph, node, program->mesh) == 0) continue;
        const graph::Value& from = graph.values[node.operands[0]];
        packed.insert(absl::StrCat(node.op.name(), " of ", from.type.ToString(), ", ",
                                   from.placement->sharding.ToString(program->mesh), " @", node.module));
      }
    }
  }
  return packed;
}

// What a rank's step packs on that machine, as planned.
int64_t Packed(const std::vector<graph::Program>& stages, const graph::Machine& machine, const graph::OpTable& ops,
               int64_t rank) {
  graph::DeviceProfile device;
  device.devices_per_machine = machine.devices_per_node;
  device.sums_in_order = machine.sums_in_order;
  return StepCostOf(worker::ProgramOf(stages, rank), ops, device, rank).packed_bytes;
}

// Whole steps, with every collective and message of each mesh, on machines of two ranks and of four: CPUs, and GPUs
// with their library's collectives.
TEST_P(LinksTest, OfEachLayout) {
  const std::string family = GetParam();
  const bool is_whole_matrix = family == "llama" || family == "mixtral";
  std::vector<Layout> layouts = EachAlone(4);
  const std::vector<Layout> triples = Triples(family == "mixtral" ? Experts::kPresent : Experts::kNone);
  if (is_whole_matrix) {
    for (const std::vector<Layout>& more : {Pairs(), triples}) layouts.insert(layouts.end(), more.begin(), more.end());
  } else {
    layouts.push_back(triples[0]);
  }
  const graph::OpTable ops;
  std::string table = absl::StrFormat("%-8s %-32s %10s %-13s  %24s  %24s  %8s\n", "model", "layout", "machines", "",
                                      "inside: charged, sent", "between: charged, sent", "packed");
  int num_crossing = 0;
  for (const Layout& layout : layouts) {
    if (layout.ep > 1 && family != "mixtral") continue;
    const Job job = JobFor(family, layout);
    const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops);
    ASSERT_TRUE(compiled.ok()) << layout.Name() << ": " << compiled.status();
    std::vector<const graph::Program*> stages;
    for (const graph::Program& stage : compiled->stages) stages.push_back(&stage);
    EXPECT_THAT(PackedOverFsdp(stages), testing::IsEmpty()) << layout.Name();
    for (const auto& [machine, place] : {std::pair{Cpu(2), Place{Memory::kPlanned, 2}},
                                         {Cpu(4), {Memory::kPlanned, 4}},
                                         {Gpu(2), {Memory::kSimulatedGpu, 2}},
                                         {Gpu(4), {Memory::kSimulatedGpu, 4}},
                                         {Gpu(2, /*sums_in_order=*/true), {Memory::kSimulatedGpuInOrder, 2}}}) {
      if (place.ranks_a_machine >= layout.ranks()) continue;
      if (!is_whole_matrix && place.ranks_a_machine > 2) continue;
      const bool is_gpu = place.memory != Memory::kPlanned;
      const char* what = !is_gpu ? "CPUs" : machine.sums_in_order ? "GPUs in order" : "GPUs";
      SCOPED_TRACE(absl::StrCat(layout.Name(), ", ", place.ranks_a_machine, " ", what, " a machine"));
      const auto cluster = graph::MakeCluster(machine, layout.ranks());
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      const Links links = LinksOfStep(*cluster, stages, ops).links();
      const auto run = Train(job, compiled->stages, ops, 0, 1, "", "", place);
      ASSERT_TRUE(run.ok()) << run.status();
      const Links counted_links = CountedLinks(run->sent, *cluster);
      ExpectNear(counted_links, links);
      const LinkBytes wanted = TotalOf(links), counted = TotalOf(counted_links);
      num_crossing += counted.inter > 0 ? 1 : 0;
      int64_t packed = 0;
      for (size_t rank = 0; rank < run->packed_bytes.size(); ++rank) {
        EXPECT_EQ(run->packed_bytes[rank], Packed(compiled->stages, machine, ops, static_cast<int64_t>(rank)));
        packed = std::max(packed, run->packed_bytes[rank]);
      }
      absl::StrAppendFormat(&table, "%-8s %-32s %6d x %d %-13s  %11.0f %12.0f  %11.0f %12.0f  %8d\n", family,
                            layout.Name(), layout.ranks() / place.ranks_a_machine, place.ranks_a_machine, what,
                            wanted.intra, counted.intra, wanted.inter, counted.inter, packed);
    }
  }
  EXPECT_GT(num_crossing, is_whole_matrix ? 40 : 15);
  PrintTable(absl::StrCat("links_", family), table);
}

// Three ranks with a vocabulary and a width that they do not divide: every cut is padded, and the last rank has less.
// The library's collectives pack all of it; sums in order take it as it lies, where it is one row: tp leaves several.
TEST(PaddedLinksTest, PackWhatIsPlanned) {
  const graph::OpTable ops;
  int num_packed = 0, num_short = 0;
  for (const bool half : {false, true}) {
    for (Layout layout : {Layout{.fsdp = 3}, Layout{.fsdp = 3, .zero_stage = 2}, Layout{.fsdp = 3, .zero_stage = 1},
                          Layout{.fsdp = 3, .tp = 2}, Layout{.fsdp = 3, .tp = 2, .zero_stage = 2},
                          Layout{.fsdp = 3, .cp = 2}, Layout{.dp = 3}, Layout{.dp = 3, .fsdp = 2}}) {
      Job job = JobFor("llama", layout);
      job.vocab = 1031;
      job.global_batch = 12;
      job.half = half;
      const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops);
      ASSERT_TRUE(compiled.ok()) << layout.Name() << ": " << compiled.status();
      for (const auto& [machine, memory] :
           {std::pair{Gpu(3), Memory::kSimulatedGpu}, {Gpu(3, /*sums_in_order=*/true), Memory::kSimulatedGpuInOrder}}) {
        SCOPED_TRACE(absl::StrCat(layout.Name(), half ? " in bf16" : "", machine.sums_in_order ? ", in order" : ""));
        const auto run = Train(job, compiled->stages, ops, 0, 1, "", "", {memory, 3});
        ASSERT_TRUE(run.ok()) << run.status();
        for (size_t rank = 0; rank < run->packed_bytes.size(); ++rank) {
          EXPECT_EQ(run->packed_bytes[rank], Packed(compiled->stages, machine, ops, static_cast<int64_t>(rank)))
              << "rank " << rank;
          num_packed += run->packed_bytes[rank] > 0 ? 1 : 0;
          num_short += run->packed_bytes[rank] < run->packed_bytes[0] ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(num_packed, 20);
  EXPECT_GT(num_short, 5);
}

INSTANTIATE_TEST_SUITE_P(Models, LinksTest, testing::Values("llama", "qwen3", "bloom", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
