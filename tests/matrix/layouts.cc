#include "tests/matrix/layouts.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace tacc::matrix {
namespace {

constexpr graph::PipelineSchedule k1F1B = graph::PipelineSchedule::k1F1B,
                                  kInterleaved = graph::PipelineSchedule::kInterleaved,
                                  kZeroBubble = graph::PipelineSchedule::kZeroBubble;

// An axis in one of its kinds.
struct Axis {
  int64_t Layout::*size;
  int zero_stage = 3;
  bool reduce_each_micro_batch = true;
  graph::PipelineSchedule schedule = k1F1B;
};

constexpr Axis kAxes[] = {{&Layout::pp}, {&Layout::dp}, {&Layout::fsdp}, {&Layout::ep},
                          {&Layout::cp}, {&Layout::sp}, {&Layout::tp}};
// Kinds of axes beside the first.
constexpr Axis kFurther[] = {{.size = &Layout::fsdp, .zero_stage = 1},
                             {.size = &Layout::fsdp, .zero_stage = 2},
                             {.size = &Layout::fsdp, .reduce_each_micro_batch = false},
                             {.size = &Layout::pp, .schedule = kInterleaved},
                             {.size = &Layout::pp, .schedule = kZeroBubble}};

void Set(const Axis& axis, int64_t size, Layout& layout) {
  layout.*axis.size = size;
  if (axis.size == &Layout::fsdp) {
    layout.zero_stage = axis.zero_stage;
    layout.reduce_each_micro_batch = axis.reduce_each_micro_batch;
  }
  if (axis.size == &Layout::pp) layout.schedule = axis.schedule;
}

}  // namespace

std::string Layout::Name() const {
  std::string name;
  const auto add = [&name](const std::string& axis, int64_t size) {
    if (size > 1) absl::StrAppend(&name, name.empty() ? "" : " ", axis, "=", size);
  };
  add(schedule == k1F1B ? "pp" : absl::StrCat("pp(", std::string(graph::Name(schedule)), ")"), pp);
  add("dp", dp);
  add(zero_stage < 3 ? absl::StrCat("zero", zero_stage) : reduce_each_micro_batch ? "fsdp" : "fsdp(once)", fsdp);
  add("ep", ep);
  add("cp", cp);
  add("sp", sp);
  add("tp", tp);
  if (gc_layers > 0) absl::StrAppend(&name, name.empty() ? "" : " ", "gc=", gc_layers);
  return name.empty() ? "one rank" : name;
}

std::vector<Layout> EachAlone(int64_t ranks) {
  std::vector<Layout> layouts;
  const auto add = [&](const Axis& axis) { Set(axis, ranks, layouts.emplace_back()); };
  for (const Axis& axis : kAxes) add(axis);
  for (const Axis& axis : kFurther) add(axis);
  return layouts;
}

std::vector<Layout> Pairs() {
  std::vector<Layout> layouts;
  // 4 x 2 and 2 x 4 in turn; with tp, sp has 2: kv heads are few.
  const auto add = [&](const Axis& a, const Axis& b) {
    const int64_t first = a.size != &Layout::sp && layouts.size() % 2 == 0 ? 4 : 2;
    Layout& layout = layouts.emplace_back();
    Set(a, first, layout);
    Set(b, 8 / first, layout);
  };
  for (size_t i = 0; i < std::size(kAxes); ++i) {
    for (size_t j = i + 1; j < std::size(kAxes); ++j) add(kAxes[i], kAxes[j]);
  }
  return layouts;
}

std::vector<Layout> Triples(Experts experts) {
  std::vector<Layout> layouts = {
      {.fsdp = 2, .cp = 2, .tp = 2},
      {.dp = 2, .fsdp = 2, .tp = 2},
      {.pp = 2, .fsdp = 2, .tp = 2},
      {.pp = 2, .dp = 2, .cp = 2},
      {.pp = 2, .sp = 2, .tp = 2},
      {.dp = 2, .cp = 2, .sp = 2},
      {.pp = 2, .fsdp = 2, .tp = 2, .schedule = kZeroBubble},
      {.pp = 2, .dp = 2, .fsdp = 2, .zero_stage = 1, .schedule = kInterleaved},
      {.dp = 2, .fsdp = 2, .tp = 2, .zero_stage = 2},
      {.dp = 2, .fsdp = 2, .tp = 2, .reduce_each_micro_batch = false},
      {.pp = 2, .fsdp = 2, .tp = 2, .reduce_each_micro_batch = false},
      {.pp = 2, .fsdp = 2, .cp = 2, .reduce_each_micro_batch = false, .schedule = kInterleaved},
      {.pp = 2, .dp = 2, .fsdp = 2, .reduce_each_micro_batch = false, .schedule = kZeroBubble},
  };
  if (experts == Experts::kPresent) {
    layouts.insert(layouts.end(),
                   {{.fsdp = 2, .ep = 2, .tp = 2}, {.pp = 2, .dp = 2, .ep = 2}, {.pp = 2, .ep = 2, .cp = 2}});
  }
  return layouts;
}

}  // namespace tacc::matrix
