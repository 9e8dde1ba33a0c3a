#include <algorithm>
#include <cmath>
#include <vector>

#include "graph/interpreter/evaluate.h"
#include "graph/interpreter/random_bits.h"
#include "graph/ops/attention_operands.h"

namespace tacc::interpreter {
namespace {

// Scores and their bounds of one attention call with its heads apart. Heads are local; ALiBi's slopes are indexed by
// the logical head.
class Scores {
 public:
  Scores(const Request& r, const graph::AttentionOperands& at)
      : r_(r),
        q_(*r.in[at.q]),
        k_(*r.in[at.k]),
        start_(at.document_start >= 0 ? r.in[at.document_start] : nullptr),
        sample_(at.sample >= 0 ? r.in[at.sample] : nullptr),
        step_(at.step >= 0 ? r.in[at.step] : nullptr),
        key_bias_(at.key_bias >= 0 ? r.in[at.key_bias] : nullptr),
        bias_(at.bias >= 0 ? r.in[at.bias] : nullptr),
        queries_(r.in_ranges[at.q][1]),
        keys_(r.in_ranges[at.k][1]),
        num_queries_(r.in_logical[at.q][1]),
        num_keys_(r.in_logical[at.k][1]),
        first_head_(r.in_ranges[at.q][2].begin) {
    if (r.node->attrs.count("alibi_slopes") > 0) slopes_ = r.attr<std::vector<double>>("alibi_slopes");
    if (k_.dims[2] > 0) group_ = q_.dims[2] / k_.dims[2];
  }
  int64_t kv_head(int64_t h) const { return h / group_; }
  // Are these rows logical, not padding?
  bool HasQuery(int64_t i) const { return i < queries_.end - queries_.begin; }
  bool Sees(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (j >= keys_.end - keys_.begin || Bias(b, h, i, j) == -INFINITY) return false;
    const int64_t block = r_.attr<int64_t>("block");
    if (block > 0 && (queries_.begin + i) / block != (keys_.begin + j) / block) return false;
    if (!r_.attr<bool>("causal")) return true;
    const int64_t key = KeyPosition(j), query = QueryPosition(i), window = r_.attr<int64_t>("window");
    if (window > 0 && key <= query - window) return false;
    return key <= query && (start_ == nullptr || static_cast<double>(key) >= start_->at({b, i}));
  }
  bool IsOutweighed(int64_t b, int64_t h, int64_t i, int64_t j) const { return Bias(b, h, i, j) == INFINITY; }
  double at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const size_t logical_head = static_cast<size_t>(first_head_ + h);
    const double slope = logical_head < slopes_.size() ? slopes_[logical_head] : 0;
    const double product = Product(b, h, i, j), cap = r_.attr<double>("softcap");
    const double bias = Bias(b, h, i, j);
    if (bias == INFINITY) return 0;
    return (cap > 0 ? cap * std::tanh(product / cap) : product) +
           slope * static_cast<double>(KeyPosition(j) - QueryPosition(i)) + bias;
  }
  // Of a score with respect to the product of query and key.
  double Derivative(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const double cap = r_.attr<double>("softcap"), scale = r_.attr<double>("scale");
    if (cap == 0) return scale;
    const double capped = std::tanh(Product(b, h, i, j) / cap);
    return scale * (1 - capped * capped);
  }
  // What dropout multiplies the probability with.
  double Kept(int64_t b, int64_t h, int64_t i, int64_t j) const {
    if (sample_ == nullptr || std::isnan(sample_->values[b])) return 1;
    const int64_t element = ((first_head_ + h) * num_queries_ + QueryPosition(i)) * num_keys_ + KeyPosition(j);
    const double rate = r_.attr<double>("dropout");
    return IsKept({rate, r_.attr<int64_t>("dropout_seed"), r_.attr<int64_t>("dropout_key")}, element,
                  sample_->values[b], step_->values[0])
               ? 1 / (1 - rate)
               : 0;
  }

  // [b or 0, h or 0, i, j] of what has the dims of bias.
  std::vector<int64_t> BiasIndex(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return {bias_->dims[0] == 1 ? 0 : b, bias_->dims[1] == 1 ? 0 : h, i, j};
  }

