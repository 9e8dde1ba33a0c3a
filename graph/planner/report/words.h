// A plan in words, as people read it.
#ifndef TACC_GRAPH_PLANNER_REPORT_WORDS_H_
#define TACC_GRAPH_PLANNER_REPORT_WORDS_H_

#include <string>
#include <vector>

#include "graph/planner/report/finalist.h"
#include "page/numbers.h"

namespace tacc::graph {

// "GPU" or "CPU worker", and where the devices are: "16 nodes of 8 NVIDIA H100 SXM5 80 GB".
std::string DeviceWord(const Cluster& cluster);
std::string ClusterText(const Cluster& cluster);

// A layout's mesh less what is 1, "one rank" of none: "pp=2 dp=4"; and how it runs: "zero_bubble, gc", "-".
std::string MeshText(const Layout& layout);
std::string HowText(const Layout& layout);

// A sentence or two about an axis of the mesh: what its groups share or split, and where they lie.
std::string AxisInWords(const Finalist& finalist, int axis);

// What the job will do on the cluster, in plain words, a paragraph an entry: the work of a step, its time, the layout,
// the memory, where the time goes.
std::vector<std::string> InWords(const Finalist& finalist, int64_t max_steps);

// A step's seconds as a range (prediction_range.h), and what such ranges hold: "9 of 10 ...".
std::string StepRangeText(const Machine& machine, double seconds);
std::string WhatRangesHold(const Machine& machine);

// What a rank needs of its device's memory, by kind; together plan.total_bytes.
struct MemoryKind {
  const char* name;
  int64_t bytes;
};
std::vector<MemoryKind> MemoryKinds(const Candidate& candidate);
// "weights 1.2 GiB, optimizer 2.4 GiB": those of more than 0 bytes, which add up to the total as it is shown.
std::string KindsText(const std::vector<MemoryKind>& kinds, int64_t total_bytes);

// What may happen to tokens whose experts' buffers are full: which go without an expert, and how many.
std::string OverflowText(const OverflowRisk& risk);

// Why `candidate` was not taken, against the best, which fits: what does not fit, or what makes it slower.
std::string WhyLost(const Candidate& best, const Candidate& candidate, int64_t available_bytes);

// "0", "0 and 1", "0, 1 and 2".
std::string ListText(const std::vector<int64_t>& numbers);

// The most names that are listed or suggested.
inline constexpr size_t kMaxNames = 5;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_WORDS_H_
