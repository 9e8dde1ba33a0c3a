#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "graph/interpreter/evaluate.h"
#include "graph/interpreter/random_bits.h"

namespace tacc::interpreter {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Results Embedding(const Request& r) {
  const Array &table = *r.in[0], &ids = *r.in[1];
  const graph::Range rows = r.in_ranges[0][0];
  const int64_t n = table.dims[1];
  Array y = r.NewResult(0);
  for (int64_t t = 0; t < ids.size(); ++t) {
    const double id = ids.values[t];
    if (!(id >= rows.begin && id < rows.end)) continue;
    for (int64_t j = 0; j < n; ++j) y.values[t * n + j] = table.at({static_cast<int64_t>(id) - rows.begin, j});
  }
  return {std::move(y)};
}

Results EmbeddingGrad(const Request& r) {
  const Array &dy = *r.in[0], &ids = *r.in[1];
  const graph::Range rows = r.out_ranges[0][0];
  const int64_t n = dy.dims.back();
  Array dtable = r.NewResult(0);
  for (int64_t t = 0; t < ids.size(); ++t) {
    const double id = ids.values[t];
    // An undefined id (padding that was not masked) must not pass unseen.
    if (std::isnan(id)) std::fill(dtable.values.begin(), dtable.values.end(), kNaN);
    if (!(id >= rows.begin && id < rows.end)) continue;
    for (int64_t j = 0; j < n; ++j) dtable.at({static_cast<int64_t>(id) - rows.begin, j}) += dy.values[t * n + j];
  }
  return {std::move(dtable)};
}

Results CrossEntropy(const Request& r) {
  const Array &logits = *r.in[0], &targets = *r.in[1];
  const int64_t n = logits.dims.back();
  Array loss = r.NewResult(0), count = r.NewResult(1), lse = r.NewResult(2);
  for (int64_t t = 0; t < targets.size(); ++t) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; ++j) max = std::max(max, logits.values[t * n + j]);
    for (int64_t j = 0; j < n; ++j) sum += std::exp(logits.values[t * n + j] - max);
    lse.values[t] = max + std::log(sum);
    const double target = targets.values[t];
    if (std::isnan(target)) loss.values[0] = kNaN;
    if (!(target >= 0)) continue;
    loss.values[0] += lse.values[t] - logits.values[t * n + static_cast<int64_t>(target)];
    count.values[0] += 1;
  }
  return {std::move(loss), std::move(count), std::move(lse)};
}

Results LogSumExp(const Request& r) {
  const Array& x = *r.in[0];
  Array y = r.NewResult(0);
  const int64_t n = x.dims.back(), parts = y.dims.back(), part = (n + parts - 1) / parts;
  const graph::Range held = r.in_ranges[0].back();
  const int64_t valid = held.end - held.begin;
  for (int64_t t = 0; t * parts < y.size(); ++t) {
    for (int64_t p = 0; p < parts; ++p) {
      double max = -INFINITY, sum = 0;
      const int64_t end = std::min((p + 1) * part, valid);
      for (int64_t j = p * part; j < end; ++j) max = std::max(max, x.values[t * n + j]);
      for (int64_t j = p * part; j < end; ++j) sum += std::exp(x.values[t * n + j] - (std::isinf(max) ? 0 : max));
      y.values[t * parts + p] = max + std::log(sum);
    }
  }
  return {std::move(y)};
}

Results CrossEntropySum(const Request& r) {
  const Array &logits = *r.in[0], &targets = *r.in[1], &lse = *r.in[2];
  const int64_t n = logits.dims.back();
  const graph::Range vocabulary = r.in_ranges[0].back();
  Array loss = r.NewResult(0), count = r.NewResult(1);
  for (int64_t t = 0; t < targets.size(); ++t) {
    const double target = targets.values[t];
    if (std::isnan(target)) loss.values[0] = kNaN;
    if (!(target >= static_cast<double>(vocabulary.begin) && target < static_cast<double>(vocabulary.end))) continue;
    loss.values[0] += lse.values[t] - logits.values[t * n + static_cast<int64_t>(target) - vocabulary.begin];
    count.values[0] += 1;
  }
  return {std::move(loss), std::move(count)};
}

Results CrossEntropyGrad(const Request& r) {
  const Array &logits = *r.in[0], &targets = *r.in[1], &lse = *r.in[2], &dloss = *r.in[3];
  const int64_t n = logits.dims.back(), first = r.in_ranges[0].back().begin;
  Array dlogits = r.NewResult(0);
  for (int64_t t = 0; t < targets.size(); ++t) {
    if (!(targets.values[t] >= 0)) continue;
    for (int64_t j = 0; j < n; ++j) {
      const double onehot = j + first == static_cast<int64_t>(targets.values[t]) ? 1 : 0;
      dlogits.values[t * n + j] = (std::exp(logits.values[t * n + j] - lse.values[t]) - onehot) * dloss.values[0];
    }
  }
  return {std::move(dlogits)};
}