 private:
  // -inf of either hides the key, whatever the other.
  double Bias(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const double of_key = key_bias_ == nullptr ? 0 : key_bias_->at({b, j});
    if (of_key == -INFINITY || bias_ == nullptr) return of_key;
    const double own = bias_->at(BiasIndex(b, h, i, j));
    return own == -INFINITY ? own : of_key + own;
  }
  double Product(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double dot = 0;
    for (int64_t d = 0; d < q_.dims[3]; ++d) dot += q_.at({b, i, h, d}) * k_.at({b, j, kv_head(h), d});
    return dot * r_.attr<double>("scale");
  }
  int64_t QueryPosition(int64_t i) const { return r_.Position(queries_, num_queries_, i); }
  int64_t KeyPosition(int64_t j) const {
    return r_.Position(keys_, num_keys_, j, r_.attr<int64_t>("shift") * r_.attr<int64_t>("block"));
  }

  const Request& r_;
  const Array& q_;
  const Array& k_;
  const Array* start_;
  const Array* sample_;
  const Array* step_;
  const Array* key_bias_;
  const Array* bias_;
  graph::Range queries_, keys_;
  int64_t num_queries_, num_keys_, first_head_;
  int64_t group_ = 1;
  std::vector<double> slopes_;
};

// attention or attention_continue, whose results go on from earlier ones. A sink is such a one too, with a value of 0.
Results AttentionForward(const char* op, const Request& r) {
  const graph::AttentionOperands at = *graph::AttentionOperandsOf(op, r.node->attrs, r.in.size());
  const Array &k = *r.in[1], &v = *r.in[2];
  const Scores scores(r, at);
  Array out = r.NewResult(0), lse = r.NewResult(1);
  ForEachIndex(lse.dims, [&](const Dims& index) {
    const int64_t b = index[0], h = index[1], i = index[2];
    if (!scores.HasQuery(i)) return;
    const double before = at.earlier_lse >= 0 ? r.in[at.earlier_lse]->at(index)
                          : at.sinks >= 0     ? r.in[at.sinks]->values[h]
                                              : -INFINITY;
    double max = before;
    for (int64_t j = 0; j < k.dims[1]; ++j) {
      if (scores.Sees(b, h, i, j)) max = std::max(max, scores.at(b, h, i, j));
    }
    double sum = before == -INFINITY ? 0 : std::exp(before - max);
    for (int64_t j = 0; j < k.dims[1]; ++j) {
      if (scores.Sees(b, h, i, j)) sum += std::exp(scores.at(b, h, i, j) - max);
    }
    lse.at(index) = sum == 0 ? -INFINITY : max + std::log(sum);
    for (int64_t d = 0; d < v.dims[3] && at.earlier_out >= 0 && before != -INFINITY; ++d) {
      out.at({b, i, h, d}) = r.in[at.earlier_out]->at({b, i, h, d}) * std::exp(before - lse.at(index));
    }
    for (int64_t j = 0; j < k.dims[1]; ++j) {
      if (!scores.Sees(b, h, i, j)) continue;
      const double p = std::exp(scores.at(b, h, i, j) - lse.at(index)) * scores.Kept(b, h, i, j);
      for (int64_t d = 0; d < v.dims[3]; ++d) out.at({b, i, h, d}) += p * v.at({b, j, scores.kv_head(h), d});
    }
  });
  return {std::move(out), std::move(lse)};
}

Results Attention(const Request& r) { return AttentionForward("attention", r); }
Results AttentionContinue(const Request& r) { return AttentionForward("attention_continue", r); }

Results AttentionGrad(const Request& r) {
  const Array &dout = *r.in[0], &q = *r.in[1], &k = *r.in[2], &v = *r.in[3], &out = *r.in[4], &lse = *r.in[5];
  const Scores scores(r, *graph::AttentionOperandsOf("attention_grad", r.node->attrs, r.in.size()));
  const int64_t depth = q.dims[3], value_depth = v.dims[3];
  Array dq = r.NewResult(0), dk = r.NewResult(1), dv = r.NewResult(2);
  ForEachIndex(lse.dims, [&](const Dims& index) {
    const int64_t b = index[0], h = index[1], i = index[2], kv = scores.kv_head(h);
    if (!scores.HasQuery(i)) return;
    double delta = 0;
    for (int64_t d = 0; d < value_depth; ++d) delta += dout.at({b, i, h, d}) * out.at({b, i, h, d});
    for (int64_t j = 0; j < k.dims[1]; ++j) {
      if (!scores.Sees(b, h, i, j)) continue;
      const double p = std::exp(scores.at(b, h, i, j) - lse.at(index));
      double dp = 0;
      for (int64_t d = 0; d < value_depth; ++d) dp += dout.at({b, i, h, d}) * v.at({b, j, kv, d});
      const double kept = scores.Kept(b, h, i, j), ds = p * (dp * kept - delta) * scores.Derivative(b, h, i, j);
      for (int64_t d = 0; d < depth; ++d) {
        dq.at({b, i, h, d}) += ds * k.at({b, j, kv, d});
        dk.at({b, j, kv, d}) += ds * q.at({b, i, h, d});
      }
      for (int64_t d = 0; d < value_depth; ++d) dv.at({b, j, kv, d}) += p * kept * dout.at({b, i, h, d});
    }
  });
  return {std::move(dq), std::move(dk), std::move(dv)};
}

Results AttentionBiasGrad(const Request& r) {
  const Array &dout = *r.in[0], &k = *r.in[2], &v = *r.in[3], &out = *r.in[4], &lse = *r.in[5];
  const Scores scores(r, *graph::AttentionOperandsOf("attention_bias_grad", r.node->attrs, r.in.size()));
  const bool yields = r.attr<bool>("bias_yields");
  Array dbias = r.NewResult(0);
  ForEachIndex(lse.dims, [&](const Dims& index) {
    const int64_t b = index[0], h = index[1], i = index[2], kv = scores.kv_head(h);
    if (!scores.HasQuery(i)) return;
    double delta = 0;
    for (int64_t d = 0; d < v.dims[3]; ++d) delta += dout.at({b, i, h, d}) * out.at({b, i, h, d});
    for (int64_t j = 0; j < k.dims[1]; ++j) {
      if (!scores.Sees(b, h, i, j) || (yields && scores.IsOutweighed(b, h, i, j))) continue;
      double dp = 0;
      for (int64_t d = 0; d < v.dims[3]; ++d) dp += dout.at({b, i, h, d}) * v.at({b, j, kv, d});
      const double p = std::exp(scores.at(b, h, i, j) - lse.at(index));
      dbias.at(scores.BiasIndex(b, h, i, j)) += p * (dp * scores.Kept(b, h, i, j) - delta);
    }
  });
  return {std::move(dbias)};
}

// The call of attention (operand `joined` is q) in which q, k and v are one operand, with each by itself.
struct HeadsApart {
  Request request;
  std::vector<Array> parts;

