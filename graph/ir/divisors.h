#ifndef TACC_GRAPH_IR_DIVISORS_H_
#define TACC_GRAPH_IR_DIVISORS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tacc::graph {

// All divisors of n (at least 1), ascending.
inline std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d * d != n) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_DIVISORS_H_
