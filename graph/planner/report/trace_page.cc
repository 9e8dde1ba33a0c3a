#include "graph/planner/report/trace_page.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "graph/planner/report/timeline.h"
#include "graph/planner/report/words.h"
#include "json/parse_json.h"
#include "page/page.h"
#include "page/svg.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

constexpr size_t kMaxKernelRows = 20;
constexpr int kMaxProcesses = 8;

struct Slice {
  std::string category, name, module;
  double begin = 0, end = 0;  // seconds
  double exposed = 0;         // seconds, of a collective
  int64_t micro_batch = 0;    // of a collective
  double flops = 0, bytes = 0;
};

// Slices are in the order of their begin.
struct Thread {
  std::string name;
  int64_t sort_index = 0;
  std::vector<Slice> slices;
};

// What one process does; threads as viewers order them, "channel 2" before "channel 10".
struct Process {
  std::string name;
  std::string layout;  // empty: an older trace, which does not say
  std::vector<Thread> threads;
};

// Nothing where a field is missing or of another kind: the file is not ours to trust.
std::string TextAt(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}
int64_t IdAt(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}
double NumberAt(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

absl::StatusOr<std::vector<Process>> Read(const NamedTrace& trace) {
  const json root = ParseJson(trace.text);
  const auto events = root.is_object() ? root.find("traceEvents") : root.end();
  if (!root.is_object() || events == root.end() || !events->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        trace.name,
        ": not a trace; wanted a file of `taccctl plan --trace`, `train.trace_step` or `tacc-rank --trace`"));
  }
  std::map<int64_t, Process> processes;
  std::map<std::pair<int64_t, int64_t>, Thread> threads;  // By process.
  const json none = json::object();
  for (const json& event : *events) {
    if (!event.is_object()) continue;
    const int64_t process = IdAt(event, "pid"), thread = IdAt(event, "tid");
    const auto found = event.find("args");
    const json& arguments = found != event.end() && found->is_object() ? *found : none;
    const std::string phase = TextAt(event, "ph"), name = TextAt(event, "name");
    if (phase == "M" && name == "process_name") processes[process].name = TextAt(arguments, "name");
    if (phase == "M" && name == "process_labels") processes[process].layout = TextAt(arguments, "labels");
    if (phase == "M" && name == "thread_name") threads[{process, thread}].name = TextAt(arguments, "name");
    if (phase == "M" && name == "thread_sort_index")
      threads[{process, thread}].sort_index = IdAt(arguments, "sort_index");
    if (phase != "X") continue;
    Slice slice{TextAt(event, "cat"), name, TextAt(arguments, "module"), NumberAt(event, "ts") * 1e-6};
    slice.end = slice.begin + NumberAt(event, "dur") * 1e-6;
    slice.exposed = NumberAt(arguments, "exposed_us") * 1e-6;
    slice.micro_batch = IdAt(arguments, "micro_batch");
    slice.flops = NumberAt(arguments, "flops");
    slice.bytes = NumberAt(arguments, "bytes");
    threads[{process, thread}].slices.push_back(std::move(slice));
  }
  for (auto& [id, thread] : threads) {
    std::vector<Slice>& slices = thread.slices;
    std::stable_sort(slices.begin(), slices.end(), [](const Slice& a, const Slice& b) { return a.begin < b.begin; });
    if (!slices.empty()) processes[id.first].threads.push_back(std::move(thread));
  }
  std::vector<Process> list;
  for (auto& [id, process] : processes) {
    const auto place = [](const Thread& thread) {
      return std::tuple(thread.sort_index, thread.name.size(), thread.name);
    };
    std::stable_sort(process.threads.begin(), process.threads.end(),
                     [&](const Thread& a, const Thread& b) { return place(a) < place(b); });
    list.push_back(std::move(process));
  }
  return list;
}

// Of a call, "GRAPH MICRO_BATCH".
std::string GraphOf(const Slice& call) { return call.name.substr(0, call.name.find(' ')); }

