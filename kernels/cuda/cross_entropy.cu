#include <cmath>

#include "kernels/contract/cross_entropy.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/bounds.h"
#include "kernels/cuda/launch/pack.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kSumTeam = 1024;

// y[row, part] = log(sum(exp(x))) of the part-th piece of a row of x. Each thread keeps a running maximum, so that each
// element is read once.
template <typename T, int N>
struct LogSumExpOfParts {
  AnyIn x;
  AnyOut y;
  int64_t pitch, valid, part, num_parts;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t row = index / num_parts, begin = index % num_parts * part;
    const int64_t left = valid - begin, n = left < 0 ? 0 : left < part ? left : part;
    const int64_t first = row * pitch + begin;
    const T infinity = static_cast<T>(HUGE_VAL);
    T maximum = -infinity, sum = 0;
    ForPacks<N>(team, first, n, [&](int64_t i, auto width) {
      constexpr int kWidth = decltype(width)::value;
      T values[kWidth];
      Load<kWidth>(x, first + i, values);
      T largest = maximum;
      TACC_UNROLL
      for (int j = 0; j < kWidth; ++j) largest = values[j] > largest ? values[j] : largest;
      if (largest > maximum) {
        sum *= std::exp(maximum - largest);
        maximum = largest;
      }
      const T shift = maximum == -infinity ? T(0) : maximum;
      TACC_UNROLL
      for (int j = 0; j < kWidth; ++j) sum += std::exp(values[j] - shift);
    });
    const T largest = team.Max(maximum), shift = largest == -infinity ? T(0) : largest;
    const T total = team.Sum(sum * std::exp(maximum - shift));
    if (team.rank() == 0) y.Store(index, largest + std::log(total));
  }
};

// What becomes of a target outside the local part: its lse counts, or nothing.
enum class Foreign { kCount, kLeaveOut };

// The loss and count of all tokens, by one team.
struct SumOfLosses {
  AnyIn logits, lse;
  const int32_t* targets;
  AnyOut loss, count;
  int64_t tokens, pitch, offset, valid;
  Bounds bounds;
  Foreign foreign;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    double total = 0;
    int64_t counted = 0;
    for (int64_t i = team.rank(); i < tokens; i += team.size()) {
      if (targets[i] < 0 || !bounds.Contains(i)) continue;
      const int64_t target = targets[i] - offset;
      const bool is_local = target >= 0 && target < valid;
      if (!is_local && foreign == Foreign::kLeaveOut) continue;
      total += lse.Load<double>(i) - (is_local ? logits.Load<double>(i * pitch + target) : 0.0);
      ++counted;
    }
    total = team.Sum(total);
    counted = team.Sum(counted);
    if (team.rank() != 0) return;
    loss.Store(0, total);
    count.Store(0, static_cast<double>(counted));
  }
};

template <typename T, int N>
struct CrossEntropyGradRow {
  AnyIn logits, lse, dloss;
  const int32_t* targets;
  AnyOut dlogits;
  int64_t n, offset;
  Bounds bounds;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const bool counts = targets[row] >= 0 && bounds.Contains(row);
    const int64_t target = targets[row] - offset, first = row * n;
    const T shift = lse.Load<T>(row), factor = dloss.Load<T>(0);
    ForPacks<N>(team, first, n, [&](int64_t i, auto width) {
      constexpr int kWidth = decltype(width)::value;
      T values[kWidth];
      if (counts) {
        Load<kWidth>(logits, first + i, values);
        TACC_UNROLL
        for (int j = 0; j < kWidth; ++j)
          values[j] = std::exp(values[j] - shift) * factor - (i + j == target ? factor : T(0));
      } else {
        TACC_UNROLL
        for (int j = 0; j < kWidth; ++j) values[j] = 0;
      }
      Store<kWidth>(dlogits, first + i, values);
    });
  }
};

void LogSumExpOf(const TensorView& x, int64_t valid, int64_t num_parts, const TensorView& y) {
  const int64_t pitch = x.row_length(), part = (pitch + num_parts - 1) / num_parts;
  WithPacks(true, {x}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(x.num_rows() * num_parts, TeamSize(part, 2 * N::value), 0,
                LogSumExpOfParts<T, N::value>{In(x), Out(y), pitch, valid, part, num_parts});
  });
}

void SumLosses(const TensorView& logits, const TensorView& targets, const TensorView& lse, int64_t offset,
               int64_t valid, const Dims& bounds, Foreign foreign, const TensorView& loss, const TensorView& count) {
  ForEachTeam(1, kSumTeam, 0,
              SumOfLosses{In(logits), In(lse), targets.as<int32_t>(), Out(loss), Out(count), targets.size(),
                          logits.row_length(), offset, valid, Bounds(targets.dims, bounds), foreign});
}

void CrossEntropy(const TensorView& logits, const TensorView& targets, int64_t offset, const Dims& bounds,
                  const TensorView& loss, const TensorView& count, const TensorView& lse) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  LogSumExpOf(logits, vocabulary, 1, lse);
  SumLosses(logits, targets, lse, offset, vocabulary, bounds, Foreign::kCount, loss, count);
}

void LogSumExp(const TensorView& x, int64_t valid, const TensorView& y) {
  TACC_KERNEL_CHECK(y.num_rows() == x.num_rows() && y.row_length() > 0 && valid <= x.row_length());
  LogSumExpOf(x, valid, y.row_length(), y);
}

void CrossEntropySum(const TensorView& logits, const TensorView& targets, const TensorView& lse, int64_t offset,
                     int64_t valid, const Dims& bounds, const TensorView& loss, const TensorView& count) {
  const int64_t tokens = logits.num_rows();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(valid <= logits.row_length());
  SumLosses(logits, targets, lse, offset, valid, bounds, Foreign::kLeaveOut, loss, count);
}

void CrossEntropyGrad(const TensorView& logits, const TensorView& targets, const TensorView& lse,
                      const TensorView& dloss, int64_t offset, const Dims& bounds, const TensorView& dlogits) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(dlogits.size() == logits.size());
  WithPacks(true, {logits, dlogits}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(tokens, TeamSize(vocabulary, 2 * N::value), 0,
                CrossEntropyGradRow<T, N::value>{In(logits), In(lse), In(dloss), targets.as<int32_t>(), Out(dlogits),
                                                 vocabulary, offset, Bounds(targets.dims, bounds)});
  });
}

}  // namespace

const CrossEntropyKernels kCrossEntropy = {
    .CrossEntropy = CrossEntropy,
    .LogSumExp = LogSumExp,
    .CrossEntropySum = CrossEntropySum,
    .CrossEntropyGrad = CrossEntropyGrad,
};

}  // namespace tacc::kernels::cuda