Results Dropout(const Request& r) {
  const Array &x = *r.in[0], &step = *r.in[1], &sample = *r.in[2];
  const DropoutKey dropout{r.attr<double>("rate"), r.attr<int64_t>("seed"), r.attr<int64_t>("key")};
  Array y = r.NewResult(0);
  const Dims& logical = r.in_logical[0];
  ForEachIndex(x.dims, [&](const Dims& index) {
    if (std::isnan(sample.values[index[0]])) return;  // padding
    int64_t i = 0;                                    // in the sample
    for (size_t d = 1; d < index.size(); ++d) {
      const graph::Range& range = r.in_ranges[0][d];
      if (index[d] >= range.end - range.begin) return;
      i = i * logical[d] + (d == 1 ? r.Position(range, logical[d], index[d]) : range.begin + index[d]);
    }
    y.at(index) = IsKept(dropout, i, sample.values[index[0]], step.values[0]) ? x.at(index) / (1 - dropout.rate) : 0;
  });
  return {std::move(y)};
}

Results SumSquares(const Request& r) {
  Array y = r.NewResult(0);
  for (size_t i = 0; i < r.in.size(); ++i) {
    Dims bounds;
    for (const graph::Range& range : r.in_ranges[i]) bounds.push_back(range.end - range.begin);
    ForEachIndex(bounds, [&](const Dims& index) { y.values[0] += r.in[i]->at(index) * r.in[i]->at(index); });
  }
  return {std::move(y)};
}

Results IsFinite(const Request& r) {
  const bool finite =
      std::all_of(r.in[0]->values.begin(), r.in[0]->values.end(), [](double x) { return std::isfinite(x); });
  return {r.NewResult(0, finite ? 1 : 0)};
}

// As torch.optim.AdamW.
Results AdamW(const Request& r) {
  Results next = {*r.in[0], *r.in[1], *r.in[2]};
  const double lr = r.in[4]->values[0], grad_scale = r.in[5]->values[0], apply = r.in[6]->values[0],
               count = r.in[7]->values[0];
  const double beta1 = r.attr<double>("beta1"), beta2 = r.attr<double>("beta2");
  for (int64_t i = 0; i < next[0].size() && apply != 0; ++i) {
    double &w = next[0].values[i], &m = next[1].values[i], &v = next[2].values[i];
    const double g = r.in[3]->values[i] * grad_scale;
    w *= 1 - lr * r.attr<double>("weight_decay");
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = m / (1 - std::pow(beta1, count)), v_hat = v / (1 - std::pow(beta2, count));
    w -= lr * m_hat / (std::sqrt(v_hat) + r.attr<double>("epsilon"));
  }
  if (r.out_types.size() > 3) next.push_back(next[0]);
  return next;
}

// As transformers' get_*_schedule_with_warmup, down to a floor.
Results LrSchedule(const Request& r) {
  const double step = r.in[0]->values[0], warmup = static_cast<double>(r.attr<int64_t>("warmup_steps"));
  const std::string type = r.attr<std::string>("type");
  double factor = 1;
  if (step < warmup) {
    factor = step / warmup;
  } else if (type != "constant") {
    const double progress =
        std::min(1.0, (step - warmup) / std::max(1.0, static_cast<double>(r.attr<int64_t>("max_steps")) - warmup));
    factor = type == "linear" ? 1 - progress : 0.5 * (1 + std::cos(std::numbers::pi * progress));
    factor = r.attr<double>("min_lr_ratio") + (1 - r.attr<double>("min_lr_ratio")) * factor;
  }
  return {r.NewResult(0, factor * r.attr<double>("learning_rate"))};
}

}  // namespace

void AddTrainingEvaluators(EvaluatorTable& table) {
  table.Add("embedding", Embedding);
  table.Add("embedding_grad", EmbeddingGrad);
  table.Add("cross_entropy", CrossEntropy);
  table.Add("cross_entropy_grad", CrossEntropyGrad);
  table.Add("cross_entropy_sum", CrossEntropySum);
  table.Add("logsumexp", LogSumExp);
  table.Add("dropout", Dropout);
  table.Add("sum_squares", SumSquares);
  table.Add("is_finite", IsFinite);
  table.Add("adamw", AdamW);
  table.Add("lr_schedule", LrSchedule);
}

EvaluatorTable::EvaluatorTable() {
  AddPointwiseEvaluators(*this);
  AddShapeEvaluators(*this);
  AddModelEvaluators(*this);
  AddAttentionEvaluators(*this);
  AddExpertEvaluators(*this);
  AddImageEvaluators(*this);
  AddTrainingEvaluators(*this);
}

absl::StatusOr<Results> EvaluatorTable::Evaluate(const Request& request) const {
  auto it = evaluators_.find(std::string(request.node->op.name()));
  if (it == evaluators_.end())
    return absl::UnimplementedError(absl::StrCat("the interpreter has no ", request.node->op.name()));
  return it->second(request);
}

}  // namespace tacc::interpreter