// The colour of what is inside a slice of a call or of a phase of one; empty: as before.
std::string PhaseOf(const Slice& slice) {
  if (slice.category == "phase") return slice.name;
  if (slice.category != "call") return "";
  if (const std::string graph = GraphOf(slice); graph == kUpdateGraph || graph == kBeginGraph) return "update";
  return absl::StartsWith(slice.name, "forward") || absl::StartsWith(slice.name, "eval") ? "forward" : "backward";
}

// Layers, and below them kernels: products, and all others.
std::pair<std::vector<TimelinePiece>, std::vector<TimelinePiece>> Compute(const std::vector<Slice>& slices,
                                                                          double seconds) {
  std::vector<TimelinePiece> layers, kernels;
  std::string css = "forward", graph, unit;
  for (const Slice& slice : slices) {
    if (const std::string phase = PhaseOf(slice); !phase.empty()) css = phase;
    if (slice.category == "call") {
      graph = GraphOf(slice);
      unit = slice.name;
    }
    if (slice.category != "node") continue;
    if (!slice.module.empty()) unit = UnitOf(slice.module);
    const std::string label = css == "update" ? graph : unit;
    if (!layers.empty() && layers.back().label == label && layers.back().css == css &&
        slice.begin - layers.back().end < 1e-3 * seconds) {
      layers.back().end = slice.end;
    } else {
      layers.push_back({slice.begin, slice.end, css, label, absl::StrCat(css, " of ", unit)});
    }
    kernels.push_back({slice.begin, slice.end, slice.flops > 0 ? "g7" : "g5", slice.name,
                       absl::StrCat(slice.name, slice.module.empty() ? "" : ", ", slice.module)});
  }
  return {std::move(layers), std::move(kernels)};
}

// Of a collective, message or copy.
std::string ColourOf(const Slice& slice) {
  if (slice.category == "copy") return "g6";
  return slice.exposed > 0.5 * (slice.end - slice.begin) ? "exposed" : "hidden";
}

void AddRows(const NamedTrace& trace, const std::vector<Process>& processes, double seconds,
             std::vector<TimelineRow>& rows) {
  for (size_t p = 0; p < processes.size() && p < kMaxProcesses; ++p) {
    for (const Thread& thread : processes[p].threads) {
      if (thread.name == "compute") {
        auto [layers, kernels] = Compute(thread.slices, seconds);
        rows.push_back({absl::StrCat(trace.name, ", ", processes[p].name, ": layers"), kTallRow, std::move(layers)});
        rows.push_back({"kernels", kLowRow, std::move(kernels)});
        continue;
      }
      // Messages follow each other without a gap.
      const bool has_messages = absl::StartsWith(thread.name, "communication channel");
      std::vector<TimelinePiece> pieces;
      for (const Slice& slice : thread.slices) {
        pieces.push_back({slice.begin, slice.end, ColourOf(slice),
                          has_messages ? absl::StrCat(slice.name, ", ", slice.micro_batch) : slice.name,
                          absl::StrCat(slice.name, slice.module.empty() ? "" : ", ", slice.module)});
      }
      rows.push_back({thread.name, kLowRow, std::move(pieces)});
    }
  }
}

// Empty where all traces are of one layout, or none says of which.
std::string LayoutsThatDiffer(const std::vector<NamedTrace>& traces, const std::vector<std::vector<Process>>& read) {
  std::set<std::string> layouts;
  std::vector<std::string> lines;
  for (size_t i = 0; i < traces.size(); ++i) {
    std::set<std::string> own;
    for (const Process& process : read[i]) own.insert(process.layout.empty() ? "not said" : process.layout);
    const std::string layout = absl::StrJoin(own, " and ");
    layouts.insert(layout);
    lines.push_back(absl::StrCat(traces[i].name, ": ", layout));
  }
  if (layouts.size() < 2) return "";
  return absl::StrCat("the layouts differ, so these steps are not comparable: ", absl::StrJoin(lines, "; "));
}

