#include "kernels/contract/expert.h"

#include <algorithm>
#include <cstring>

#include "kernels/contract/pointwise.h"
#include "kernels/contract/router.h"
#include "kernels/cpu/einsum.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Rows of one expert that are gathered and multiplied at a time.
constexpr int64_t kExpertRows = 1024;
// Rows of 16 bits are multiplied in multiples of this, the last ones with rows of zeros: of each number of rows that it
// has seen LibTorch's library keeps code, half a megabyte, and experts see another number in each step.
constexpr int64_t kExpertRowStep = 32;

int64_t RowGrain(int64_t n) { return 1 + 16384 / (n + 1); }

// The part of x from element `first` on, as a scalar or a row.
TensorView Part(const TensorView& x, int64_t first, const Dims& dims) {
  return {x.as<char>() + first * SizeOf(x.dtype), x.dtype, dims};
}

// Calls body with a null pointer of the type that p has.
template <typename Body>
void ForFloat(DType dtype, const Body& body) {
  TACC_KERNEL_CHECK(dtype == DType::kF32 || dtype == DType::kF64);
  if (dtype == DType::kF64) {
    body(static_cast<double*>(nullptr));
  } else {
    body(static_cast<float*>(nullptr));
  }
}

// How many rows are multiplied where there are so many.
int64_t PaddedRows(int64_t rows, DType dtype) {
  return SizeOf(dtype) == 2 ? (rows + kExpertRowStep - 1) / kExpertRowStep * kExpertRowStep : rows;
}

bool IsId(int64_t id, int64_t count) { return id >= 0 && id < count; }

// The slots of each expert, in the order of the tokens.
class SlotOrder {
 public:
  SlotOrder(const TensorView& ids, int64_t offset, int64_t num_experts)
      : memory_((num_experts + 1) * sizeof(int64_t) + ids.size() * sizeof(int32_t)),
        ends_(static_cast<int64_t*>(memory_.data())),
        slots_(reinterpret_cast<int32_t*>(ends_ + num_experts + 1)) {
    std::fill(ends_, ends_ + num_experts + 1, 0);
    for (int64_t s = 0; s < ids.size(); ++s) {
      const int64_t e = ids.as<int32_t>()[s] - offset;
      if (IsId(e, num_experts)) ++ends_[e + 1];
    }
    for (int64_t e = 0; e < num_experts; ++e) ends_[e + 1] += ends_[e];
    // Each beginning moves to its end while its slots are filled in.
    for (int64_t s = 0; s < ids.size(); ++s) {
      const int64_t e = ids.as<int32_t>()[s] - offset;
      if (IsId(e, num_experts)) slots_[ends_[e]++] = static_cast<int32_t>(s);
    }
  }
  int64_t begin(int64_t expert) const { return expert == 0 ? 0 : ends_[expert - 1]; }
  int64_t end(int64_t expert) const { return ends_[expert]; }
  int32_t operator[](int64_t i) const { return slots_[i]; }

 private:
  Scratch memory_;
  int64_t* ends_;
  int32_t* slots_;
};

// Rows of a tensor that has one a slot or one a token.
class SlotRows {
 public:
  SlotRows(const TensorView& x, const TensorView& ids)
      : x_(x), n_(x.row_length()), slots_a_row_(x.dims.rank() == ids.dims.rank() ? ids.row_length() : 1) {
    TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && x.num_rows() * slots_a_row_ == ids.size());
  }
  int64_t features() const { return n_; }
  DType dtype() const { return x_.dtype; }
  bool is_a_slot() const { return slots_a_row_ == 1; }
  int64_t row(int32_t slot) const { return slot / slots_a_row_; }
  char* address(int32_t slot) const { return x_.as<char>() + row(slot) * row_bytes(); }
  int64_t row_bytes() const { return n_ * SizeOf(x_.dtype); }

  // The rows of slots [begin, end) of the order, one after the other; padded.
  TensorView Gather(const SlotOrder& order, int64_t begin, int64_t end, const Scratch& to) const {
    const int64_t count = end - begin;
    const TensorView block{to.data(), x_.dtype, {PaddedRows(count, x_.dtype), n_}};
    ParallelFor(count, RowGrain(n_), [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i)
        std::memcpy(block.as<char>() + i * row_bytes(), address(order[begin + i]), row_bytes());
    });
    std::memset(block.as<char>() + count * row_bytes(), 0, (block.dims[0] - count) * row_bytes());
    return block;
  }
  void Scatter(const TensorView& block, const SlotOrder& order, int64_t begin, int64_t end) const {
    ParallelFor(end - begin, RowGrain(n_), [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i)
        std::memcpy(address(order[begin + i]), block.as<char>() + i * row_bytes(), row_bytes());
    });
  }
  // Threads take columns, so a row is summed in the order of the experts.
  void ScatterAdd(const TensorView& block, const SlotOrder& order, int64_t begin, int64_t end) const {
    const simd::Loops& loops = simd::BestLoops();
    ParallelFor(n_, 64, [&](int64_t first, int64_t limit) {
      for (int64_t i = 0; i < end - begin; ++i) {
        const int64_t target = row(order[begin + i]) * n_ + first;
        if (x_.dtype == DType::kF64) {
          loops.accumulate_f64(x_.as<double>() + target, In(block), i * n_ + first, limit - first);
        } else {
          loops.accumulate_f32(x_.as<float>() + target, In(block), i * n_ + first, limit - first);
        }
      }
    });
  }

 private:
  TensorView x_;
  int64_t n_;
  int64_t slots_a_row_;
};

