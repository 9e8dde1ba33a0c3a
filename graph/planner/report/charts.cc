#include "graph/planner/report/charts.h"

#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/planner/report/timeline.h"
#include "graph/planner/report/words.h"
#include "graph/trace/step_trace.h"
#include "page/svg.h"

namespace tacc::graph {
namespace {

using svg::kWidth;
using svg::Open;
using svg::Rect;
using svg::Text;

constexpr int kPalette = 8;  // classes g0 ... g7

// Which group of `axis` the rank is in.
int64_t GroupOf(const Mesh& mesh, int axis, int64_t rank) {
  const std::vector<int64_t> at = mesh.Coordinates(rank);
  int64_t group = 0;
  for (size_t i = 0; i < at.size(); ++i) {
    if (static_cast<int>(i) != axis) group = group * mesh.axes[i].size + at[i];
  }
  return group;
}

int LargestAxis(const Mesh& mesh) {
  int largest = 0;
  for (size_t i = 1; i < mesh.axes.size(); ++i) {
    if (mesh.axes[i].size > mesh.axes[largest].size) largest = static_cast<int>(i);
  }
  return largest;
}

// What the stage computes: a piece for each run of a unit, or in a pipeline for each call, named by its micro-batch.
std::vector<TimelinePiece> ComputePieces(const Finalist& finalist, int stage) {
  const Program& program = finalist.stages[stage];
  std::vector<TimelinePiece> pieces;
  std::string unit;
  int call = -1, forward_end = 0;
  for (const Span& span : finalist.simulation.timeline) {
    if (span.stage != stage || span.lane != Lane::kCompute) continue;
    const Call& the_call = program.step[span.call];
    const Graph& graph = *program.FindGraph(the_call.graph);
    if (span.call != call) {
      call = span.call;
      unit = "";
      forward_end = finalist.stages.size() == 1               ? ForwardEnd(graph, program)
                    : absl::StartsWith(graph.name, "forward") ? static_cast<int>(graph.nodes.size())
                                                              : 0;
    }
    for (const Span& node : SplitByNode(span, graph, finalist.times)) {
      if (node.end <= node.begin) continue;
      const std::string& module = graph.nodes[node.first_node].module;
      if (!module.empty()) unit = UnitOf(module);
      const bool is_update = graph.name == kUpdateGraph || graph.name == kBeginGraph;
      const std::string css = is_update ? "update" : node.first_node >= forward_end ? "backward" : "forward";
      const std::string what = is_update                    ? graph.name
                               : finalist.stages.size() > 1 ? absl::StrCat(the_call.micro_batch)
                               : unit.empty()               ? graph.name
                                                            : unit;
      if (!pieces.empty() && pieces.back().label == what && pieces.back().css == css &&
          node.begin - pieces.back().end < 1e-3 * finalist.simulation.step_seconds) {
        pieces.back().end = node.end;
      } else {
        pieces.push_back(
            {node.begin, node.end, css, what,
             absl::StrCat(css, " of ", unit.empty() ? graph.name : unit, ", micro-batch ", the_call.micro_batch)});
      }
    }
  }
  return pieces;
}

std::map<std::string, std::vector<TimelinePiece>> CommunicationPieces(const Finalist& finalist, int stage) {
  const Program& program = finalist.stages[stage];
  std::map<std::string, std::vector<TimelinePiece>> lanes;
  for (const Span& span : finalist.simulation.timeline) {
    if (span.stage != stage || span.lane != Lane::kCommunication) continue;
    const Graph& graph = *program.FindGraph(program.step[span.call].graph);
    const Node& node = graph.nodes[span.first_node];
    const std::string over = absl::StrJoin(GetAttr<std::vector<std::string>>(node.attrs, "over"), " ");
    // All channels to and from other stages share a lane.
    const std::string lane = over.empty() ? "pp" : finalist.times(stage, graph, node).communicator;
    lanes[lane].push_back({span.begin, span.end, span.exposed > 0.5 * (span.end - span.begin) ? "exposed" : "hidden",
                           std::string(node.op.name()),
                           absl::StrCat(node.op.name(), over.empty() ? "" : " over ", over,
                                        node.module.empty() ? "" : ", ", node.module)});
  }
  for (auto& [lane, pieces] : lanes)
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const TimelinePiece& a, const TimelinePiece& b) { return a.begin < b.begin; });
  return lanes;
}

}  // namespace

