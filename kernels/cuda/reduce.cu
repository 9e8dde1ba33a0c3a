// ReduceSum and ReduceMax of kernels/contract/reduce.h. A result is reduced by one team, or where that would leave the
// GPU idle, by several over parts of its elements, whose results are reduced again. How many depends on the dims alone.
#include <algorithm>
#include <cmath>

#include "kernels/contract/pointwise.h"
#include "kernels/contract/reduce.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/strided.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

enum class Kind { kSum, kMax };

constexpr int kTeam = 256;
constexpr int64_t kEnoughTeams = 1024;   // keep a large GPU busy
constexpr int64_t kMaxPartials = 65536;  // keep scratch to 512 KiB
// Elements of a result that are worth a team of their own: of a run, of each of a team's columns.
constexpr int64_t kLeastRun = 1024, kLeastColumn = 128;

// Dims of x with neighbours of the same kind merged; extents of 1 are dropped.
struct Plan {
  Dims kept, kept_strides, reduced, reduced_strides;
  bool columns = false;  // the last merged dim is kept
  int64_t parts = 1;

  int64_t num_results() const { return kept.Product(); }
  int64_t num_reduced() const { return reduced.Product(); }
};

Plan MakePlan(const Dims& x, const Dims& dims) {
  Plan plan;
  int last = -1;  // 1: reduced, 0: kept
  const Strides dense = DenseStrides(x);
  for (int i = 0; i < x.rank(); ++i) {
    if (x[i] == 1) continue;
    const bool is_reduced = std::find(dims.begin(), dims.end(), i) != dims.end();
    Dims& extents = is_reduced ? plan.reduced : plan.kept;
    Dims& strides = is_reduced ? plan.reduced_strides : plan.kept_strides;
    if (last == is_reduced) {
      extents[extents.rank() - 1] *= x[i];
      strides[strides.rank() - 1] = dense[i];
    } else {
      extents.push_back(x[i]);
      strides.push_back(dense[i]);
    }
    last = is_reduced;
  }
  plan.columns = last == 0;
  const int64_t per_team = plan.columns ? kWarp * (plan.kept.back() % kPack == 0 ? kPack : 1) : 1;
  const int64_t teams = (plan.num_results() + per_team - 1) / per_team;
  const int64_t parts = plan.num_reduced() / (plan.columns ? kLeastColumn : kLeastRun);
  if (teams > 0) {
    const int64_t most = std::min(kEnoughTeams / teams, kMaxPartials / plan.num_results());
    plan.parts = std::max<int64_t>(std::min(most, parts), 1);
  }
  return plan;
}

TACC_DEVICE double Combine(Kind kind, double a, double b) {
  if (kind == Kind::kSum) return a + b;
  return a != a || a > b ? a : b;  // NaN in either gives NaN
}

struct Reduction {
  Kind kind;
  AnyIn x;
  AnyOut y;  // [parts, results]
  Strided<1> kept, reduced;
  int64_t num_results, num_reduced, parts;

  TACC_DEVICE double Identity() const { return kind == Kind::kSum ? 0.0 : -HUGE_VAL; }
  TACC_DEVICE double Load(int64_t base, int64_t i) const {
    int64_t offsets[1];
    reduced.Offsets(i, offsets);
    return x.Load<double>(base + offsets[0]);
  }
  TACC_DEVICE int64_t Base(int64_t result) const {
    int64_t offsets[1];
    kept.Offsets(result, offsets);
    return offsets[0];
  }
};

// Neighbouring threads take neighbouring elements of one result.
struct ReduceRun {
  Reduction r;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t result = index % r.num_results, part = index / r.num_results;
    const int64_t base = r.Base(result), end = r.num_reduced * (part + 1) / r.parts;
    double value = r.Identity();
    for (int64_t i = r.num_reduced * part / r.parts + team.rank(); i < end; i += team.size())
      value = Combine(r.kind, value, r.Load(base, i));
    double total;
    if (r.kind == Kind::kSum) {
      total = team.Sum(value);
    } else {
      const double nan = team.Max(value != value ? 1.0 : 0.0);
      total = team.Max(value != value ? r.Identity() : value);
      if (nan != 0) total = NAN;
    }
    if (team.rank() == 0) r.y.Store(part * r.num_results + result, total);
  }
};

// Neighbouring threads take V neighbouring results each; the team's warps take turns at what is reduced. V divides the
// last of the dims that are kept; for V > 1 x is read in packs.
template <typename T, int V>
struct ReduceColumns {
  static constexpr int kAtOnce = 4;
  Reduction r;

  TACC_DEVICE void LoadRow(int64_t base, int64_t i, T (&x)[V]) const {
    int64_t offsets[1];
    r.reduced.Offsets(i, offsets);
    Load<V>(r.x, base + offsets[0], x);
  }
  TACC_DEVICE void Add(const T (&x)[V], double (&value)[V]) const {
#pragma unroll
    for (int j = 0; j < V; ++j) value[j] = Combine(r.kind, value[j], static_cast<double>(x[j]));
  }

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    double* partial = team.shared<double>();  // [threads, V]
    const int64_t blocks = (r.num_results + kWarp * V - 1) / (kWarp * V);
    const int64_t part = index / blocks, result = (index % blocks * kWarp + team.rank() % kWarp) * V;
    const int first = team.rank() / kWarp, step = team.size() / kWarp;
    double value[V];
#pragma unroll
    for (int j = 0; j < V; ++j) value[j] = r.Identity();
    if (result < r.num_results) {
      const int64_t base = r.Base(result), end = r.num_reduced * (part + 1) / r.parts;
      int64_t i = r.num_reduced * part / r.parts + first;
      // Several reads on their way at a time.
      for (; i + (kAtOnce - 1) * step < end; i += kAtOnce * step) {
        T x[kAtOnce][V];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) LoadRow(base, i + k * step, x[k]);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) Add(x[k], value);
      }
      for (; i < end; i += step) {
        T x[V];
        LoadRow(base, i, x);
        Add(x, value);
      }
    }