void ClearBytes(void* data, int64_t bytes) {
  ParallelFor(bytes, 1 << 18,
              [&](int64_t begin, int64_t end) { std::memset(static_cast<char*>(data) + begin, 0, end - begin); });
}

int64_t BlockRows(const TensorView& ids, DType dtype) { return PaddedRows(std::min(kExpertRows, ids.size()), dtype); }

CpuEinsum PrepareProduct(const char* spec, const TensorView& a, const TensorView& b, const TensorView& y) {
  absl::StatusOr<CpuEinsum> kernel = CpuEinsum::Prepare(spec, a, b, y);
  TACC_KERNEL_CHECK(kernel.ok());
  return *std::move(kernel);
}

void Softmax(const TensorView& x, const TensorView& y) {
  const int64_t n = x.row_length();
  TACC_KERNEL_CHECK(x.dims == y.dims && (y.dtype == DType::kF32 || y.dtype == DType::kF64));
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(x.num_rows(), RowGrain(n), [&](int64_t first, int64_t limit) {
    for (int64_t i = first; i < limit; ++i) {
      const int64_t begin = i * n, end = begin + n;
      loops.unary(UnaryOp::kAddScalar, -loops.max(In(x), begin, end), 0, In(x), Out(y), begin, end);
      loops.unary(UnaryOp::kExp, 0, 0, In(y), Out(y), begin, end);
      loops.unary(UnaryOp::kScale, 1 / loops.sum(In(y), begin, end), 0, In(y), Out(y), begin, end);
    }
  });
}

void SoftmaxGrad(const TensorView& dy, const TensorView& y, const TensorView& dx) {
  const int64_t n = y.row_length();
  TACC_KERNEL_CHECK(dy.dims == y.dims && dx.dims == y.dims && dy.dtype == y.dtype && dx.dtype == y.dtype);
  ForFloat(y.dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    ParallelFor(y.num_rows(), RowGrain(n), [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i) {
        const T *row_dy = dy.as<T>() + i * n, *row_y = y.as<T>() + i * n;
        T* row_dx = dx.as<T>() + i * n;
        double dot = 0;
        for (int64_t j = 0; j < n; ++j) dot += static_cast<double>(row_dy[j]) * row_y[j];
        for (int64_t j = 0; j < n; ++j) row_dx[j] = row_y[j] * (row_dy[j] - static_cast<T>(dot));
      }
    });
  });
}

// Index of the largest of the n numbers that `is_free` takes, of equal ones the first; -1: it takes none.
template <typename T, typename F>
int32_t LargestOf(const T* row, int64_t n, F is_free) {
  int32_t best = -1;
  for (int32_t e = 0; e < n; ++e) {
    if ((best < 0 || row[e] > row[best]) && is_free(e)) best = e;
  }
  return best;
}

// Which groups of a row are kept, a bit each.
template <typename T>
uint32_t KeptGroups(const T* row, int64_t n, const TopKGroups& g) {
  if (g.kept == g.groups) return ~uint32_t{0};
  const int64_t size = n / g.groups;
  T sums[kMaxTopKGroups];
  for (int64_t group = 0; group < g.groups; ++group) {
    const T* own = row + group * size;
    int32_t taken[kMaxTopKSummed];
    sums[group] = 0;
    for (int64_t j = 0; j < g.summed; ++j) {
      taken[j] = LargestOf(own, size, [&](int32_t e) { return std::find(taken, taken + j, e) == taken + j; });
      sums[group] += own[taken[j]];
    }
  }
  uint32_t kept = 0;
  for (int64_t j = 0; j < g.kept; ++j)
    kept |= uint32_t{1} << LargestOf(sums, g.groups, [&](int32_t group) { return (kept >> group & 1) == 0; });
  return kept;
}