std::string LayoutSvg(const Finalist& finalist) {
  const Mesh& mesh = finalist.candidate.plan.mesh;
  const int64_t ranks = mesh.num_ranks();
  const int64_t per_node = std::min(ranks, finalist.cluster.machine.devices_per_node);
  const int64_t nodes = (ranks + per_node - 1) / per_node;
  const bool all = nodes <= kMaxDrawnNodes;
  const int64_t drawn = all ? nodes : kMaxDrawnNodes;
  const int64_t columns = std::min<int64_t>(per_node, 8), rows = (per_node + columns - 1) / columns;
  const int64_t nodes_per_row = std::clamp<int64_t>(drawn, 1, columns <= 4 ? 4 : 2);
  const double gap = 14, node_width = (kWidth - gap * static_cast<double>(nodes_per_row - 1)) /
                                      static_cast<double>(nodes_per_row);
  const int64_t num_split = std::count_if(mesh.axes.begin(), mesh.axes.end(), [](const auto& a) { return a.size > 1; });
  // A line for the device and one for its place on each axis: beside each other they would not fit.
  constexpr double kLine = 16;
  const double device_width = (node_width - 20 + 6) / static_cast<double>(columns);
  const double device_height = 10 + kLine * static_cast<double>(1 + num_split);
  const double node_height = 34 + (device_height + 6) * static_cast<double>(rows) + 6;
  const int64_t node_rows = (drawn + nodes_per_row - 1) / nodes_per_row;
  const int axis = LargestAxis(mesh);
  const std::string device = finalist.cluster.machine.shares_cores ? "worker" : "GPU";
  // Of long names smaller letters, so that they stay inside their boxes.
  size_t longest = absl::StrCat(device, " ", ranks - 1).size();
  for (const Mesh::Axis& a : mesh.axes) longest = std::max(longest, absl::StrCat(a.name, " ", a.size - 1).size());
  constexpr double kLetter = 7;  // of 12 px, about
  const char* css = static_cast<double>(longest) * kLetter > device_width - 14 ? "on tight middle" : "on middle";
  std::string svg = Open((node_height + gap) * static_cast<double>(node_rows), "the layout over the nodes");
  for (int64_t i = 0; i < drawn; ++i) {
    // The last box is the last node; the one before stands for those left out.
    const int64_t node = all || i + 1 < drawn ? i : nodes - 1;
    const double x = static_cast<double>(i % nodes_per_row) * (node_width + gap);
    const double y = static_cast<double>(i / nodes_per_row) * (node_height + gap);
    svg += Rect(x, y, node_width, node_height, "node", "");
    if (!all && i + 2 == drawn) {
      svg += Text(x + 12, y + node_height / 2 + 5, "label",
                  absl::StrCat("nodes ", i, " to ", nodes - 2, ": ", WholeText(nodes - 1 - i), " more like these"));
      continue;
    }
    svg += Text(x + 12, y + 22, "label",
                nodes == 1 && finalist.cluster.machine.shares_cores ? "this machine" : absl::StrCat("node ", node));
    for (int64_t d = 0; d < per_node && node * per_node + d < ranks; ++d) {
      const int64_t rank = node * per_node + d;
      const double dx = x + 10 + static_cast<double>(d % columns) * device_width;
      const double dy = y + 34 + static_cast<double>(d / columns) * (device_height + 6);
      const std::vector<int64_t> at = mesh.Coordinates(rank);
      std::vector<std::string> where;
      for (size_t a = 0; a < at.size(); ++a) {
        if (mesh.axes[a].size > 1) where.push_back(absl::StrCat(mesh.axes[a].name, " ", at[a]));
      }
      absl::StrAppend(
          &svg, "<g class=\"gpu\" data-rank=\"", rank, "\">",
          Rect(dx, dy, device_width - 6, device_height, absl::StrCat("device g", GroupOf(mesh, axis, rank) % kPalette),
               absl::StrCat(device, " ", rank, ": ", absl::StrJoin(where, ", "))),
          Text(dx + (device_width - 6) / 2, dy + 18, css, absl::StrCat(device, " ", rank)));
      double line_y = dy + 18;
      for (const std::string& place : where) svg += Text(dx + (device_width - 6) / 2, line_y += kLine, css, place);
      svg += "</g>\n";
    }
  }
  return svg + "</svg>\n";
}

