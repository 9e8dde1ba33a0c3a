#ifndef TACC_GRAPH_PLANNER_NORMAL_EQUATIONS_H_
#define TACC_GRAPH_PLANNER_NORMAL_EQUATIONS_H_

#include <utility>
#include <vector>

namespace tacc::graph {

using Matrix = std::vector<std::vector<double>>;

// x of a x = b, by Gaussian elimination. a: symmetric, positive definite.
inline std::vector<double> Solve(Matrix a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < n; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

// Element [i, i] of a's inverse.
inline double InverseDiagonal(const Matrix& a, size_t i) {
  std::vector<double> unit(a.size(), 0.0);
  unit[i] = 1;
  return Solve(a, std::move(unit))[i];
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_NORMAL_EQUATIONS_H_
