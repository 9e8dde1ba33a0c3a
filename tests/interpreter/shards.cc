#include "tests/interpreter/shards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"

namespace tacc::interpreter {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Dims Begins(const std::vector<graph::Range>& ranges) {
  Dims out;
  for (const graph::Range& r : ranges) out.push_back(r.begin);
  return out;
}

Dims Ends(const std::vector<graph::Range>& ranges) {
  Dims out;
  for (const graph::Range& r : ranges) out.push_back(r.end);
  return out;
}

Dims Minus(Dims a, const Dims& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

bool Differ(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) != std::isnan(b);
  return std::abs(a - b) > 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

}  // namespace

std::vector<graph::Range> Ranges(const graph::Placement& placement, const graph::Mesh& mesh, int64_t rank) {
  const std::vector<int64_t> coordinates = mesh.Coordinates(rank);
  std::vector<graph::Range> ranges;
  for (int d = 0; d < placement.global.rank(); ++d) {
    ranges.push_back(graph::LocalRange(placement.global.dims[d], placement.sharding.dims[d], mesh, coordinates));
  }
  return ranges;
}

Shards Scatter(const Array& logical, const graph::Placement& placement, const graph::Mesh& mesh, Random& random) {
  // One summand for each combination of coordinates on the pending axes; the last makes the sum right.
  const int64_t num_summands = graph::NumShards(mesh, placement.sharding.pending);
  std::vector<Array> summands(num_summands, logical);
  std::normal_distribution<double> normal;
  for (int64_t s = 0; s + 1 < num_summands; ++s) {
    for (int64_t i = 0; i < logical.size(); ++i) {
      summands[s].values[i] = normal(random);
      summands[num_summands - 1].values[i] -= summands[s].values[i];
    }
  }
  Shards shards;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<int64_t> coordinates = mesh.Coordinates(rank);
    int64_t summand = 0;
    for (int axis : placement.sharding.pending) summand = summand * mesh.axes[axis].size + coordinates[axis];
    const std::vector<graph::Range> ranges = Ranges(placement, mesh, rank);
    Array local = Array::Filled(graph::LocalDims(placement.global.dims, placement.sharding, mesh), kNaN);
    ForEachIndex(Begins(ranges), Ends(ranges),
                 [&](const Dims& index) { local.at(Minus(index, Begins(ranges))) = summands[summand].at(index); });
    shards.push_back(std::move(local));
  }
  return shards;
}

absl::StatusOr<Array> Assemble(const Shards& shards, const graph::Placement& placement, const graph::Mesh& mesh) {
  const Dims& dims = placement.global.dims;
  // The sum over the pending axes, for each replica: each combination of coordinates on axes that the placement does
  // not use.
  std::map<std::vector<int64_t>, Array> replicas, written;
  for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<int64_t> coordinates = mesh.Coordinates(rank);
    std::vector<int64_t> replica;
    for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
      if (!placement.sharding.Uses(axis) && !placement.sharding.IsPending(axis)) replica.push_back(coordinates[axis]);
    }
    Array& whole = replicas.emplace(replica, Array::Filled(dims, 0)).first->second;
    Array& count = written.emplace(replica, Array::Filled(dims, 0)).first->second;
    const std::vector<graph::Range> ranges = Ranges(placement, mesh, rank);
    ForEachIndex(Begins(ranges), Ends(ranges), [&](const Dims& index) {
      whole.at(index) += shards[rank].at(Minus(index, Begins(ranges)));
      count.at(index) += 1;
    });
  }
  const double wanted = static_cast<double>(graph::NumShards(mesh, placement.sharding.pending));
  const Array& first = replicas.begin()->second;
  for (const auto& [replica, whole] : replicas) {
    for (int64_t i = 0; i < whole.size(); ++i) {
      if (written.at(replica).values[i] != wanted)
        return absl::InternalError(absl::StrCat("element ", i, " is on no rank, or on too many"));
      if (Differ(whole.values[i], first.values[i])) {
        return absl::InternalError(
            absl::StrCat("replicas differ at element ", i, ": ", first.values[i], " against ", whole.values[i]));
      }
    }
  }
  return first;
}

void FillPadding(Array& local, const std::vector<graph::Range>& ranges, double value) {
  ForEachIndex(local.dims, [&](const Dims& index) {
    for (size_t d = 0; d < index.size(); ++d) {
      if (index[d] >= ranges[d].end - ranges[d].begin) local.at(index) = value;
    }
  });
}

}  // namespace tacc::interpreter
