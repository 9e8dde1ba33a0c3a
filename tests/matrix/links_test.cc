// What the planner charges each link, beside what the ranks' transports are given for it. Prints a table, and leaves it
// in $TACC_BUILD/matrix.
#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "graph/ir/collective_limits.h"
#include "graph/planner/cluster.h"
#include "graph/planner/simulate/cluster_times.h"
#include "gtest/gtest.h"
#include "tests/matrix/job.h"
#include "tests/matrix/table.h"
#include "worker/rank/collectives.h"
#include "worker/rank/cuda/simulated_communication.h"
#include "worker/rank/in_process_transport.h"

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
constexpr Kind kKinds[] = {
    {CollectiveKind::kAllGather, "all_gather", 1 << 20},
    {CollectiveKind::kReduceScatter, "reduce_scatter", 1 << 20},
    {CollectiveKind::kAllReduce, "all_reduce", 1 << 20},
    {CollectiveKind::kWholeAllReduce, "small all_reduce", graph::WholeAllReduceElements(128) * 4},
    {CollectiveKind::kAllToAll, "all_to_all", 1 << 20},
    {CollectiveKind::kRotate, "rotate_blocks", 1 << 20},
};

TEST(CollectiveLinksTest, OfEachKind) {
  std::string table = absl::StrFormat("%-17s %8s  %24s  %24s  %9s\n", "collective", "machines", "inside: charged, sent",
                                      "between: charged, sent", "of a ring");
  for (const Kind& kind : kKinds) {
    for (const auto& [machines, mates] : {std::pair{1, 8}, {2, 2}, {4, 1}, {2, 8}, {4, 8}, {16, 8}}) {
      SCOPED_TRACE(absl::StrCat(kind.name, " on ", machines, " machines of ", mates));
      const int n = machines * mates;
      const graph::GroupShape group{n, mates};
      const auto bytes = static_cast<double>(kind.bytes);
      LinkBytes charged = BytesOverLinks(Cpu(mates), kind.kind, bytes, group);
      charged.intra *= n;
      charged.inter *= n;
      const LinkBytes counted = Counted(kind.kind, machines, mates, kind.bytes);
      ExpectNear(counted, charged);
      const double ring = n * BytesOverLinks(Gpu(mates), kind.kind, bytes, group).inter;
      if (kind.kind != CollectiveKind::kWholeAllReduce) {
        EXPECT_LE(counted.inter, 1.05 * ring);
      }
      absl::StrAppendFormat(&table, "%-17s %4d x %d  %11.0f %12.0f  %11.0f %12.0f  %9s\n", kind.name, machines, mates,
                            charged.intra, counted.intra, charged.inter, counted.inter,
                            ring > 0 ? absl::StrFormat("%.3f", counted.inter / ring) : "");
    }
  }
  PrintTable("links_kinds", table);
}

class LinksTest : public testing::TestWithParam<const char*> {};

// What the nodes of a step are charged for all ranks.
LinkBytes Charged(const graph::Cluster& cluster, const std::vector<const graph::Program*>& stages, const Layout& layout,
                  const graph::OpTable& ops) {
  const graph::NodeTimes times = TimesOn(cluster, stages, ops);
  const auto ranks = static_cast<double>(layout.ranks_of_stage());
  LinkBytes charged;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    for (const graph::Call& call : stages[stage]->step) {
      const graph::Graph& graph = *stages[stage]->FindGraph(call.graph);
      for (const graph::Node& node : graph.nodes) {
        const LinkBytes sent = times(static_cast<int>(stage), graph, node).sent;
        charged += {ranks * sent.intra, ranks * sent.inter};
      }
    }
  }
  return charged;
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
        packed.insert(absl::StrCat(node.op, " of ", from.type.ToString(), ", ",
                                   from.placement->sharding.ToString(program->mesh), " @", node.module));
      }
    }
  }
  return packed;
}

