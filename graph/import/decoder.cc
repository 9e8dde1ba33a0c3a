#include "graph/import/decoder.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"

namespace tacc::graph {
namespace {

std::string Join(const std::string& a, const std::string& b) { return b.empty() ? a : absl::StrCat(a, ".", b); }

// The module of a weight: its name without the last component.
std::string ModuleOf(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

// A dim of a weight: its extent, and what it is (State::axes); "" is nothing that a layout splits.
struct WeightDim {
  int64_t size;
  const char* axis;
};
using WeightDims = std::vector<WeightDim>;

int64_t Product(const WeightDims& dims) {
  int64_t product = 1;
  for (const WeightDim& d : dims) product *= d.size;
  return product;
}

// The text of an einsum "x,oi->y" whose weight has its dims `i` before its `num_out` dims `o`.
std::string WithTransposedWeight(const std::string& spec, size_t num_out) {
  const size_t begin = spec.find(',') + 1, end = spec.find("->");
  const std::string weight = spec.substr(begin, end - begin);
  return absl::StrCat(spec.substr(0, begin), weight.substr(num_out), weight.substr(0, num_out), spec.substr(end));
}

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderSpec& spec, const DecoderBuildOptions& options, const OpTable& ops)
      : spec_(spec), options_(options), b_(graph_, ops) {}

  absl::StatusOr<Graph> Build() {
    graph_.name = "forward";
    const Dims tokens_dims = {options_.batch, options_.seq_len};
    tokens_ = b_.Leaf(Op::kInput, "tokens", {DType::kI32, tokens_dims});
    if (options_.outputs == DecoderBuildOptions::kLoss)
      targets_ = b_.Leaf(Op::kInput, "targets", {DType::kI32, tokens_dims});
    if (spec_.has_dropout()) step_ = b_.Leaf(Op::kInput, "step", {DType::kI64, {}});
    if (spec_.has_dropout() || HasAuxLoss()) sample_ = b_.Leaf(Op::kInput, "sample", {DType::kI64, {options_.batch}});
    ValueId x = Embed();
    if (spec_.rotary.has_value()) AddTables(*spec_.rotary, DecoderSpec::Layer::kRotary);
    if (spec_.local_rotary.has_value()) AddTables(*spec_.local_rotary, DecoderSpec::Layer::kLocalRotary);
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) x = Layer(layer, x);
    const ValueId logits = Head(Norm(spec_.names.final_norm, spec_.norm, x, Hidden()));
    if (options_.outputs == DecoderBuildOptions::kLogits) {
      b_.End(Op::kOutput, "logits", logits);
    } else {
      const std::vector<ValueId> loss = b_.AddMany("cross_entropy", {logits, targets_}, {}, 3);
      b_.End(Op::kOutput, "loss", WithAuxLoss(loss[0], loss[1]));
      b_.End(Op::kOutput, "target_tokens", loss[1]);
    }
    TACC_RETURN_IF_ERROR(b_.status());
    return std::move(graph_);
  }

 private:
  // A weight under its name in the files. `stored` is its shape there.
  ValueId Param(const std::string& name, const WeightDims& dims, const Dims& stored, const std::string& init) {
    Dims sizes;
    std::vector<std::string> axes;
    for (const WeightDim& d : dims) {
      sizes.push_back(d.size);
      axes.push_back(d.axis);
    }
    Attrs attrs = {{"axes", axes}, {"init", init}};
    if (stored != sizes) attrs["stored"] = stored;
    return b_.Leaf(Op::kParam, name, {DType::kF32, std::move(sizes)}, std::move(attrs));
  }

