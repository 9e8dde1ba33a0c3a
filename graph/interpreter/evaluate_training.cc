#include <algorithm>
#include <cmath>
#include <limits>

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

Results Random(const Request& r) {
  const Array &step = *r.in[0], &sample = *r.in[1];
  const auto draw = r.attr<std::string>("distribution") == "normal" ? DrawnNormal : DrawnUniform;
  Array y = r.NewResult(0);
  const Dims& logical = r.out_logical[0];
  ForEachIndex(y.dims, [&](const Dims& index) {
    if (std::isnan(sample.values[index[0]])) return;  // padding
    int64_t i = 0;                                    // in the sample
    for (size_t d = 1; d < index.size(); ++d) {
      const graph::Range& range = r.out_ranges[0][d];
      if (index[d] >= range.end - range.begin) return;
      const bool is_sequence = d == 1 && r.attr<bool>("sequence");
      i = i * logical[d] + (is_sequence ? r.Position(range, logical[d], index[d]) : range.begin + index[d]);
    }
    y.at(index) = draw(r.attr<int64_t>("seed"), r.attr<int64_t>("key"), i, sample.values[index[0]], step.values[0]);
  });
  return {std::move(y)};
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
  table.Add("random", Random);
}

EvaluatorTable::EvaluatorTable() {
  AddPointwiseEvaluators(*this);
  AddShapeEvaluators(*this);
  AddModelEvaluators(*this);
  AddAttentionEvaluators(*this);
  AddExpertEvaluators(*this);
  AddImageEvaluators(*this);
  AddTrainingEvaluators(*this);
  AddIndexingEvaluators(*this);
  AddAtenEvaluators(*this);
  AddOptimizerEvaluators(*this);
}

absl::StatusOr<Results> EvaluatorTable::Evaluate(const Request& request) const {
  std::string name(request.node->op.name());
  if (request.node->attrs.count("schema") > 0) absl::StrAppend(&name, " ", request.attr<std::string>("schema"));
  auto it = evaluators_.find(name);
  if (it == evaluators_.end()) return absl::UnimplementedError(absl::StrCat("the interpreter has no ", name));
  return it->second(request);
}

}  // namespace tacc::interpreter