// What the colours that the rows have stand for.
std::string Keys(const std::vector<TimelineRow>& rows) {
  std::set<std::string> used;
  for (const TimelineRow& row : rows) {
    for (const TimelinePiece& piece : row.pieces) used.insert(piece.css);
  }
  std::string keys;
  for (const auto& [css, meaning] : {std::pair("forward", "forward"),
                                     {"backward", "backward"},
                                     {"update", "update"},
                                     {"g7", "products and attention"},
                                     {"g5", "other kernels"},
                                     {"hidden", "communication that is hidden"},
                                     {"exposed", "communication that is waited for"},
                                     {"g6", "copies between host and device"}}) {
    if (used.contains(css)) keys += Key(css, meaning);
  }
  return keys;
}

// The kernels of a trace that take longest, over all of its processes.
std::string KernelTable(const std::vector<Process>& processes) {
  struct Sum {
    std::string op;
    int64_t count = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };
  std::map<std::string, Sum> by_op;
  double total = 0;
  for (const Process& process : processes) {
    for (const Thread& thread : process.threads) {
      for (const Slice& slice : thread.slices) {
        if (slice.category != "node") continue;
        Sum& sum = by_op[slice.name];
        sum.op = slice.name;
        ++sum.count;
        sum.seconds += slice.end - slice.begin;
        sum.flops += slice.flops;
        sum.bytes += slice.bytes;
        total += slice.end - slice.begin;
      }
    }
  }
  std::vector<Sum> sums;
  for (auto& [op, sum] : by_op) sums.push_back(std::move(sum));
  std::stable_sort(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) { return a.seconds > b.seconds; });
  std::string table =
      absl::StrCat("<div class=\"wide\"><table><tr>",
                   TableRow("th", {"kernel", "times", "seconds", "share", "GFLOP/s", "GB/s"}, 1, 5), "</tr>\n");
  for (size_t i = 0; i < sums.size() && i < kMaxKernelRows; ++i) {
    const Sum& sum = sums[i];
    const auto rate = [&](double what) {
      return what > 0 && sum.seconds > 0 ? absl::StrFormat("%.1f", what / sum.seconds * 1e-9) : "";
    };
    absl::StrAppend(&table, "<tr>",
                    TableRow("td",
                             {sum.op, WholeText(sum.count), SecondsText(sum.seconds),
                              absl::StrFormat("%.1f %%", 100 * sum.seconds / std::max(total, 1e-12)), rate(sum.flops),
                              rate(sum.bytes)},
                             1, 5),
                    "</tr>\n");
  }
  return table + "</table></div>\n";
}

}  // namespace

absl::StatusOr<TracePage> TraceHtml(const std::vector<NamedTrace>& traces) {
  std::vector<std::vector<Process>> read;
  double seconds = 0;
  for (const NamedTrace& trace : traces) {
    TACC_ASSIGN_OR_RETURN(std::vector<Process> processes, Read(trace));
    for (const Process& process : processes) {
      for (const Thread& thread : process.threads) {
        for (const Slice& slice : thread.slices) seconds = std::max(seconds, slice.end);
      }
    }
    read.push_back(std::move(processes));
  }
  if (seconds <= 0) return absl::InvalidArgumentError(absl::StrCat(traces[0].name, ": the trace has no slices"));
  std::vector<TimelineRow> rows;
  std::string tables;
  for (size_t i = 0; i < traces.size(); ++i) {
    AddRows(traces[i], read[i], seconds, rows);
    tables += Section(absl::StrCat("Kernels of ", traces[i].name), KernelTable(read[i]));
  }
  const std::string names =
      absl::StrJoin(traces, ", ", [](std::string* out, const NamedTrace& trace) { absl::StrAppend(out, trace.name); });
  const std::string warning = LayoutsThatDiffer(traces, read);
  const std::string words = warning.empty() ? "" : absl::StrCat("<p><b>", svg::Escaped(warning), "</b></p>\n");
  return TracePage{Page({absl::StrCat(names, ": trace"), "One step", names},
                        absl::StrCat(words,
                                     Section("Timeline", absl::StrCat("<p class=\"note\">", Keys(rows), "</p>\n",
                                                                      ZoomedTimeline(TimelineSvg(rows, seconds)))),
                                     tables),
                        ""),
                   warning};
}

}  // namespace tacc::graph