void TopK(const TensorView& p, const TensorView& choice, const TopKGroups& groups, TopKWeights kind,
          const TensorView& weights, const TensorView& ids) {
  const int64_t n = p.row_length(), k = ids.row_length();
  TACC_KERNEL_CHECK(weights.dims == ids.dims && ids.dtype == DType::kI32 && weights.dtype == p.dtype &&
                    ids.size() == p.num_rows() * k && choice.dims == p.dims && choice.dtype == p.dtype);
  TACC_KERNEL_CHECK(groups.groups >= 1 && groups.groups <= kMaxTopKGroups && n % groups.groups == 0 &&
                    groups.kept <= groups.groups && groups.summed <= std::min(kMaxTopKSummed, n / groups.groups) &&
                    k <= n / groups.groups * groups.kept);
  ForFloat(p.dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    ParallelFor(p.num_rows(), RowGrain(n * k), [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i) {
        const T *numbers = p.as<T>() + i * n, *row = choice.as<T>() + i * n;
        T* w = weights.as<T>() + i * k;
        int32_t* chosen = ids.as<int32_t>() + i * k;
        const uint32_t kept = KeptGroups(row, n, groups);
        const int64_t size = n / groups.groups;
        double sum = 0;
        for (int64_t j = 0; j < k; ++j) {
          chosen[j] = LargestOf(row, n, [&](int32_t e) {
            return (kept >> (e / size) & 1) != 0 && std::find(chosen, chosen + j, e) == chosen + j;
          });
          w[j] = numbers[chosen[j]];
          sum += w[j];
        }
        for (int64_t j = 0; j < k && kind == TopKWeights::kNormalized; ++j) w[j] = static_cast<T>(w[j] / sum);
      }
    });
  });
}

void TopKGrad(const TensorView& dw, const TensorView& p, const TensorView& ids, TopKWeights kind,
              const TensorView& dp) {
  const int64_t n = p.row_length(), k = ids.row_length();
  TACC_KERNEL_CHECK(dw.dims == ids.dims && dp.dims == p.dims && ids.dtype == DType::kI32 && dw.dtype == p.dtype &&
                    dp.dtype == p.dtype && ids.size() == p.num_rows() * k);
  ForFloat(p.dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    ParallelFor(p.num_rows(), RowGrain(n), [&](int64_t first, int64_t limit) {
      for (int64_t i = first; i < limit; ++i) {
        const T *row = p.as<T>() + i * n, *d = dw.as<T>() + i * k;
        const int32_t* chosen = ids.as<int32_t>() + i * k;
        T* out = dp.as<T>() + i * n;
        std::fill(out, out + n, T{0});
        double sum = 0, dot = 0;
        for (int64_t j = 0; j < k; ++j) {
          if (!IsId(chosen[j], n)) continue;  // padding
          sum += row[chosen[j]];
          dot += static_cast<double>(d[j]) * row[chosen[j]];
        }
        for (int64_t j = 0; j < k; ++j) {
          if (!IsId(chosen[j], n)) continue;
          out[chosen[j]] += static_cast<T>(kind == TopKWeights::kNormalized ? (d[j] - dot / sum) / sum : d[j]);
        }
      }
    });
  });
}

void ExpertCounts(const TensorView& ids, const TensorView& counts) {
  const int64_t n = counts.row_length(), rows = counts.num_rows();
  TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && (rows == 1 || (rows == ids.dims[0] && counts.dims.rank() == 2)));
  ForFloat(counts.dtype, [&](auto* null) {
    using T = std::remove_pointer_t<decltype(null)>;
    T* out = counts.as<T>();
    std::fill(out, out + counts.size(), T{0});
    const int64_t slots = rows == 0 ? 0 : ids.size() / rows;  // of a row
    for (int64_t s = 0; s < ids.size(); ++s) {
      if (IsId(ids.as<int32_t>()[s], n)) out[s / slots * n + ids.as<int32_t>()[s]] += 1;
    }
  });
}

