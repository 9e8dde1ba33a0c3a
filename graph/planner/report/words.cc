#include "graph/planner/report/words.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ops/op.h"
#include "graph/ops/torch/aten_call.h"
#include "graph/planner/prediction_range.h"

namespace tacc::graph {
namespace {

// Parts of a step below this are not worth a word.
constexpr double kWorthAWord = 0.005;

std::string Percent(double fraction) {
  if (fraction < 0.00005) return fraction <= 0 ? "0 %" : "less than 0.01 %";
  return absl::StrFormat("%.*f %%", fraction < 0.0005 ? 2 : fraction < 0.0995 ? 1 : 0, 100 * fraction);
}

std::string Plural(int64_t count, const std::string& one) {
  return absl::StrCat(WholeText(count), " ", one, count == 1 ? "" : "s");
}

// Those that a job decides.
std::vector<MemoryKind> KindsOfTheJob(const MemoryUse& memory) {
  return {{"weights", memory.weights_bytes + memory.copies_bytes},
          {"gradients", memory.gradients_bytes},
          {"optimizer", memory.optimizer_bytes},
          {"activations and temporaries", memory.temporaries_bytes + memory.stash_bytes},
          {"kernels' workspace", memory.workspace_bytes}};
}

bool IsLess(const MemoryKind& a, const MemoryKind& b) { return a.bytes < b.bytes; }

std::string CollectiveText(const CommunicationRow& row) {
  return absl::StrCat(row.op, " of ", Name(row.cargo), " over ", row.axes);
}

// What ranks that share a copy of the state do: "share one copy of weights, ...: each keeps 1/16 and gathers ...".
std::string SharingInWords(const Layout& l) {
  const std::string what =
      l.zero_stage == 3   ? l.reduce_each_micro_batch ? "weights, gradients and optimizer" : "weights and optimizer"
      : l.zero_stage == 2 ? "gradients and optimizer (ZeRO-2)"
                          : "the optimizer (ZeRO-1)";
  return absl::StrCat(
      "share one copy of ", what, ": each keeps 1/", l.shards(),
      l.zero_stage == 3 ? " and gathers a layer's weights just before it computes the layer"
                        : " and gathers the new weights after each update",
      l.reduce_each_micro_batch ? "" : ", sums whole gradients over the micro-batches and reduces them once a step");
}

// What a pipeline of `size` stages does.
std::string StagesInWords(const Plan& plan, int64_t size, const std::string& device) {
  std::string text = absl::StrCat("the layers are cut into ", size,
                                  " stages; micro-batches go from stage to stage, forward and then back");
  if (plan.schedule == PipelineSchedule::kInterleaved)
    absl::StrAppend(&text, ", ", plan.num_chunks, " times: each ", device, " has ", plan.num_chunks,
                    " parts of the model, so that it waits less");
  if (plan.schedule == PipelineSchedule::kZeroBubble)
    absl::StrAppend(&text, "; weights' gradients are computed when a stage would wait");
  return text;
}

// " (inside a node)": where the groups of an axis lie; "" where there is one node.
std::string PlaceInWords(const Finalist& finalist, int axis) {
  if (finalist.cluster.machine.shares_cores || finalist.cluster.num_nodes <= 1) return "";
  const GroupShape group = ShapeOf(finalist.candidate.plan.mesh, {axis}, finalist.cluster.machine.devices_per_node);
  if (group.num_nodes() == 1) return " (inside a node)";
  if (group.in_node == 1) return absl::StrCat(" (across ", WholeText(group.num_nodes()), " nodes)");
  return absl::StrCat(" (", group.in_node, " in each of ", WholeText(group.num_nodes()), " nodes)");
}

// The paragraphs of InWords, in its order.

std::string WorkInWords(const Finalist& finalist) {
  const Candidate& c = finalist.candidate;
  const Plan& plan = c.plan;
  return absl::StrCat(
      "The job trains ", CountText(static_cast<double>(c.num_trained_parameters)),
      c.num_trained_parameters < c.num_parameters
          ? absl::StrCat(" of ", CountText(static_cast<double>(c.num_parameters)))
          : std::string(),
      " parameters in ", Name(plan.compute_dtype), " on ", ClusterText(finalist.cluster), ". A step takes in ",
      Plural(plan.global_batch(), "sample"), " of ", WholeText(plan.seq_len),
      " tokens: ", Plural(plan.micro_batch, "sample"), " on each ", DeviceWord(finalist.cluster), " at a time",
      plan.accumulation > 1 ? absl::StrCat(", ", WholeText(plan.accumulation), " times before the weights change")
                            : std::string(),
      ".");
}

std::string SpeedInWords(const Finalist& finalist, int64_t max_steps) {
  const Candidate& c = finalist.candidate;
  const Plan& plan = c.plan;
  const Machine& machine = finalist.cluster.machine;
  const double seconds = finalist.simulation.step_seconds;
  const double tokens = static_cast<double>(plan.global_batch() * plan.seq_len);
  const double ranks = static_cast<double>(plan.num_ranks());
  const double peak = machine.CountedPeak(plan.compute_dtype);
  const PredictionRange range = StepRange(machine);
  std::string text =
      absl::StrCat("A step takes ", SecondsText(seconds), " (", StepRangeText(machine, seconds),
                   ") by simulation: ", CountText(tokens / seconds), " tokens a second (",
                   RangeText(CountText(tokens / seconds / range.high), CountText(tokens / seconds / range.low)), "), ",
                   CountText(tokens / seconds / ranks), " on each ", DeviceWord(finalist.cluster));
  if (peak > 0) {
    const double mfu = c.model_flops / (seconds * peak * ranks);
    absl::StrAppend(&text, ", ", Percent(mfu), " (", RangeText(Percent(mfu / range.high), Percent(mfu / range.low)),
                    ") of what the hardware could compute at its peak (MFU)");
  }
  absl::StrAppend(&text, ". ", WholeText(max_steps), max_steps == 1 ? " step is " : " steps are ",
                  CountText(tokens * static_cast<double>(max_steps)), " tokens and take ",
                  DurationText(seconds * static_cast<double>(max_steps)), ". ", WhatRangesHold(machine));
  return text;
}

// "" on one rank.
std::string LayoutInWords(const Finalist& finalist) {
  const std::vector<Mesh::Axis>& axes = finalist.candidate.plan.mesh.axes;
  std::vector<std::string> words;
  for (size_t axis = 0; axis < axes.size(); ++axis) {
    if (axes[axis].size > 1) words.push_back(AxisInWords(finalist, static_cast<int>(axis)));
  }
  return absl::StrJoin(words, " ");
}

// Those that are worth a word, the largest first, and the sum of the rest as "other".
std::vector<MemoryKind> LargestFirst(std::vector<MemoryKind> kinds, int64_t total_bytes) {
  const auto small = std::stable_partition(kinds.begin(), kinds.end(), [&](const MemoryKind& kind) {
    return static_cast<double>(kind.bytes) > kWorthAWord * static_cast<double>(total_bytes);
  });
  std::stable_sort(kinds.begin(), small, [](const MemoryKind& a, const MemoryKind& b) { return IsLess(b, a); });
  MemoryKind other = {"other", 0};
  for (auto kind = small; kind != kinds.end(); ++kind) other.bytes += kind->bytes;
  kinds.erase(small, kinds.end());
  if (other.bytes > 0) kinds.push_back(other);
  return kinds;
}

std::string MemoryInWords(const Finalist& finalist) {
  const Candidate& c = finalist.candidate;
  const Plan& plan = c.plan;
  std::string text =
      absl::StrCat("Each ", DeviceWord(finalist.cluster), " needs ", BytesText(static_cast<double>(plan.total_bytes)));
  if (finalist.cluster.machine.memory_bytes > 0)
    absl::StrAppend(&text, " of its ", BytesText(finalist.cluster.machine.memory_bytes));
  absl::StrAppend(&text, ": ", KindsText(LargestFirst(MemoryKinds(c), plan.total_bytes), plan.total_bytes), ".");
  if (plan.keeps_copies != 0) {
    absl::StrAppend(&text, " Of the weights ", BytesText(static_cast<double>(c.memory.copies_bytes)), " are copies in ",
                    Name(plan.compute_dtype), ", written by the update: that nothing is cast where it is used saves ",
                    SecondsText(c.copies_save_seconds), " a step.");
  }
  if (c.narrow_residual_saves_seconds > 0) {
    absl::StrAppend(&text, " For the backward the residual stream is kept in bf16 (compute.residual_dtype: auto): ",
                    std::isinf(c.narrow_residual_saves_seconds)
                        ? "nothing fits without that."
                        : absl::StrCat("the best layout without that takes ",
                                       SecondsText(c.narrow_residual_saves_seconds), " more a step."));
  }
  if (plan.recompute_units > 0)
    absl::StrAppend(&text, " To save memory, the backward computes the activations of ",
                    Plural(plan.recompute_units, "layer"), " again (memory.gc).");
  return text;
}

std::string TimeInWords(const Finalist& finalist) {
  const int stage = finalist.slowest_stage();
  const double seconds = finalist.simulation.step_seconds;
  const StageTimes& times = finalist.simulation.stages[stage];
  const std::vector<double> percents =
      RoundedPercents({times.compute_seconds / seconds, times.exposed_seconds / seconds, times.idle_seconds / seconds});
  std::string text =
      absl::StrCat("Of the step a ", DeviceWord(finalist.cluster), " computes for ", PercentText(percents[0]));
  if (percents[1] > 0) {
    absl::StrAppend(&text, ", waits for communication that nothing hides for ", PercentText(percents[1]));
    std::vector<CommunicationRow> rows = CommunicationOf(finalist, stage);
    const auto most =
        std::max_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.exposed < b.exposed; });
    if (most != rows.end()) absl::StrAppend(&text, " (most of it ", CollectiveText(*most), ")");
  }
  if (percents[2] > 0)
    absl::StrAppend(&text, ", and has nothing to do for ", PercentText(percents[2]),
                    " while the pipeline fills and drains");
  if (const double hidden = times.communication_seconds - times.exposed_seconds; hidden > kWorthAWord * seconds)
    absl::StrAppend(
        &text, "; ", SecondsText(hidden), " of communication ",
        finalist.cluster.machine.shares_cores ? "run beside computation and slow it" : "hide behind computation");
  return absl::StrCat(text, ".");
}

