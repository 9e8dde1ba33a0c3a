#ifndef TACC_GRAPH_TRACE_TESTING_TRACE_SLICES_H_
#define TACC_GRAPH_TRACE_TESTING_TRACE_SLICES_H_

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tacc::graph {

// What a trace shows.
struct TraceSlice {
  int process = 0;
  std::string thread, category, name;
  double begin = 0, end = 0;  // microseconds
  nlohmann::json arguments;
};

// The slices of a trace's text, as they are written; none when it is no trace.
inline std::vector<TraceSlice> SlicesOf(const std::string& text) {
  const nlohmann::json trace = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<TraceSlice> slices;
  if (!trace.is_object() || !trace.contains("traceEvents")) return slices;
  std::map<std::pair<int, int>, std::string> threads;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name")
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    slices.push_back(
        {event["pid"], threads[{event["pid"], event["tid"]}], event["cat"], event["name"], begin, end, event["args"]});
  }
  return slices;
}

// Empty where on each thread every two slices are apart or one in the other (call, phase, module, node from the outside
// in); else two that are not.
inline std::string WhatOverlaps(const std::vector<TraceSlice>& slices) {
  constexpr double kRounding = 0.0005;  // microseconds
  const std::map<std::string, int> depth = {{"call", 0}, {"phase", 1}, {"module", 2}, {"node", 3}};
  const auto depth_of = [&](const TraceSlice* slice) {
    const auto it = depth.find(slice->category);
    return it == depth.end() ? 0 : it->second;
  };
  std::map<std::pair<int, std::string>, std::vector<const TraceSlice*>> threads;
  for (const TraceSlice& slice : slices) threads[{slice.process, slice.thread}].push_back(&slice);
  for (auto& [thread, of_thread] : threads) {
    std::stable_sort(of_thread.begin(), of_thread.end(), [&](const TraceSlice* a, const TraceSlice* b) {
      return a->begin != b->begin ? a->begin < b->begin : depth_of(a) < depth_of(b);
    });
    std::vector<const TraceSlice*> open;
    for (const TraceSlice* slice : of_thread) {
      while (!open.empty() && open.back()->end <= slice->begin + kRounding) open.pop_back();
      if (!open.empty() && (slice->end > open.back()->end + kRounding || depth_of(slice) <= depth_of(open.back()))) {
        return absl::StrCat(thread.second, " of process ", thread.first, ": ", open.back()->name, " at ",
                            open.back()->begin, " to ", open.back()->end, " and ", slice->name, " at ", slice->begin,
                            " to ", slice->end);
      }
      open.push_back(slice);
    }
  }
  return "";
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TRACE_TESTING_TRACE_SLICES_H_
