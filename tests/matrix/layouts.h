// The layouts of the matrix: each axis alone, pairs and triples.
#ifndef TACC_TESTS_MATRIX_LAYOUTS_H_
#define TACC_TESTS_MATRIX_LAYOUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/passes/partition/pins.h"
#include "graph/passes/stages/pipeline_calls.h"

namespace tacc::matrix {

// One layout: the sizes of its axes.
struct Layout {
  int64_t pp = 1, dp = 1, fsdp = 1, ep = 1;
  int64_t cp = 1;  // ring
  int64_t sp = 1;  // Ulysses
  int64_t tp = 1;
  int zero_stage = 3;  // of fsdp
  bool reduce_each_micro_batch = true;
  graph::PipelineSchedule schedule = graph::PipelineSchedule::k1F1B;
  graph::Pins pins;
  int64_t gc_layers = 0;  // the first layers, which compute their activations again in the backward

  int64_t ranks() const { return pp * dp * fsdp * ep * cp * sp * tp; }
  int64_t ranks_of_stage() const { return ranks() / pp; }
  int64_t data_ranks() const { return dp * fsdp * ep; }  // that different samples go to
  int num_chunks() const { return schedule == graph::PipelineSchedule::kInterleaved ? 2 : 1; }
  // "pp=2 zero1=2 tp=2", "fsdp(once)=4"; "one rank".
  std::string Name() const;
};

// Each axis by itself, in each of its kinds (ZeRO stages, schedules), at `ranks`.
std::vector<Layout> EachAlone(int64_t ranks);
// Every two axes at 8 ranks.
std::vector<Layout> Pairs();
// Three axes at 8 ranks; with ep for a mixture of experts.
enum class Experts { kNone, kPresent };
std::vector<Layout> Triples(Experts experts);

}  // namespace tacc::matrix

#endif  // TACC_TESTS_MATRIX_LAYOUTS_H_