std::string MemorySvg(const Finalist& finalist) {
  const Candidate& c = finalist.candidate;
  const double step = finalist.simulation.step_seconds;
  int stage = 0;
  for (size_t s = 1; s < finalist.stages.size(); ++s) {
    if (finalist.stages[s].arena_bytes > finalist.stages[stage].arena_bytes) stage = static_cast<int>(s);
  }
  const Program& program = finalist.stages[stage];
  std::map<StateKind, double> states;
  for (const State& state : program.states) states[state.kind] += static_cast<double>(state.slots * state.type.bytes());
  const double workspace = static_cast<double>(std::max<int64_t>(0, program.workspace_bytes));
  struct Band {
    const char* css;
    const char* name;
    double bytes;
  };
  const std::vector<Band> bands{
      {"m0", "libraries and buffers",
       static_cast<double>(IdleBytes(finalist.cluster.machine) + BufferBytes(finalist.cluster.machine, c.plan.mesh))},
      {"m1", "weights", states[StateKind::kWeight] + states[StateKind::kCopy]},
      {"m2", "optimizer", states[StateKind::kOptimizer] + states[StateKind::kAverage] + states[StateKind::kLossScale]},
      {"m3", "gradients", states[StateKind::kGradient]},
      {"g4", "micro-batches under way", states[StateKind::kStash]},
      {"m4", "kernels' workspace", workspace}};
  const double capacity = finalist.cluster.machine.memory_bytes, total = static_cast<double>(c.plan.total_bytes);
  const double top = 1.08 * std::max(capacity, total);
  const double height = 300, left = 74, bottom = height - 26, right = kWidth - 264;
  const auto y_of = [&](double bytes) { return bottom - bytes / top * (bottom - 8); };
  const auto x_of = [&](double seconds) { return left + seconds / step * (right - left); };
  std::string svg = Open(height, "memory of a rank over the step");
  for (int i = 0; i <= 4; ++i) {
    const double bytes = top / 1.08 * i / 4;
    absl::StrAppendFormat(&svg, "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>\n", left, right,
                          y_of(bytes), y_of(bytes));
    svg += Text(left - 8, y_of(bytes) + 4, "tick end", BytesText(bytes));
    svg += Text(x_of(step * i / 4), height - 8, "tick middle", SecondsText(step * i / 4));
  }
  double base = 0, label_y = bottom + 4;
  for (const Band& band : bands) {
    svg += Rect(left, y_of(base + band.bytes), right - left, y_of(base) - y_of(base + band.bytes), band.css,
                absl::StrCat(band.name, " ", BytesText(band.bytes)));
    base += band.bytes;
    if (band.bytes < 0.002 * total) continue;
    label_y = std::min(label_y - 15, y_of(base - band.bytes / 2) + 4);
    svg += Rect(right + 10, label_y - 9, 9, 9, band.css, "");
    svg += Text(right + 24, label_y, "tick", absl::StrCat(band.name, " ", BytesText(band.bytes)));
  }
  // The largest of what lives in each of many short pieces of the step.
  constexpr int kPieces = 550;
  std::vector<double> live(kPieces, 0);
  const std::vector<MemoryPoint> points = MemoryOverTime(finalist.simulation, program, stage, finalist.times);
  double constant = workspace, peak = 0;
  for (const State& state : program.states) constant += static_cast<double>(state.slots * state.type.bytes());
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    const double bytes = static_cast<double>(points[i].bytes) - constant;
    const int first = std::min(kPieces - 1, static_cast<int>(points[i].seconds / step * kPieces));
    const int last = std::min(kPieces - 1, static_cast<int>(points[i + 1].seconds / step * kPieces));
    for (int piece = first; piece <= last; ++piece) live[piece] = std::max(live[piece], bytes);
    peak = std::max(peak, bytes);
  }
  std::string path = absl::StrFormat("M%.1f %.1f", left, y_of(base));
  for (int piece = 0; piece < kPieces; ++piece) {
    absl::StrAppendFormat(&path, "L%.1f %.1fL%.1f %.1f", x_of(step * piece / kPieces), y_of(base + live[piece]),
                          x_of(step * (piece + 1) / kPieces), y_of(base + live[piece]));
  }
  absl::StrAppendFormat(&svg, "<path d=\"%sL%.1f %.1fZ\" class=\"m5\"/>\n", path, right, y_of(base));
  label_y = std::min(label_y - 15, y_of(base + peak / 2) + 4);
  svg += Rect(right + 10, label_y - 9, 9, 9, "m5", "");
  svg += Text(right + 24, label_y, "tick", absl::StrCat("activations, up to ", BytesText(peak)));
  const auto line = [&](double bytes, const char* css, const std::string& text) {
    absl::StrAppendFormat(&svg, "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", left, right,
                          y_of(bytes), y_of(bytes), css);
    svg += Text(left + 6, y_of(bytes) - 5, "tick", text);
  };
  line(total, "planned", absl::StrCat("set aside for the job: ", BytesText(total)));
  if (capacity > 0)
    line(capacity, "limit", absl::StrCat("what a ", DeviceWord(finalist.cluster), " has: ", BytesText(capacity)));
  return svg + "</svg>\n";
}

