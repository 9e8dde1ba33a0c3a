#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/interpreter/evaluate.h"

namespace tacc::interpreter {
namespace {

int64_t Last(const Array& x) { return x.dims.back(); }
int64_t Rows(const Array& x) { return Last(x) == 0 ? 0 : x.size() / Last(x); }

Results Softmax(const Request& r) {
  const Array& x = *r.in[0];
  const int64_t n = Last(x);
  Array y = r.NewResult(0);
  for (int64_t i = 0; i < Rows(x); ++i) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; ++j) max = std::max(max, x.values[i * n + j]);
    for (int64_t j = 0; j < n; ++j) sum += std::exp(x.values[i * n + j] - max);
    for (int64_t j = 0; j < n; ++j) y.values[i * n + j] = std::exp(x.values[i * n + j] - max) / sum;
  }
  return {std::move(y)};
}

Results SoftmaxGrad(const Request& r) {
  const Array &dy = *r.in[0], &y = *r.in[1];
  const int64_t n = Last(y);
  Array dx = r.NewResult(0);
  for (int64_t i = 0; i < Rows(y); ++i) {
    double dot = 0;
    for (int64_t j = 0; j < n; ++j) dot += dy.values[i * n + j] * y.values[i * n + j];
    for (int64_t j = 0; j < n; ++j) dx.values[i * n + j] = y.values[i * n + j] * (dy.values[i * n + j] - dot);
  }
  return {std::move(dx)};
}

// Indices of numbers, largest first, of equal ones the lower.
std::vector<int64_t> Descending(const std::vector<double>& values) {
  std::vector<int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
  return order;
}

// Whether each group of `row` is one of the `kept` with the largest sums of their `summed` largest numbers.
std::vector<char> KeptGroups(const std::vector<double>& row, int64_t groups, int64_t kept, int64_t summed) {
  const int64_t size = static_cast<int64_t>(row.size()) / groups;
  std::vector<double> sums(groups, 0);
  for (int64_t g = 0; g < groups; ++g) {
    std::vector<double> group(row.begin() + g * size, row.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    sums[g] = std::accumulate(group.begin(), group.begin() + summed, 0.0);
  }
  const std::vector<int64_t> order = Descending(sums);
  std::vector<char> is_kept(groups, 0);
  for (int64_t j = 0; j < kept; ++j) is_kept[order[j]] = 1;
  return is_kept;
}

Results TopK(const Request& r) {
  const Array &p = *r.in[0], &choice = *r.in.back();
  const int64_t n = Last(p), k = r.attr<int64_t>("k"), groups = r.attr<int64_t>("groups", 1);
  const int64_t kept = r.attr<int64_t>("kept_groups", groups), summed = r.attr<int64_t>("summed", 1);
  Array weights = r.NewResult(0), ids = r.NewResult(1);
  for (int64_t i = 0; i < Rows(p); ++i) {
    const std::vector<double> row(choice.values.begin() + i * n, choice.values.begin() + (i + 1) * n);
    const std::vector<char> is_kept = KeptGroups(row, groups, kept, summed);
    std::vector<int64_t> order = Descending(row);
    std::erase_if(order, [&](int64_t e) { return is_kept[e / (n / groups)] == 0; });
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += p.values[i * n + order[j]];
    for (int64_t j = 0; j < k; ++j) {
      weights.values[i * k + j] = p.values[i * n + order[j]] / (r.attr<bool>("normalize") ? sum : 1);
      ids.values[i * k + j] = static_cast<double>(order[j]);
    }
  }
  return {std::move(weights), std::move(ids)};
}

// The entry of a row that slot `id` means, or -1: padding holds anything.
int64_t Index(double id, int64_t first, int64_t count) {
  return id >= first && id < first + count ? static_cast<int64_t>(id) - first : -1;
}

Results TopKGrad(const Request& r) {
  const Array &dw = *r.in[0], &p = *r.in[1], &ids = *r.in[2];
  const int64_t n = Last(p), k = Last(ids);
  const bool normalize = r.attr<bool>("normalize");
  Array dp = r.NewResult(0);
  for (int64_t i = 0; i < Rows(p); ++i) {
    double sum = 0, dot = 0;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = Index(ids.values[i * k + j], 0, n);
      if (e < 0) continue;
      sum += p.values[i * n + e];
      dot += dw.values[i * k + j] * p.values[i * n + e];
    }
    for (int64_t j = 0; j < k; ++j) {
      const int64_t e = Index(ids.values[i * k + j], 0, n);
      if (e < 0) continue;
      const double d = dw.values[i * k + j];
      dp.values[i * n + e] += normalize ? (d - dot / sum) / sum : d;
    }
  }
  return {std::move(dp)};
}

Results ExpertCounts(const Request& r) {
  Array counts = r.NewResult(0);
  const auto num_experts = r.attr<int64_t>("num_experts");
  const auto& ids = r.in[0]->values;
  for (size_t s = 0; s < ids.size(); ++s) {
    const int64_t e = Index(ids[s], 0, num_experts);
    const size_t row = s * (counts.size() / num_experts) / ids.size();
    if (e >= 0) counts.values[row * num_experts + e] += 1;
  }
  return {std::move(counts)};
}

// The row of `x`, which has one a slot or one a token, for a slot.
int64_t RowOf(const Array& x, const Array& ids, int64_t slot) {
  return x.dims.size() == ids.dims.size() ? slot / Last(ids) : slot;
}