// Of the nodes that are operators of LibTorch: which they are, and their parts of the time and of the memory. Empty
// where there are none.
std::string LibTorchInWords(const Finalist& finalist) {
  const std::vector<LibTorchRow> rows = LibTorchOf(finalist, finalist.slowest_stage(), OpTable());
  if (rows.empty()) return "";
  std::vector<std::string> names;
  double share = 0;
  int64_t results = 0, scratch = 0;
  for (const LibTorchRow& row : rows) {
    names.push_back(absl::StrCat(row.schema, row.count == 1 ? "" : absl::StrCat(" (", row.count, " times)"), " ",
                                 Percent(row.share_of_step), " and ",
                                 BytesText(static_cast<double>(row.result_bytes))));
    share += row.share_of_step;
    results += row.result_bytes;
    scratch = std::max(scratch, row.scratch_bytes);
  }
  return absl::StrCat(
      "LibTorch computes what the graph has no op for (aten), with these parts of the step and results: ",
      absl::StrJoin(names, ", "), ". Together that is about ", Percent(share), " of the step, ",
      BytesText(static_cast<double>(results)), " of results and ", BytesText(static_cast<double>(scratch)),
      " of scratch memory, which is an estimate. Each rank computes them whole, but for rows of a "
      "sort or a running sum.");
}