std::string PlannedTimelineSvg(const Finalist& finalist) {
  const int stages = static_cast<int>(finalist.stages.size());
  std::vector<TimelineRow> rows;
  for (int i = 0; i < std::min(stages, kMaxDrawnStages); ++i) {
    const int stage = stages > kMaxDrawnStages && i + 1 == kMaxDrawnStages ? stages - 1 : i;
    rows.push_back({stages == 1 ? "computes" : absl::StrCat("stage ", stage, " computes"), kTallRow,
                    ComputePieces(finalist, stage)});
    for (auto& [lane, pieces] : CommunicationPieces(finalist, stage))
      rows.push_back({absl::StrCat("communicates over ", lane), kLowRow, std::move(pieces)});
  }
  return TimelineSvg(rows, finalist.simulation.step_seconds);
}

std::string TimeBarSvg(const Finalist& finalist, const OpTable& ops) {
  const int stage = finalist.slowest_stage();
  const StageTimes& times = finalist.simulation.stages[stage];
  const double step = finalist.simulation.step_seconds;
  struct Part {
    std::string css, name;
    double seconds;
  };
  std::vector<Part> parts;
  int number = 0;
  for (const ComputeRow& row : ComputeOf(finalist, stage, ops))
    parts.push_back({absl::StrCat("t", number++), row.kind, row.seconds});
  parts.push_back({"t4", "slowed by communication beside it", times.contention_seconds});
  parts.push_back({"exposed", "waiting for communication", times.exposed_seconds});
  parts.push_back({"idle", "nothing to do (pipeline)", times.idle_seconds});
  std::string bar, legend;
  double x = 0, y = 62;
  double legend_x = 0;
  for (const Part& part : parts) {
    const double fraction = part.seconds / step;
    if (fraction < 1e-4) continue;
    bar += Rect(x, 4, fraction * kWidth, 34, part.css, absl::StrCat(part.name, ": ", SecondsText(part.seconds)));
    if (fraction > 0.04)
      bar += Text(x + fraction * kWidth / 2, 26, "on middle", absl::StrFormat("%.0f %%", 100 * fraction));
    x += fraction * kWidth;
    legend += Rect(legend_x, y - 10, 11, 11, part.css, "");
    legend += Text(legend_x + 17, y, "label",
                   absl::StrFormat("%s: %s, %.1f %%", part.name, SecondsText(part.seconds), 100 * fraction));
    legend_x += kWidth / 3;
    if (legend_x > kWidth * 0.9) {
      legend_x = 0;
      y += 22;
    }
  }
  return absl::StrCat(Open(y + 12, "where the time of a step goes"), bar, legend, "</svg>\n");
}

}  // namespace tacc::graph