#pragma unroll
    for (int j = 0; j < V; ++j) partial[team.rank() * V + j] = value[j];
    team.Sync();
    if (first != 0 || result >= r.num_results) return;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      for (int i = 1; i < step; ++i) value[j] = Combine(r.kind, value[j], partial[(i * kWarp + team.rank()) * V + j]);
      r.y.Store(part * r.num_results + result + j, value[j]);
    }
  }
};

void Launch(Kind kind, const Plan& plan, const TensorView& x, AnyOut y) {
  const Reduction r{kind,
                    In(x),
                    y,
                    {plan.kept, {plan.kept_strides}},
                    {plan.reduced, {plan.reduced_strides}},
                    plan.num_results(),
                    plan.num_reduced(),
                    plan.parts};
  if (!plan.columns) {
    const int64_t per_team = r.num_reduced / plan.parts;
    return ForEachTeam<kTeam>(r.num_results * plan.parts, std::min(kTeam, TeamSize(per_team)), 0, ReduceRun{r});
  }
  WithPacks(plan.kept.back() % kPack == 0, {x}, [&](auto zero, auto width) {
    constexpr int V = decltype(width)::value;
    const int64_t blocks = (r.num_results + kWarp * V - 1) / (kWarp * V);
    ForEachTeam<kTeam>(blocks * plan.parts, kTeam, kTeam * V * static_cast<int64_t>(sizeof(double)),
                       ReduceColumns<decltype(zero), V>{r});
  });
}

void Reduce(Kind kind, const TensorView& x, const Dims& dims, const TensorView& y) {
  int64_t reduced = 1;
  for (int64_t dim : dims) reduced *= x.dims[static_cast<int>(dim)];
  TACC_KERNEL_CHECK(reduced == 0 || y.size() * reduced == x.size());
  if (y.size() == 0) return;
  if (x.size() == 0) return kPointwise.Fill(kind == Kind::kSum ? 0.0 : -HUGE_VAL, y);
  const Plan plan = MakePlan(x.dims, dims);
  if (plan.parts == 1) return Launch(kind, plan, x, Out(y));
  Scratch scratch(ReduceWorkspaceBytes(x.dims, dims));
  const TensorView partial{scratch.data(), DType::kF64, {plan.parts, plan.num_results()}};
  Launch(kind, plan, x, Out(partial));
  Plan last = MakePlan(partial.dims, {0});
  last.parts = 1;
  Launch(kind, last, partial, Out(y));
}

void ReduceSum(const TensorView& x, const Dims& dims, const TensorView& y) { Reduce(Kind::kSum, x, dims, y); }
void ReduceMax(const TensorView& x, const Dims& dims, const TensorView& y) { Reduce(Kind::kMax, x, dims, y); }

template <typename T>
struct ScatterAddRow {
  const T* x;
  const int64_t* ids;
  T* y;
  int64_t inner, from, to;

  TACC_DEVICE void operator()(int64_t row) const {
    const int64_t source = row / inner * from * inner + row % inner, target = row / inner * to * inner + row % inner;
    for (int64_t j = 0; j < to; ++j) y[target + j * inner] = 0;
    for (int64_t i = 0; i < from; ++i) {
      const int64_t place = ids[source + i * inner];
      if (place >= 0 && place < to) y[target + place * inner] += x[source + i * inner];
    }
  }
};

void ScatterAdd(const TensorView& x, const TensorView& ids, int dim, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dtype == y.dtype && ids.dtype == DType::kI64 && ids.dims == x.dims);
  if (y.size() == 0) return;
  const int64_t inner = x.dims.Product(dim + 1, x.dims.rank()), from = x.dims[dim], to = y.dims[dim];
  const int64_t rows = y.size() / to;
  if (y.dtype == DType::kF64) {
    return ForEach(rows, ScatterAddRow<double>{x.as<double>(), ids.as<int64_t>(), y.as<double>(), inner, from, to});
  }
  TACC_KERNEL_CHECK(y.dtype == DType::kF32);
  ForEach(rows, ScatterAddRow<float>{x.as<float>(), ids.as<int64_t>(), y.as<float>(), inner, from, to});
}

}  // namespace

int64_t ReduceWorkspaceBytes(const Dims& x, const Dims& dims) {
  const Plan plan = MakePlan(x, dims);
  return plan.parts == 1 ? 0 : plan.parts * plan.num_results() * static_cast<int64_t>(sizeof(double));
}

const ReduceKernels kReduce = {
    .ReduceSum = ReduceSum,
    .ReduceMax = ReduceMax,
    .ScatterAdd = ScatterAdd,
};

}  // namespace tacc::kernels::cuda