// What goes around rings beside the collectives themselves: the simulated library's check of its callers, one for each
// of the rows in which parts lie. Of sums in order only the gather of a large one is the library's.
LinkBytes ChargedForHeaders(const graph::Cluster& cluster, const std::vector<const graph::Program*>& stages,
                            const Layout& layout) {
  LinkBytes charged;
  for (const graph::Program* program : stages) {
    for (const graph::Call& call : program->step) {
      const graph::Graph& graph = *program->FindGraph(call.graph);
      for (const graph::Node& node : graph.nodes) {
        const bool cuts = node.op == "all_gather" || node.op == "reduce_scatter";
        if (!cuts && node.op != "all_reduce" && node.op != "stage_sum") continue;
        double calls = 1;
        if (cluster.machine.sums_in_order && node.op != "all_gather") {
          const int64_t n = GroupOf(node, program->mesh, cluster.machine.devices_per_node).size;
          const int64_t elements = graph.type(node.operands[0]).num_elements();
          if (cuts || elements <= graph::WholeAllReduceElementsOnGpus(n)) continue;
        }
        if (cuts && PackedBytes(graph, node, program->mesh) == 0) {
          const std::vector<int64_t>& dims = graph.type(node.operands[0]).dims;
          for (int64_t i = 0; i < graph::GetAttr<int64_t>(node.attrs, "dim"); ++i)
            calls *= static_cast<double>(dims[i]);
        }
        const graph::GroupShape group = GroupOf(node, program->mesh, cluster.machine.devices_per_node);
        const LinkBytes sent = BytesOverLinks(cluster.machine, CollectiveKind::kRotate,
                                              worker::SimulatedCommunication::kHeaderBytes, group);
        calls *= static_cast<double>(layout.ranks_of_stage());
        charged += {calls * sent.intra, calls * sent.inter};
      }
    }
  }
  return charged;
}

// Whole steps, with every collective and message of each mesh, on machines of two ranks and of four: CPUs, and GPUs
// with their library's collectives.
TEST_P(LinksTest, OfEachLayout) {
  const std::string family = GetParam();
  std::vector<Layout> layouts = EachAlone(4);
  for (const std::vector<Layout>& more : {Pairs(), Triples(family == "mixtral" ? Experts::kPresent : Experts::kNone)})
    layouts.insert(layouts.end(), more.begin(), more.end());
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
      const bool is_gpu = place.memory != Memory::kPlanned;
      const char* what = !is_gpu ? "CPUs" : machine.sums_in_order ? "GPUs in order" : "GPUs";
      SCOPED_TRACE(absl::StrCat(layout.Name(), ", ", place.ranks_a_machine, " ", what, " a machine"));
      const auto cluster = graph::MakeCluster(machine, layout.ranks());
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      const LinkBytes charged = Charged(*cluster, stages, layout, ops);
      LinkBytes counted, wanted = charged;
      if (is_gpu) wanted += ChargedForHeaders(*cluster, stages, layout);
      const auto run = Train(job, compiled->stages, ops, 0, 1, "", "", place);
      ASSERT_TRUE(run.ok()) << run.status();
      for (const worker::InProcessRanks::Sent& sent : run->sent)
        counted += {static_cast<double>(sent.bytes - sent.crossed), static_cast<double>(sent.crossed)};
      ExpectNear(counted, wanted);
      num_crossing += counted.inter > 0 ? 1 : 0;
      int64_t packed = 0;
      for (size_t rank = 0; rank < run->packed_bytes.size(); ++rank) {
        const graph::Program& program = worker::ProgramOf(compiled->stages, static_cast<int64_t>(rank));
        graph::DeviceProfile device;
        device.sums_in_order = machine.sums_in_order;
        EXPECT_EQ(run->packed_bytes[rank], EstimateStep(program, ops, device).packed_bytes);
        packed = std::max(packed, run->packed_bytes[rank]);
      }
      absl::StrAppendFormat(&table, "%-8s %-32s %6d x %d %-13s  %11.0f %12.0f  %11.0f %12.0f  %8d\n", family,
                            layout.Name(), layout.ranks() / place.ranks_a_machine, place.ranks_a_machine, what,
                            wanted.intra, counted.intra, wanted.inter, counted.inter, packed);
    }
  }
  EXPECT_GT(num_crossing, 40);
  PrintTable(absl::StrCat("links_", family), table);
}

INSTANTIATE_TEST_SUITE_P(Models, LinksTest, testing::Values("llama", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
