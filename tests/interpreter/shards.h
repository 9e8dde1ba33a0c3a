#ifndef TACC_TESTS_INTERPRETER_SHARDS_H_
#define TACC_TESTS_INTERPRETER_SHARDS_H_

#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/interpreter/array.h"
#include "graph/ir/graph.h"

namespace tacc::interpreter {

// One array per rank of the mesh.
using Shards = std::vector<Array>;
using Random = std::mt19937_64;

// The logical range of each dim that a rank holds.
std::vector<graph::Range> Ranges(const graph::Placement& placement, const graph::Mesh& mesh, int64_t rank);

// The logical array as each rank holds it: its part, padding filled with NaN. Where the placement is pending the array
// is cut into random summands.
Shards Scatter(const Array& logical, const graph::Placement& placement, const graph::Mesh& mesh, Random& random);

// The inverse. Errors: Internal when a part is missing, when replicas differ by more than 1e-9 relative, or when a
// value that is no padding is NaN on one rank only.
absl::StatusOr<Array> Assemble(const Shards& shards, const graph::Placement& placement, const graph::Mesh& mesh);

// Fills everything outside the logical bounds with `value`.
void FillPadding(Array& local, const std::vector<graph::Range>& ranges, double value);

}  // namespace tacc::interpreter

#endif  // TACC_TESTS_INTERPRETER_SHARDS_H_
