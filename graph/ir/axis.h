// The parallel axes: what each one splits, and how many ranks lie along it.
#ifndef TACC_GRAPH_IR_AXIS_H_
#define TACC_GRAPH_IR_AXIS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/strings/string_view.h"

namespace tacc::graph {

// The kinds of parallelism, in the order in which their axes lie on machines unless a job says otherwise: from between
// nodes to inside a node.
enum class Axis { kPp, kDp, kFsdp, kEp, kCp, kSp, kTp, kTpq };
inline constexpr size_t kNumAxes = 8;

// What an axis of one kind does. A new kind is an enumerator and a row here, and a row of kAxisRules
// (graph/planner/axis_rules.cc): which of its sizes are legal for a model.
struct AxisFacts {
  Axis axis;
  absl::string_view name;        // on meshes and, where a job sizes it, in job.proto: dist.NAME.size
  Axis job_axis = axis;          // the job's axis that it is, or on a mesh is a part of
  bool splits_layers = false;    // into stages
  bool splits_samples = false;   // of a batch
  bool splits_tokens = false;    // of a sample
  bool splits_states = false;    // at rest, as ZeRO does
  bool splits_experts = false;   // their weights in use
  bool splits_heads = false;     // weights in use along vocab, heads and mlp, and the residual stream's sequence
  bool splits_kv_heads = false;  // weights in use along kv_heads
};
inline constexpr std::array<AxisFacts, kNumAxes> kAxes = {{
    {.axis = Axis::kPp, .name = "pp", .splits_layers = true},
    {.axis = Axis::kDp, .name = "dp", .splits_samples = true},
    {.axis = Axis::kFsdp, .name = "fsdp", .splits_samples = true, .splits_states = true},
    {.axis = Axis::kEp, .name = "ep", .splits_samples = true, .splits_experts = true},
    // Ranks that share a sequence work with the same weights: each keeps a slice of them too.
    {.axis = Axis::kCp, .name = "cp", .splits_tokens = true, .splits_states = true},  // a ring
    // Ulysses: in attention it splits the heads.
    {.axis = Axis::kSp, .name = "sp", .job_axis = Axis::kCp, .splits_tokens = true, .splits_states = true},
    {.axis = Axis::kTp, .name = "tp", .splits_heads = true, .splits_kv_heads = true},
    // For fewer kv heads than ranks.
    {.axis = Axis::kTpq, .name = "tpq", .job_axis = Axis::kTp, .splits_heads = true},
}};

constexpr const AxisFacts& FactsOf(Axis axis) { return kAxes[static_cast<size_t>(axis)]; }
constexpr absl::string_view Name(Axis axis) { return FactsOf(axis).name; }

// Null when no kind has the name: a mesh may have axes of other names.
constexpr const AxisFacts* FindAxis(absl::string_view name) {
  for (const AxisFacts& facts : kAxes) {
    if (facts.name == name) return &facts;
  }
  return nullptr;
}

// The axes that a job sizes and orders, in the order of the table.
inline constexpr std::array<Axis, 6> kJobAxes = [] {
  std::array<Axis, 6> axes{};
  size_t n = 0;
  for (const AxisFacts& facts : kAxes) {
    if (facts.job_axis == facts.axis) axes[n++] = facts.axis;
  }
  return axes;
}();
static_assert(std::all_of(kAxes.begin(), kAxes.end(), [](const AxisFacts& f) { return &f == &FactsOf(f.axis); }));

// One T for each axis, value-initialized.
template <class T>
class PerAxis {
 public:
  constexpr T& operator[](Axis axis) { return values_[static_cast<size_t>(axis)]; }
  constexpr const T& operator[](Axis axis) const { return values_[static_cast<size_t>(axis)]; }
  bool operator==(const PerAxis&) const = default;

 private:
  std::array<T, kNumAxes> values_{};
};

// Ranks along each axis; 1 where not given.
class AxisSizes : public PerAxis<int64_t> {
 public:
  constexpr AxisSizes() {
    for (const AxisFacts& facts : kAxes) (*this)[facts.axis] = 1;
  }
  constexpr AxisSizes(std::initializer_list<std::pair<Axis, int64_t>> sizes) : AxisSizes() {
    for (const auto& [axis, size] : sizes) (*this)[axis] = size;
  }
  constexpr int64_t product() const {
    int64_t product = 1;
    for (const AxisFacts& facts : kAxes) product *= (*this)[facts.axis];
    return product;
  }
  // The product over the axes with that flag: ProductOf(&AxisFacts::splits_samples) ranks have samples of their own.
  constexpr int64_t ProductOf(bool AxisFacts::*split) const {
    int64_t product = 1;
    for (const AxisFacts& facts : kAxes) product *= facts.*split ? (*this)[facts.axis] : 1;
    return product;
  }
  bool operator==(const AxisSizes&) const = default;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_AXIS_H_