void ExpertMatmul(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind, int64_t offset,
                  const TensorView& y) {
  const SlotRows in(x, ids), out(y, ids);
  const int64_t num_experts = w.dims[0], n = in.features(), m = out.features();
  const Dims matrix = kind == ExpertWeights::kPlain ? Dims{m, n} : Dims{n, m};
  TACC_KERNEL_CHECK(w.dims == (Dims{num_experts, matrix[0], matrix[1]}));
  const SlotOrder order(ids, offset, num_experts);
  // With one expert a token a sum over slots has a row a slot as well, but may be of a wider type.
  const bool copies = out.is_a_slot() && y.dtype == x.dtype;
  if (!copies) {
    ClearBytes(y.data, y.bytes());
  } else {
    ParallelFor(ids.size(), RowGrain(m), [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        if (IsId(ids.as<int32_t>()[s] - offset, num_experts)) continue;
        std::memset(out.address(static_cast<int32_t>(s)), 0, out.row_bytes());
      }
    });
  }
  const int64_t rows = BlockRows(ids, x.dtype);
  const Scratch x_memory(rows * in.row_bytes()), y_memory(rows * m * SizeOf(x.dtype));
  for (int64_t e = 0; e < num_experts; ++e) {
    const TensorView weight = Part(w, e * m * n, matrix);
    for (int64_t begin = order.begin(e); begin < order.end(e); begin += kExpertRows) {
      const int64_t end = std::min(order.end(e), begin + kExpertRows);
      const TensorView block_x = in.Gather(order, begin, end, x_memory);
      const TensorView block_y{y_memory.data(), x.dtype, {block_x.dims[0], m}};
      PrepareProduct(kind == ExpertWeights::kPlain ? "rn,mn->rm" : "rn,nm->rm", block_x, weight, block_y)
          .Run(block_x, weight, block_y);
      if (copies) {
        out.Scatter(block_y, order, begin, end);
      } else {
        out.ScatterAdd(block_y, order, begin, end);
      }
    }
  }
}

void ExpertMatmulGrad(const TensorView& a, const TensorView& b, const TensorView& ids, int64_t offset,
                      const TensorView& dw) {
  const SlotRows a_rows(a, ids), b_rows(b, ids);
  const int64_t num_experts = dw.dims[0], m = a_rows.features(), n = b_rows.features();
  TACC_KERNEL_CHECK(dw.dims == (Dims{num_experts, m, n}) && a.dtype == b.dtype);
  const SlotOrder order(ids, offset, num_experts);
  const int64_t rows = BlockRows(ids, a.dtype);
  const Scratch a_memory(rows * a_rows.row_bytes()), b_memory(rows * b_rows.row_bytes());
  for (int64_t e = 0; e < num_experts; ++e) {
    const TensorView gradient = Part(dw, e * m * n, {m, n});
    if (order.begin(e) == order.end(e)) kPointwise.Fill(0, gradient);
    for (int64_t begin = order.begin(e); begin < order.end(e); begin += kExpertRows) {
      const int64_t end = std::min(order.end(e), begin + kExpertRows);
      const TensorView block_a = a_rows.Gather(order, begin, end, a_memory);
      const TensorView block_b = b_rows.Gather(order, begin, end, b_memory);
      const CpuEinsum product = PrepareProduct("rm,rn->mn", block_a, block_b, gradient);
      if (begin == order.begin(e)) {
        product.Run(block_a, block_b, gradient);
      } else {
        product.RunAccumulate(gradient, block_a, block_b, gradient);
      }
    }
  }
}

void MulRows(const TensorView& x, const TensorView& w, const TensorView& y) {
  const int64_t n = x.row_length();
  TACC_KERNEL_CHECK(x.dims == y.dims && w.size() == x.num_rows());
  ParallelFor(x.num_rows(), RowGrain(n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      simd::BestLoops().unary(UnaryOp::kScale, ReadScalar(Part(w, i, {})), 0, In(x), Out(y), i * n, (i + 1) * n);
    }
  });
}

void DotRows(const TensorView& a, const TensorView& b, const TensorView& y) {
  constexpr int64_t kBlock = 512;
  const int64_t n = a.row_length();
  TACC_KERNEL_CHECK(a.dims == b.dims && y.size() == a.num_rows());
  const simd::Loops& loops = simd::BestLoops();
  const DType compute = a.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  ParallelFor(a.num_rows(), RowGrain(n), [&](int64_t begin, int64_t end) {
    double products[kBlock];
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; j += kBlock) {
        const int64_t count = std::min(kBlock, n - j);
        const TensorView part_a = Part(a, i * n + j, {count}), part_b = Part(b, i * n + j, {count});
        loops.binary(BinaryOp::kMul, In(part_a), In(part_b), count, {products, compute}, 0, count);
        sum += loops.sum({products, compute}, 0, count);
      }
      WriteScalar(sum, Part(y, i, {}));
    }
  });
}

}  // namespace

const RouterKernels kRouter = {
    .Softmax = Softmax,
    .SoftmaxGrad = SoftmaxGrad,
    .TopK = TopK,
    .TopKGrad = TopKGrad,
    .ExpertCounts = ExpertCounts,
    .MulRows = MulRows,
    .DotRows = DotRows,
};

const ExpertKernels kExpert = {
    .ExpertMatmul = ExpertMatmul,
    .ExpertMatmulGrad = ExpertMatmulGrad,
};

}  // namespace tacc::kernels::cpu