// The libraries without which no rank can run the program: files where the model was exported, with their operators.
// Empty where there are none.
std::string LibrariesInWords(const Finalist& finalist) {
  std::map<std::string, std::set<std::string>> operators;
  for (const Program& stage : finalist.stages) {
    for (const Graph& graph : stage.graphs) {
      for (const Node& node : graph.nodes) {
        if (node.op != "aten" && node.op != "aten_vjp") continue;
        const std::string schema = GetAttr<std::string>(node.attrs, "schema");
        const std::string library = GetAttr<std::string>(node.attrs, "library");
        // LibTorch has some of other names, whose nodes have neither.
        const bool is_of_libtorch = library.empty() && GetAttr<std::string>(node.attrs, "source").empty();
        if (!IsOfLibTorch(schema) && !is_of_libtorch) operators[library].insert(schema);
      }
    }
  }
  std::vector<std::string> found;
  for (const auto& [library, schemas] : operators) {
    found.push_back(
        absl::StrCat(absl::StrJoin(schemas, ", "), library.empty() ? "" : absl::StrCat(" (", library, ")")));
  }
  if (found.empty()) return "";
  return absl::StrCat("Of other libraries than LibTorch are ", absl::StrJoin(found, ", "),
                      ": each worker needs --op-library FILE for them, the path of that library on its machine.");
}

}  // namespace