  // The cosines and sines of layers with these positions, if there are any.
  void AddTables(const Rotary& rotary, DecoderSpec::Layer::Positions positions) {
    bool is_used = false;
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) is_used |= spec_.LayerAt(layer).positions == positions;
    if (!is_used) return;
    b_.SetModule(ModuleOf(spec_.names.embedding));
    tables_[positions] = b_.AddMany(
        "rope_table", {},
        {{"inv_freq", rotary.inv_freq}, {"attention_scale", rotary.attention_scale}, {"length", options_.seq_len}}, 2);
  }

  WeightDim Hidden() const { return {spec_.hidden_size, "embed"}; }
  WeightDim Heads() const { return {spec_.num_heads, "heads"}; }
  WeightDim HeadDim() const { return {spec_.head_dim, "head_dim"}; }
  WeightDim Inner() const { return {spec_.intermediate_size, "mlp"}; }
  WeightDim Vocabulary() const { return {spec_.vocab_rows, "vocab"}; }

  // x times the matrix NAME.weight, by `spec`; `out` are the dims it makes, `in` those it takes, both as the logical
  // weight has them. `rows`: "[BEGIN:END]" where it is only those rows of the stored matrix.
  ValueId Project(const std::string& name, const std::string& spec, ValueId x, const WeightDims& out,
                  const WeightDims& in, Bias bias, const std::string& init, const std::string& rows = "") {
    b_.SetModule(name);
    const bool is_transposed = spec_.transposed_matrices && name != spec_.names.head;
    const WeightDims &first = is_transposed ? in : out, &second = is_transposed ? out : in;
    WeightDims dims = first;
    dims.insert(dims.end(), second.begin(), second.end());
    const ValueId weight = Param(absl::StrCat(name, ".weight", rows), dims, {Product(first), Product(second)}, init);
    ValueId y = b_.Einsum(is_transposed ? WithTransposedWeight(spec, out.size()) : spec, x, weight);
    if (bias == Bias::kPresent)
      y = b_.Add("add", {y, Param(absl::StrCat(name, ".bias", rows), out, {Product(out)}, "zeros")});
    return y;
  }

  // Over the last dim of x, which `dim` is.
  ValueId Norm(const std::string& name, const NormSpec& norm, ValueId x, const WeightDim& dim) {
    b_.SetModule(name);
    const Attrs attrs = {{"eps", norm.eps}};
    ValueId weight = kNoValue, bias = kNoValue;
    const bool one_plus = norm.affine == Affine::kOnePlusWeight;
    if (norm.affine != Affine::kNone)
      weight = Param(absl::StrCat(name, ".weight"), {dim}, {dim.size}, one_plus ? "zeros" : "ones");
    if (one_plus) weight = b_.Add("add_scalar", {weight}, {{"value", 1.0}});
    if (norm.affine == Affine::kWeightBias) bias = Param(absl::StrCat(name, ".bias"), {dim}, {dim.size}, "zeros");
    if (norm.kind == NormSpec::kRms) {
      if (weight == kNoValue) weight = b_.Constant(1.0, {DType::kF32, {dim.size}});
      const ValueId y = b_.AddMany("rms_norm", {x, weight}, attrs, 2)[0];
      return bias == kNoValue ? y : b_.Add("add", {y, bias});
    }
    std::vector<ValueId> operands = {x};
    if (weight != kNoValue) operands.push_back(weight);
    if (bias != kNoValue) operands.push_back(bias);
    return b_.AddMany("layer_norm", operands, attrs, 3)[0];
  }

  ValueId Dropout(ValueId x, double rate) {
    if (rate == 0) return x;
    return b_.Add("dropout", {x, step_, sample_},
                  {{"rate", rate}, {"key", num_dropouts_++}, {"seed", options_.dropout_seed}});
  }

  ValueId Embed() {
    const DecoderNames& names = spec_.names;
    b_.SetModule(names.embedding);
    const std::string& stored_name = spec_.stored_as_head ? names.head : names.embedding;
    embedding_ = Param(absl::StrCat(stored_name, ".weight"), {Vocabulary(), Hidden()},
                       {spec_.vocab_rows, spec_.hidden_size}, spec_.init.embedding);
    ValueId x = b_.Add("embedding", {embedding_, tokens_});
    x = Scaled(x, spec_.embedding_scale);
    if (spec_.embedding_norm.has_value()) x = Norm(names.embedding_norm, *spec_.embedding_norm, x, Hidden());
    if (spec_.learned_positions > 0) {
      b_.SetModule(names.positions);
      const ValueId table = Param(absl::StrCat(names.positions, ".weight"), {{spec_.learned_positions, ""}, Hidden()},
                                  {spec_.learned_positions, spec_.hidden_size}, spec_.init.positions);
      const ValueId positions = b_.Add("positions", {}, {{"length", options_.seq_len}});
      x = b_.Add("add", {x, b_.Add("embedding", {table, positions})});
    }
    b_.SetModule(names.embedding);
    return Dropout(x, spec_.embedding_dropout);
  }

  ValueId Layer(int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const std::string path = spec_.LayerPath(layer);
    if (spec_.branches != DecoderSpec::kInTurn) return ParallelLayer(path, layer, x);
    x = Branch(path, names.attention_norm, names.attention_post_norm, x,
               [&](ValueId h) { return Attention(path, layer, h); });
    return Branch(path, names.mlp_norm, names.mlp_post_norm, x, [&](ValueId h) { return Mlp(path, layer, h); });
  }

  // x plus attention and the MLP, both of x.
  ValueId ParallelLayer(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const ValueId h = Norm(Join(path, names.attention_norm), spec_.norm, x, Hidden());
    const ValueId attention = Attention(path, layer, h);
    const ValueId mlp =
        Mlp(path, layer, names.mlp_norm.empty() ? h : Norm(Join(path, names.mlp_norm), spec_.norm, x, Hidden()));
    b_.SetModule(path);
    if (spec_.branches == DecoderSpec::kParallelSum)
      return b_.Add("add", {x, Dropout(b_.Add("add", {attention, mlp}), spec_.residual_dropout)});
    for (ValueId branch : {attention, mlp}) x = b_.Add("add", {x, Dropout(branch, spec_.residual_dropout)});
    return x;
  }

  // x + dropout(post_norm(branch(norm(x)))), or what the family makes of it.
  template <typename F>
  ValueId Branch(const std::string& path, const std::string& norm, const std::string& post_norm, ValueId x, F branch) {
    const ValueId h = norm.empty() ? x : Norm(Join(path, norm), spec_.norm, x, Hidden());
    ValueId y = branch(h);
    if (!post_norm.empty()) y = Norm(Join(path, post_norm), spec_.norm, y, Hidden());
    b_.SetModule(path);
    const ValueId residual = spec_.residual_from == DecoderSpec::kFromNorm ? h : x;
    return b_.Add("add", {residual, Scaled(Dropout(y, spec_.residual_dropout), spec_.residual_scale)});
  }

  ValueId Scaled(ValueId x, double factor) { return factor == 1.0 ? x : b_.Scale(x, factor); }

  // Entry `index` of the dim, which is dropped.
  ValueId Entry(ValueId x, int64_t dim, int64_t index) {
    const ValueId y = b_.Slice(x, dim, index, index + 1);
    Dims dims = b_.type(y).dims;
    if (dim < static_cast<int64_t>(dims.size())) dims.erase(dims.begin() + dim);  // unless there was an error
    return b_.Reshape(y, dims);
  }

  struct Qkv {
    ValueId q, k, v;
  };

  Qkv ProjectQkv(const std::string& path, ValueId x) {
    const DecoderNames& names = spec_.names;
    const WeightDim kv_heads = {spec_.num_kv_heads, "kv_heads"};
    const std::string& init = spec_.init.input;
    if (spec_.qkv_layout == DecoderSpec::kSeparate) {
      auto project = [&](const std::string& name, const WeightDim& heads) {
        return Clip(
            Project(Join(path, name), "bsk,hdk->bshd", x, {heads, HeadDim()}, {Hidden()}, spec_.qkv_bias, init));
      };
      const ValueId q = project(names.q, Heads());
      const ValueId k = project(names.k, kv_heads);
      return {q, k, project(names.v, kv_heads)};
    }
    auto project = [&](const char* spec, const WeightDims& out, const std::string& rows = "") {
      return Clip(Project(Join(path, names.qkv), spec, x, out, {Hidden()}, spec_.qkv_bias, init, rows));
    };
    if (spec_.qkv_layout == DecoderSpec::kInterleaved) {
      const ValueId qkv = project("bsk,htdk->bshtd", {Heads(), {3, ""}, HeadDim()});
      return {Entry(qkv, 3, 0), Entry(qkv, 3, 1), Entry(qkv, 3, 2)};
    }
    if (spec_.qkv_layout == DecoderSpec::kGrouped) {
      const int64_t group = spec_.num_heads / spec_.num_kv_heads;
      const ValueId qkv = project("bsk,htdk->bshtd", {kv_heads, {group + 2, ""}, HeadDim()});
      const ValueId q =
          b_.Reshape(b_.Slice(qkv, 3, 0, group), {options_.batch, options_.seq_len, spec_.num_heads, spec_.head_dim});
      return {q, Entry(qkv, 3, group), Entry(qkv, 3, group + 1)};
    }
    if (kv_heads.size == spec_.num_heads) {
      const ValueId qkv = project("bsk,thdk->bsthd", {{3, ""}, Heads(), HeadDim()});
      return {Entry(qkv, 2, 0), Entry(qkv, 2, 1), Entry(qkv, 2, 2)};
    }
    // No reshape of these rows has q, k and v of the same group in one rectangle: they are three weights.
    int64_t begin = 0;
    auto part = [&](const WeightDim& heads) {
      const int64_t end = begin + heads.size * spec_.head_dim;
      const std::string rows = absl::StrCat("[", begin, ":", end, "]");
      begin = end;
      return project("bsk,hdk->bshd", {heads, HeadDim()}, rows);
    };
    const ValueId q = part(Heads());
    const ValueId k = part(kv_heads);
    return {q, k, part(kv_heads)};
  }

  ValueId Clip(ValueId x, DecoderSpec::ClipPlace place = DecoderSpec::kBeforeNorm) {
    if (!spec_.clip_qkv.has_value() || spec_.clip_place != place) return x;
    return b_.Add("clamp", {x}, {{"min", -*spec_.clip_qkv}, {"max", *spec_.clip_qkv}});
  }

  ValueId QkNorm(const std::string& name, ValueId x) {
    if (!spec_.qk_norm.has_value()) return x;
    if (spec_.qk_norm_over == DecoderSpec::kHeadDim) return Norm(name, *spec_.qk_norm, x, HeadDim());
    const Dims dims = b_.type(x).dims;
    if (dims.size() != 4) return x;  // there was an error
    b_.SetModule(name);
    const ValueId flat = b_.Reshape(x, {dims[0], dims[1], dims[2] * dims[3]});
    return b_.Reshape(Norm(name, *spec_.qk_norm, flat, {dims[2] * dims[3], ""}), dims);
  }

  ValueId Attention(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    Qkv qkv = ProjectQkv(path, x);
    qkv.q = QkNorm(Join(path, names.q_norm), qkv.q);
    qkv.k = QkNorm(Join(path, names.k_norm), qkv.k);
    b_.SetModule(Join(path, names.attention));
    for (ValueId* x : {&qkv.q, &qkv.k, &qkv.v}) *x = Clip(*x, DecoderSpec::kAfterNorm);
    const DecoderSpec::Layer own = spec_.LayerAt(layer);
    if (const auto table = tables_.find(own.positions); table != tables_.end()) {
      const Rotary& rotary = own.positions == DecoderSpec::Layer::kRotary ? *spec_.rotary : *spec_.local_rotary;
      const std::string style = rotary.pairs == Rotary::kHalves ? "half" : "interleaved";
      for (ValueId* x : {&qkv.q, &qkv.k})
        *x = b_.Add("rotary", {*x, table->second[0], table->second[1]}, {{"style", style}});
    }
    double scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
    if (spec_.scaled_by_layer) scale /= static_cast<double>(layer + 1);
    std::vector<ValueId> operands = {qkv.q, qkv.k, qkv.v};
    Attrs attrs = {{"causal", true}, {"scale", scale}};
    if (!spec_.alibi_slopes.empty()) attrs["alibi_slopes"] = spec_.alibi_slopes;
    if (own.window > 0) attrs["window"] = own.window;
    if (spec_.attention_softcap > 0) attrs["softcap"] = spec_.attention_softcap;
    if (spec_.attention_dropout > 0) {
      attrs["dropout"] = spec_.attention_dropout;
      attrs["dropout_key"] = num_dropouts_++;
      attrs["dropout_seed"] = options_.dropout_seed;
      operands.insert(operands.end(), {step_, sample_});
    }
    const ValueId out = b_.AddMany("attention", std::move(operands), std::move(attrs), 2)[0];
    return Project(Join(path, names.attention_out), "bshd,nhd->bsn", out, {Hidden()}, {Heads(), HeadDim()},
                   spec_.attention_out_bias, spec_.init.attention_out(layer));
  }

  ValueId Activate(ValueId x) {
    switch (spec_.activation) {
      case DecoderSpec::kSilu:
        return b_.Add("silu", {x});
      case DecoderSpec::kGelu:
        return b_.Add("gelu", {x}, {{"approximate", std::string("none")}});
      case DecoderSpec::kGeluTanh:
        return b_.Add("gelu", {x}, {{"approximate", std::string("tanh")}});
      case DecoderSpec::kRelu:
        return b_.Add("relu", {x});
    }
    return x;
  }

  ValueId Gate(ValueId gate, ValueId up) {
    if (spec_.activation == DecoderSpec::kSilu) return b_.Add("swiglu", {gate, up});
    return b_.Add("mul", {Activate(gate), up});
  }

  // The stack of the experts' matrices NAME.weight.
  ValueId ExpertWeights(const std::string& name, const WeightDim& out, const WeightDim& in, const std::string& init) {
    b_.SetModule(ModuleOf(ModuleOf(name)));
    const int64_t num_experts = spec_.experts->num_experts;
    return Param(absl::StrCat(name, ".weight"), {{num_experts, "experts"}, out, in}, {num_experts, out.size, in.size},
                 init);
  }

  // The experts of each token, whose outputs are summed. They are scaled before the last product, which is as well and
  // leaves less to keep.
  ValueId Experts(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const ExpertsSpec& experts = *spec_.experts;
    const Attrs attrs = {{"num_experts", experts.num_experts}};
    const WeightDim inner = {experts.intermediate_size, "mlp"};
    const ValueId logits = Project(Join(path, names.router), "bsk,nk->bsn", x, {{experts.num_experts, ""}}, {Hidden()},
                                   Bias::kNone, spec_.init.input);
    const ValueId probabilities = b_.Add("softmax", {logits});
    Attrs top_k = {{"k", experts.experts_per_token}};
    if (experts.weights == ExpertsSpec::kNormalized) top_k["normalize"] = true;
    const std::vector<ValueId> chosen = b_.AddMany("top_k", {probabilities}, std::move(top_k), 2);
    const ValueId weights = chosen[0], ids = chosen[1];
    if (HasAuxLoss()) {
      Attrs counted = attrs;
      counted["per_sample"] = true;
      AddTo(b_.Add("expert_counts", {ids}, std::move(counted)), &expert_counts_);
      AddTo(b_.Add("reduce_sum", {probabilities}, {{"dims", std::vector<int64_t>{1}}}), &probability_sums_);
    }
    auto product = [&](const std::string& name) {
      const ValueId w = ExpertWeights(Join(path, name), inner, Hidden(), spec_.init.input);
      return b_.Add("expert_matmul", {x, ids, w}, attrs);
    };
    const ValueId gate = product(names.expert_gate);
    const ValueId h = b_.Add("mul_rows", {Gate(gate, product(names.expert_up)), weights});
    const ValueId w = ExpertWeights(Join(path, names.expert_down), Hidden(), inner, spec_.init.down(layer));
    Attrs summed = attrs;
    summed["sum_slots"] = true;
    return b_.Add("expert_matmul", {h, ids, w}, std::move(summed));
  }

  void AddTo(ValueId value, ValueId* sum) { *sum = *sum == kNoValue ? value : b_.Add("add", {*sum, value}); }

  // The load-balancing loss, times the number of targets, by which the sum of losses is divided in the end.
  // Source: Fedus et al., Switch Transformers, arXiv 2101.03961, equations 4 to 6; over all layers as transformers has
  // it.
  ValueId WithAuxLoss(ValueId loss, ValueId num_targets) {
    if (expert_counts_ == kNoValue) return loss;
    const ExpertsSpec& experts = *spec_.experts;
    int64_t num_layers = 0;
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) num_layers += HasExperts(layer) ? 1 : 0;
    const auto sum = [&](ValueId x) { return b_.Add("reduce_sum", {x}, {{"dims", std::vector<int64_t>{0}}}); };
    // 1 of a sample, 0 of padding, whose number is -1.
    const ValueId is_sample = b_.Add("clamp", {b_.Add("add_scalar", {b_.Cast(sample_, DType::kF32)}, {{"value", 1.0}})},
                                     {{"min", 0.0}, {"max", 1.0}});
    const ValueId rows = b_.Scale(sum(is_sample), static_cast<double>(num_layers * options_.seq_len));
    const auto mean = [&](ValueId of_samples) {
      const ValueId total = sum(b_.Add("mul_rows", {of_samples, is_sample}));
      return b_.Add(
          "div",
          {total, b_.Add("broadcast", {rows},
                         {{"shape", std::vector<int64_t>{experts.num_experts}}, {"dims", std::vector<int64_t>{}}})});
    };
    const ValueId products = b_.Add("mul", {mean(expert_counts_), mean(probability_sums_)});
    const ValueId aux = b_.Scale(sum(products), experts.aux_loss_coef * static_cast<double>(experts.num_experts));
    return b_.Add("add", {loss, b_.Add("mul", {aux, num_targets})});
  }

  bool HasAuxLoss() const {
    return options_.outputs == DecoderBuildOptions::kLoss && spec_.experts.has_value() &&
           spec_.experts->aux_loss_coef != 0;
  }

  bool HasExperts(int64_t layer) const {
    return spec_.experts.has_value() && spec_.experts->dense_layers.count(layer) == 0;
  }

  ValueId Mlp(const std::string& path, int64_t layer, ValueId x) {
    if (HasExperts(layer)) return Experts(path, layer, x);
    const DecoderNames& names = spec_.names;
    const WeightDims in = {Hidden()};
    ValueId h = kNoValue;
    if (spec_.mlp_kind == DecoderSpec::kPlain) {
      h = Project(Join(path, names.up), "bsk,nk->bsn", x, {Inner()}, in, spec_.mlp_bias, spec_.init.input);
      b_.SetModule(Join(path, names.mlp));
      h = Activate(h);
    } else if (spec_.mlp_kind != DecoderSpec::kGated) {
      const ValueId both = Project(Join(path, names.fused_mlp), "bsk,tik->bsti", x, {{2, ""}, Inner()}, in,
                                   spec_.mlp_bias, spec_.init.input);
      const int64_t gate_index = spec_.mlp_kind == DecoderSpec::kGateUp ? 0 : 1;
      const ValueId up = Entry(both, 2, 1 - gate_index);
      const ValueId gate = Entry(both, 2, gate_index);
      b_.SetModule(Join(path, names.mlp));
      h = Gate(gate, up);
    } else {
      const ValueId gate =
          Project(Join(path, names.gate), "bsk,nk->bsn", x, {Inner()}, in, spec_.mlp_bias, spec_.init.input);
      const ValueId up =
          Project(Join(path, names.up), "bsk,nk->bsn", x, {Inner()}, in, spec_.mlp_bias, spec_.init.input);
      b_.SetModule(Join(path, names.mlp));
      h = Gate(gate, up);
    }
    return Project(Join(path, names.down), "bsk,nk->bsn", h, {Hidden()}, {Inner()}, spec_.mlp_bias,
                   spec_.init.down(layer));
  }

  ValueId Head(ValueId x) {
    const std::string& name = spec_.names.head;
    ValueId logits = kNoValue;
    if (spec_.head == DecoderSpec::kOwnHead) {
      logits = Project(name, "bsk,nk->bsn", x, {Vocabulary()}, {Hidden()}, spec_.head_bias, spec_.init.head);
    } else {
      b_.SetModule(name);
      ValueId weight = embedding_;
      if (spec_.head == DecoderSpec::kNormalizedHead) {
        weight = Param(absl::StrCat(name, ".weight"), {Vocabulary(), Hidden()}, {spec_.vocab_rows, spec_.hidden_size},
                       spec_.init.head);
        weight = b_.AddMany("l2_normalize", {weight}, {{"eps", 1e-12}}, 2)[0];
      }
      logits = b_.Einsum("bsk,nk->bsn", x, weight);
    }
    logits = Scaled(logits, spec_.logit_scale);
    if (spec_.logit_softcap == 0) return logits;
    return b_.Scale(b_.Add("tanh", {b_.Scale(logits, 1 / spec_.logit_softcap)}), spec_.logit_softcap);
  }

  const DecoderSpec& spec_;
  const DecoderBuildOptions& options_;
  Graph graph_;
  Builder b_;
  ValueId tokens_ = kNoValue, targets_ = kNoValue, step_ = kNoValue, sample_ = kNoValue;
  std::map<DecoderSpec::Layer::Positions, std::vector<ValueId>> tables_;  // cosines and sines
  ValueId embedding_ = kNoValue;
  ValueId expert_counts_ = kNoValue, probability_sums_ = kNoValue;  // over layers
  int64_t num_dropouts_ = 0;
};

}  // namespace

std::string DecoderSpec::LayerPath(int64_t layer) const {
  return absl::StrReplaceAll(names.layer, {{"{layer}", absl::StrCat(layer)},
                                           {"{group}", absl::StrCat(layer / layers_per_group)},
                                           {"{member}", absl::StrCat(layer % layers_per_group)}});
}

absl::StatusOr<Graph> BuildDecoder(const DecoderSpec& spec, const DecoderBuildOptions& options, const OpTable& ops) {
  return DecoderBuilder(spec, options, ops).Build();
}

}  // namespace tacc::graph
