#include "graph/ir/rest_cut.h"

#include <algorithm>
#include <limits>

namespace tacc::graph {

RestCut CutAtRest(const std::vector<DimInUse>& dims, int64_t shards) {
  const int rank = static_cast<int>(dims.size());
  struct Candidate {
    RestCut cut;
    int64_t extent;
  };
  std::vector<Candidate> candidates;
  int64_t rows = dims[0].extent;
  candidates.push_back({{}, rows});
  for (int k = 1; k < rank && !dims[k].is_split && !dims[0].is_padded; ++k) {
    rows *= dims[k].extent;
    candidates.push_back({{k + 1, 0}, rows});
  }
  for (Candidate& c : candidates) {
    c.cut.is_equal = c.extent % shards == 0;
    if (c.cut.is_equal) return c.cut;
  }
  for (int d = 1; d < rank; ++d) candidates.push_back({{1, d, dims[d].extent % shards == 0}, dims[d].extent});
  RestCut best;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [cut, extent] : candidates) {
    const int64_t held = (extent + shards - 1) / shards * shards;
    const double waste = static_cast<double>(held) / static_cast<double>(std::max<int64_t>(extent, 1));
    if (waste < least) {
      best = cut;
      least = waste;
    }
    if (waste <= 1.01) break;
  }
  return best;
}

}  // namespace tacc::graph