  HeadsApart(const Request& r, size_t joined) : request(r) {
    const int64_t all = r.in[joined]->dims[2], kv = all / (r.attr<int64_t>("group") + 2), heads = all - 2 * kv;
    parts = {Entries(*r.in[joined], 2, 0, heads), Entries(*r.in[joined], 2, heads, heads + kv),
             Entries(*r.in[joined], 2, heads + kv, all)};
    const auto insert = [&](auto& list) { list.insert(list.begin() + joined, 2, list[joined]); };
    insert(request.in);
    insert(request.in_ranges);
    insert(request.in_logical);
    for (size_t i = 0; i < 3; ++i) request.in[joined + i] = &parts[i];
    // Each rank has as many of each kind.
    graph::Range& q_heads = request.in_ranges[joined][2];
    q_heads.begin = q_heads.begin / all * heads;
    q_heads.end = q_heads.begin + heads;
    if (joined == 0) return;
    request.out_types.assign(3, r.out_types[0]);
    for (size_t i = 0; i < 3; ++i) request.out_types[i].dims = parts[i].dims;
  }
};

Results AttentionJoined(const Request& r) { return Attention(HeadsApart(r, 0).request); }

Results AttentionJoinedGrad(const Request& r) {
  const HeadsApart apart(r, 1);
  Array joined = r.NewResult(0);
  int64_t first = 0;
  for (const Array& part : AttentionGrad(apart.request)) {
    ForEachIndex(part.dims, [&](const Dims& index) {
      joined.at({index[0], index[1], first + index[2], index[3]}) = part.at(index);
    });
    first += part.dims[2];
  }
  return {std::move(joined)};
}

}  // namespace

void AddAttentionEvaluators(EvaluatorTable& table) {
  table.Add("attention", Attention);
  table.Add("attention_bias_grad", AttentionBiasGrad);
  table.Add("attention_continue", AttentionContinue);
  table.Add("attention_grad", AttentionGrad);
  table.Add("attention_joined", AttentionJoined);
  table.Add("attention_joined_grad", AttentionJoinedGrad);
}

}  // namespace tacc::interpreter