Results ExpertMatmul(const Request& r) {
  const Array &x = *r.in[0], &ids = *r.in[1], &w = *r.in[2];
  const bool transposed = r.attr<bool>("transposed");
  Array y = r.NewResult(0);
  const int64_t n = Last(x), m = Last(y);
  for (int64_t slot = 0; slot < ids.size(); ++slot) {
    const int64_t e = Index(ids.values[slot], r.in_ranges[2][0].begin, w.dims[0]);
    if (e < 0) continue;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        y.values[RowOf(y, ids, slot) * m + i] +=
            (transposed ? w.at({e, j, i}) : w.at({e, i, j})) * x.values[RowOf(x, ids, slot) * n + j];
      }
    }
  }
  return {std::move(y)};
}

Results ExpertMatmulGrad(const Request& r) {
  const Array &a = *r.in[0], &b = *r.in[1], &ids = *r.in[2];
  Array dw = r.NewResult(0);
  const int64_t m = Last(a), n = Last(b);
  for (int64_t slot = 0; slot < ids.size(); ++slot) {
    const int64_t e = Index(ids.values[slot], r.out_ranges[0][0].begin, dw.dims[0]);
    if (e < 0) continue;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j)
        dw.at({e, i, j}) += a.values[RowOf(a, ids, slot) * m + i] * b.values[RowOf(b, ids, slot) * n + j];
    }
  }
  return {std::move(dw)};
}

Results MulRows(const Request& r) {
  const Array &x = *r.in[0], &w = *r.in[1];
  Array y = r.NewResult(0);
  for (int64_t i = 0; i < x.size(); ++i) y.values[i] = x.values[i] * w.values[i / Last(x)];
  return {std::move(y)};
}

Results DotRows(const Request& r) {
  const Array &a = *r.in[0], &b = *r.in[1];
  Array y = r.NewResult(0);
  for (int64_t i = 0; i < a.size(); ++i) y.values[i / Last(a)] += a.values[i] * b.values[i];
  return {std::move(y)};
}

// Visits the slots [b, s, k] of `slots` with the index of each one's group.
void ForEachSlot(const Array& slots, int64_t groups, const std::function<void(int64_t slot, int64_t group)>& visit) {
  for (int64_t slot = 0; slot < slots.size(); ++slot) {
    const int64_t token = slot / slots.dims[2], b = token / slots.dims[1], s = token % slots.dims[1];
    visit(slot, b * groups + s * groups / slots.dims[1]);
  }
}

Results DispatchSlots(const Request& r) {
  const Array& ids = *r.in[0];
  Array places = r.NewResult(0), row_ids = r.NewResult(1, -1), overflow = r.NewResult(2);
  const int64_t groups = row_ids.dims[1], destinations = row_ids.dims[2], capacity = row_ids.dims[3];
  const int64_t num_experts = r.attr<int64_t>("num_experts");
  std::vector<int64_t> used(ids.dims[0] * groups * destinations, 0);
  ForEachSlot(ids, groups, [&](int64_t slot, int64_t group) {
    places.values[slot] = -1;
    const int64_t e = Index(ids.values[slot], 0, num_experts);
    if (e < 0) return;
    const int64_t d = e / (num_experts / destinations);
    int64_t& c = used[group * destinations + d];
    if (c == capacity) {
      overflow.values[0] += 1;
      return;
    }
    places.values[slot] = static_cast<double>(d * capacity + c);
    row_ids.values[(group * destinations + d) * capacity + c] = static_cast<double>(e);
    ++c;
  });
  return {std::move(places), std::move(row_ids), std::move(overflow)};
}

Results Dispatch(const Request& r) {
  const Array &x = *r.in[0], &places = *r.in[1];
  Array rows = r.NewResult(0);
  const int64_t n = Last(x), buffer = rows.dims[2] * rows.dims[3];
  ForEachSlot(places, rows.dims[1], [&](int64_t slot, int64_t group) {
    const int64_t place = Index(places.values[slot], 0, buffer);
    if (place < 0) return;
    for (int64_t j = 0; j < n; ++j)
      rows.values[(group * buffer + place) * n + j] = x.values[RowOf(x, places, slot) * n + j];
  });
  return {std::move(rows)};
}

Results Combine(const Request& r) {
  const Array &rows = *r.in[0], &places = *r.in[1];
  Array y = r.NewResult(0);
  const int64_t n = Last(y), buffer = rows.dims[2] * rows.dims[3];
  ForEachSlot(places, rows.dims[1], [&](int64_t slot, int64_t group) {
    const int64_t place = Index(places.values[slot], 0, buffer);
    if (place < 0) return;
    for (int64_t j = 0; j < n; ++j)
      y.values[RowOf(y, places, slot) * n + j] += rows.values[(group * buffer + place) * n + j];
  });
  return {std::move(y)};
}

}  // namespace

void AddExpertEvaluators(EvaluatorTable& table) {
  table.Add("softmax", Softmax);
  table.Add("softmax_grad", SoftmaxGrad);
  table.Add("top_k", TopK);
  table.Add("top_k_grad", TopKGrad);
  table.Add("expert_counts", ExpertCounts);
  table.Add("expert_matmul", ExpertMatmul);
  table.Add("expert_matmul_grad", ExpertMatmulGrad);
  table.Add("mul_rows", MulRows);
  table.Add("dot_rows", DotRows);
  table.Add("dispatch_slots", DispatchSlots);
  table.Add("dispatch", Dispatch);
  table.Add("combine", Combine);
}

}  // namespace tacc::interpreter
