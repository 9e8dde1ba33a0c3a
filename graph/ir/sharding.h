// The device mesh, and how a tensor is cut over its axes.
#ifndef TACC_GRAPH_IR_SHARDING_H_
#define TACC_GRAPH_IR_SHARDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// A device mesh: named axes, major to minor. Rank r has the coordinates of r written in the mixed radix of the sizes.
struct Mesh {
  struct Axis {
    std::string name;
    int64_t size = 1;
    bool operator==(const Axis&) const = default;
  };
  std::vector<Axis> axes;

  int64_t num_ranks() const;
  // Index of the axis, or -1.
  int Find(absl::string_view name) const;
  // coordinates[i] is the rank's position on axes[i].
  std::vector<int64_t> Coordinates(int64_t rank) const;
  // Difference between the ranks of neighbours on the axis.
  int64_t Stride(int axis) const;
  std::string ToString() const;  // "dp=2 fsdp=4"
  bool operator==(const Mesh&) const = default;
};

// Axis indices into a Mesh, major to minor.
using AxisList = std::vector<int>;

// Product of the axes' sizes.
int64_t NumShards(const Mesh& mesh, const AxisList& axes);

// How a logical tensor lies on a mesh: for each dim the axes that split it, and the axes on which the value is pending
// (each rank holds a summand). An axis not named replicates. A dim's extent E over axes n1, n2 gives local
// ceil(ceil(E/n1)/n2): every shard is one contiguous logical range, the last ones may be padded.
struct Sharding {
  std::vector<AxisList> dims;
  AxisList pending;  // sorted ascending

  static Sharding Replicated(int rank) { return Sharding{std::vector<AxisList>(rank), {}}; }
  bool IsReplicated() const;
  bool Uses(int axis) const;  // splits a dim (pending does not count)
  bool IsPending(int axis) const;
  bool operator==(const Sharding&) const = default;
  // "[fsdp,-]", with " pending=[dp]" when pending.
  std::string ToString(const Mesh& mesh) const;
};

// Local dims of a logical tensor (all ranks alike, padding included).
Dims LocalDims(const Dims& global, const Sharding& sharding, const Mesh& mesh);

// The logical range [begin, end) of dim `dim` that the rank at `coordinates` holds (empty ranges have begin == end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Range&) const = default;
};
Range LocalRange(int64_t extent, const AxisList& axes, const Mesh& mesh, const std::vector<int64_t>& coordinates);

// True when some rank holds padding on that dim.
bool IsPadded(int64_t extent, const AxisList& axes, const Mesh& mesh);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_SHARDING_H_
