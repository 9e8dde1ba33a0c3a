// Sums over rows that many teams share: each team sums its group of rows, then the groups are added in order. How many
// groups depends on the dims alone, and so do the results.
#ifndef TACC_KERNELS_CUDA_LAUNCH_SUM_GROUPS_H_
#define TACC_KERNELS_CUDA_LAUNCH_SUM_GROUPS_H_

#include <cstdint>

#include "kernels/cuda/launch/load.h"

namespace tacc::kernels::cuda {

// Groups of rows of n: enough to keep a large GPU busy, more where rows are short and teams small, and few enough that
// adding them up costs little.
inline int64_t NumGroups(int64_t num_rows, int64_t n) {
  constexpr int64_t kMinGroups = 512, kMaxGroups = 8192, kSums = 1 << 20;
  if (num_rows < 1) return 1;
  const int64_t wanted = n < 1 ? kMaxGroups : kSums / n;
  const int64_t groups = wanted < kMinGroups ? kMinGroups : wanted < kMaxGroups ? wanted : kMaxGroups;
  return num_rows < groups ? num_rows : groups;
}

// A team takes kWarp columns; its threads of one column take every so many groups.
template <typename T>
struct SumGroupsOfColumns {
  const T* sums;
  int64_t num_groups, n;
  AnyOut y;

  TACC_DEVICE void operator()(Team& team, int64_t block) const {
    T* partial = team.shared<T>();
    const int lane = team.rank() % kWarp, first = team.rank() / kWarp, step = team.size() / kWarp;
    const int64_t column = block * kWarp + lane;
    T sum = 0;
    for (int64_t group = first; column < n && group < num_groups; group += step) sum += sums[group * n + column];
    partial[team.rank()] = sum;
    team.Sync();
    if (first != 0 || column >= n) return;
    for (int i = 1; i < step; ++i) sum += partial[i * kWarp + lane];
    y.Store(column, sum);
  }
};

// y[i] = sum over g of sums[g * n + i], for i in [0, n). T: float, double.
template <typename T>
void SumGroups(const T* sums, int64_t num_groups, int64_t n, AnyOut y) {
  constexpr int kTeam = 1024;
  ForEachTeam((n + kWarp - 1) / kWarp, kTeam, kTeam * static_cast<int64_t>(sizeof(T)),
              SumGroupsOfColumns<T>{sums, num_groups, n, y});
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_SUM_GROUPS_H_