std::vector<MemoryKind> MemoryKinds(const Candidate& candidate) {
  const MemoryUse& memory = candidate.memory;
  std::vector<MemoryKind> kinds = KindsOfTheJob(memory);
  const int64_t planned = memory.arena_bytes + memory.workspace_bytes;
  int64_t named = 0;
  for (const MemoryKind& kind : kinds) named += kind.bytes;
  // Of the arena: what rounds places up, and a few counters.
  kinds.push_back({"alignment", std::max<int64_t>(0, planned - named)});
  kinds.push_back({"libraries and buffers", candidate.plan.total_bytes - planned});
  return kinds;
}

std::string DeviceWord(const Cluster& cluster) { return cluster.machine.shares_cores ? "CPU worker" : "GPU"; }

std::string KindsText(const std::vector<MemoryKind>& kinds, int64_t total_bytes) {
  std::vector<double> bytes;
  for (const MemoryKind& kind : kinds) bytes.push_back(static_cast<double>(kind.bytes));
  std::vector<std::string> texts = BytesTexts(bytes, static_cast<double>(total_bytes)), parts;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].bytes > 0) parts.push_back(absl::StrCat(kinds[i].name, " ", texts[i]));
  }
  return absl::StrJoin(parts, ", ");
}

std::string StepRangeText(const Machine& machine, double seconds) {
  const PredictionRange range = StepRange(machine);
  return RangeText(SecondsText(seconds * range.low), SecondsText(seconds * range.high));
}

std::string WhatRangesHold(const Machine& machine) {
  return machine.shares_cores
             ? "A range holds 9 of 10 runs of one small model on CPUs, against predictions made just before."
             : "A range holds 9 of 10 step times that others published of A100 and H100, by constants fitted on "
               "another model of the same machines; other stacks took longer (docs/planning.md), and no run of tacc on "
               "a GPU is among them.";
}

std::string ClusterText(const Cluster& cluster) {
  const Machine& machine = cluster.machine;
  const std::string device = machine.device.empty() ? DeviceWord(cluster) : machine.device;
  if (machine.shares_cores) return absl::StrCat(Plural(cluster.num_devices(), "CPU worker"), " (", device, ")");
  if (cluster.num_nodes == 1) return absl::StrCat("one node of ", machine.devices_per_node, " ", device);
  return absl::StrCat(WholeText(cluster.num_nodes), " nodes of ", machine.devices_per_node, " ", device);
}

std::string MeshText(const Layout& layout) {
  std::vector<std::string> axes;
  for (const Mesh::Axis& axis : layout.mesh().axes) {
    if (axis.size > 1) axes.push_back(absl::StrCat(axis.name, "=", axis.size));
  }
  return axes.empty() ? "one rank" : absl::StrJoin(axes, " ");
}

std::string HowText(const Layout& layout) {
  std::vector<std::string> how;
  if (layout.sizes[Axis::kPp] > 1) how.push_back(std::string(Name(layout.schedule)));
  if (layout.sizes[Axis::kPp] > 1 && layout.chunks > 1) absl::StrAppend(&how[0], " x ", layout.chunks);
  if (layout.recompute) how.push_back("gc");
  if (layout.shards() > 1 && layout.zero_stage < 3) how.push_back(absl::StrCat("ZeRO-", layout.zero_stage));
  if (layout.shards() > 1 && !layout.reshard) how.push_back("weights kept");
  if (layout.shards() > 1 && !layout.reduce_each_micro_batch) how.push_back("gradients reduced once");
  return how.empty() ? "-" : absl::StrJoin(how, ", ");
}

std::string AxisInWords(const Finalist& finalist, int axis) {
  const Mesh& mesh = finalist.candidate.plan.mesh;
  const int64_t size = mesh.axes[axis].size;
  const Layout& layout = finalist.candidate.layout;
  const std::string device = DeviceWord(finalist.cluster);
  const std::string devices = absl::StrCat(WholeText(size), " ", device, "s");
  // Where fsdp does not say it.
  const std::string sharing =
      layout.sizes[Axis::kFsdp] > 1 ? "" : absl::StrCat("; all that share a sample ", SharingInWords(layout));
  std::string what;
  switch (FindAxis(mesh.axes[axis].name)->axis) {
    case Axis::kDp:
      what = absl::StrCat("the job runs ", WholeText(size),
                          " times over on different samples; each copy holds all of the state that it is not sharded "
                          "over, and gradients are summed over the copies");
      break;
    case Axis::kFsdp:
      what = absl::StrCat(devices, layout.sizes[Axis::kCp] > 1 ? ", with those that share their samples, " : " ",
                          SharingInWords(layout), "; samples are split over them");
      break;
    case Axis::kEp:
      what = absl::StrCat("the experts are spread over ", devices, "; tokens travel to their experts and back");
      if (const auto& risk = finalist.candidate.overflow_risk; risk.has_value())
        absl::StrAppend(&what, "; ", OverflowText(*risk));
      break;
    case Axis::kCp:
      what =
          absl::StrCat("each sample's tokens are split over ", devices, ", which pass keys and values around", sharing);
      break;
    case Axis::kSp:
      what = absl::StrCat("each sample's tokens are split over ", devices,
                          ", which exchange them for heads while they compute attention (Ulysses)", sharing);
      break;
    case Axis::kPp:
      what = StagesInWords(finalist.candidate.plan, size, device);
      break;
    case Axis::kTp:
    case Axis::kTpq:
      what = absl::StrCat("each matrix product is cut into ", size, " parts, whose results ", devices,
                          " exchange in every layer");
      break;
  }
  return absl::StrCat(mesh.axes[axis].name, "=", size, ": ", what, PlaceInWords(finalist, axis), ".");
}

std::vector<std::string> InWords(const Finalist& finalist, int64_t max_steps) {
  std::vector<std::string> words = {WorkInWords(finalist), SpeedInWords(finalist, max_steps)};
  if (std::string layout = LayoutInWords(finalist); !layout.empty()) words.push_back(std::move(layout));
  words.push_back(MemoryInWords(finalist));
  words.push_back(TimeInWords(finalist));
  if (std::string of_libtorch = LibTorchInWords(finalist); !of_libtorch.empty())
    words.push_back(std::move(of_libtorch));
  if (std::string of_libraries = LibrariesInWords(finalist); !of_libraries.empty())
    words.push_back(std::move(of_libraries));
  return words;
}

std::string OverflowText(const OverflowRisk& risk) {
  constexpr double kNone = 1e-9;
  const std::string share = risk.share_at_random < kNone
                                ? "less than one choice in a billion"
                                : absl::StrFormat("%.2g %% of the choices", 100 * risk.share_at_random);
  return absl::StrCat("tokens that find no room go without that expert: ", share,
                      " where all choose at random, more where some device's experts are chosen over ",
                      absl::StrFormat("%g", risk.buffer_factor),
                      " times as often as the average (dist.ep.buffer_factor)");
}

std::string WhyLost(const Candidate& best, const Candidate& candidate, int64_t available_bytes) {
  if (!candidate.fits) {
    const std::vector<MemoryKind> kinds = KindsOfTheJob(candidate.memory);
    const MemoryKind& largest = *std::max_element(kinds.begin(), kinds.end(), IsLess);
    return absl::StrCat("does not fit: needs ", BytesText(static_cast<double>(candidate.plan.total_bytes)), " of ",
                        BytesText(static_cast<double>(available_bytes)), ", most for ", largest.name, " (",
                        BytesText(static_cast<double>(largest.bytes)), ")");
  }
  const double slower = candidate.plan.step_seconds - best.plan.step_seconds;
  if (const auto& risk = candidate.overflow_risk; risk.has_value() && !risk->is_asked_for) {
    return absl::StrCat(Percent(std::fabs(slower) / best.plan.step_seconds), slower < 0 ? " faster" : " slower",
                        ", but only for a job that asks for it: ", OverflowText(*risk),
                        "; dist.ep.size: ", candidate.layout.sizes[Axis::kEp], " asks for it");
  }
  if (slower < 0) {
    return absl::StrCat(Percent(-slower / best.plan.step_seconds),
                        " faster by prediction, too little for another kind of parallelism");
  }
  struct Part {
    const char* name;
    double seconds;
  };
  std::vector<Part> parts{
      {"computation", candidate.times.compute_seconds - best.times.compute_seconds},
      {"communication that nothing hides", candidate.times.exposed_seconds - best.times.exposed_seconds},
      {"idle pipeline", candidate.times.idle_seconds - best.times.idle_seconds}};
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.seconds > b.seconds; });
  std::vector<std::string> causes;
  for (const Part& part : parts) {
    if (part.seconds > 0.1 * slower) causes.push_back(absl::StrCat("+", SecondsText(part.seconds), " ", part.name));
  }
  return absl::StrCat(Percent(slower / best.plan.step_seconds), " slower",
                      causes.empty() ? "" : absl::StrCat(": ", absl::StrJoin(causes, ", ")));
}

std::string ListText(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i)
    absl::StrAppend(&text, i == 0 ? "" : i + 1 < numbers.size() ? ", " : " and ", numbers[i]);
  return text;
}

}  // namespace tacc::graph
