#include "graph/import/decoder.h"

#include <cmath>

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

int64_t Product(const Dims& dims) {
  int64_t product = 1;
  for (int64_t d : dims) product *= d;
  return product;
}

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderSpec& spec, const DecoderBuildOptions& options, const OpTable& ops)
      : spec_(spec), options_(options), b_(graph_, ops) {}

  absl::StatusOr<Graph> Build() {
    graph_.name = "forward";
    const Dims tokens_dims = {options_.batch, options_.seq_len};
    tokens_ = b_.Leaf("input", "tokens", {DType::kI32, tokens_dims});
    if (options_.outputs == DecoderBuildOptions::kLoss)
      targets_ = b_.Leaf("input", "targets", {DType::kI32, tokens_dims});
    if (spec_.has_dropout()) {
      step_ = b_.Leaf("input", "step", {DType::kI64, {}});
      sample_ = b_.Leaf("input", "sample", {DType::kI64, {options_.batch}});
    }
    ValueId x = Embed();
    if (spec_.rotary.has_value()) {
      b_.SetModule(ModuleOf(spec_.names.embedding));
      const std::vector<ValueId> table = b_.AddMany("rope_table", {},
                                                    {{"inv_freq", spec_.rotary->inv_freq},
                                                     {"attention_scale", spec_.rotary->attention_scale},
                                                     {"length", options_.seq_len}},
                                                    2);
      cos_ = table[0];
      sin_ = table[1];
    }
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) x = Layer(layer, x);
    const ValueId logits = Head(Norm(spec_.names.final_norm, spec_.norm, x));
    if (options_.outputs == DecoderBuildOptions::kLogits) {
      b_.End("output", "logits", logits);
    } else {
      const std::vector<ValueId> loss = b_.AddMany("cross_entropy", {logits, targets_}, {}, 3);
      b_.End("output", "loss", loss[0]);
      b_.End("output", "target_tokens", loss[1]);
    }
    TACC_RETURN_IF_ERROR(b_.status());
    return std::move(graph_);
  }

 private:
  // A weight under its name in the files. `stored` is its shape there.
  ValueId Param(const std::string& name, Dims dims, const Dims& stored, const std::string& init) {
    Attrs attrs = {{"init", init}};
    if (stored != dims) attrs["stored"] = stored;
    return b_.Leaf("param", name, {DType::kF32, std::move(dims)}, std::move(attrs));
  }

  // x times the matrix NAME.weight, by `spec`; `out` are the dims it makes, `in` those it takes, both as the logical
  // weight has them.
  ValueId Project(const std::string& name, const std::string& spec, ValueId x, const Dims& out, const Dims& in,
                  Bias bias, const std::string& init) {
    b_.SetModule(name);
    Dims dims = out;
    dims.insert(dims.end(), in.begin(), in.end());
    const ValueId weight = Param(absl::StrCat(name, ".weight"), dims, {Product(out), Product(in)}, init);
    ValueId y = b_.Einsum(spec, x, weight);
    if (bias == Bias::kPresent)
      y = b_.Add("add", {y, Param(absl::StrCat(name, ".bias"), out, {Product(out)}, "zeros")});
    return y;
  }

  ValueId Norm(const std::string& name, const NormSpec& norm, ValueId x) {
    b_.SetModule(name);
    const Dims dims = {b_.type(x).dims.empty() ? 0 : b_.type(x).dims.back()};
    const Attrs attrs = {{"eps", norm.eps}};
    ValueId weight = kNoValue, bias = kNoValue;
    if (norm.affine != Affine::kNone) weight = Param(absl::StrCat(name, ".weight"), dims, dims, "ones");
    if (norm.affine == Affine::kWeightBias) bias = Param(absl::StrCat(name, ".bias"), dims, dims, "zeros");
    if (norm.kind == NormSpec::kRms) {
      if (weight == kNoValue) weight = b_.Constant(1.0, {DType::kF32, dims});
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
    const Dims dims = {spec_.vocab_rows, spec_.hidden_size};
    embedding_ = Param(absl::StrCat(names.embedding, ".weight"), dims, dims, spec_.init.embedding);
    ValueId x = b_.Add("embedding", {embedding_, tokens_});
    x = Scaled(x, spec_.embedding_scale);
    if (spec_.embedding_norm.has_value()) x = Norm(names.embedding_norm, *spec_.embedding_norm, x);
    if (spec_.learned_positions > 0) {
      b_.SetModule(names.positions);
      const Dims table_dims = {spec_.learned_positions, spec_.hidden_size};
      const ValueId table =
          Param(absl::StrCat(names.positions, ".weight"), table_dims, table_dims, spec_.init.positions);
      x = b_.Add("add", {x, b_.Slice(table, 0, 0, options_.seq_len)});
    }
    b_.SetModule(names.embedding);
    return Dropout(x, spec_.embedding_dropout);
  }

  ValueId Layer(int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const std::string path = spec_.LayerPath(layer);
    x = Branch(path, names.attention_norm, names.attention_post_norm, x,
               [&](ValueId h) { return Attention(path, layer, h); });
    return Branch(path, names.mlp_norm, names.mlp_post_norm, x, [&](ValueId h) { return Mlp(path, layer, h); });
  }

  // x + dropout(post_norm(branch(norm(x)))), or what the family makes of it.
  template <typename F>
  ValueId Branch(const std::string& path, const std::string& norm, const std::string& post_norm, ValueId x, F branch) {
    const ValueId h = norm.empty() ? x : Norm(Join(path, norm), spec_.norm, x);
    ValueId y = branch(h);
    if (!post_norm.empty()) y = Norm(Join(path, post_norm), spec_.norm, y);
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
    const int64_t heads = spec_.num_heads, kv_heads = spec_.num_kv_heads, d = spec_.head_dim;
    const Dims in = {spec_.hidden_size};
    const std::string& init = spec_.init.input;
    if (spec_.qkv_layout == DecoderSpec::kSeparate) {
      auto project = [&](const std::string& name, int64_t h) {
        return Clip(Project(Join(path, name), "bsk,hdk->bshd", x, {h, d}, in, spec_.qkv_bias, init));
      };
      const ValueId q = project(names.q, heads);
      const ValueId k = project(names.k, kv_heads);
      return {q, k, project(names.v, kv_heads)};
    }
    const std::string name = Join(path, names.qkv);
    if (spec_.qkv_layout == DecoderSpec::kInterleaved) {
      const ValueId qkv = Clip(Project(name, "bsk,htdk->bshtd", x, {heads, 3, d}, in, spec_.qkv_bias, init));
      return {Entry(qkv, 3, 0), Entry(qkv, 3, 1), Entry(qkv, 3, 2)};
    }
    if (heads == kv_heads) {
      const ValueId qkv = Clip(Project(name, "bsk,thdk->bsthd", x, {3, heads, d}, in, spec_.qkv_bias, init));
      return {Entry(qkv, 2, 0), Entry(qkv, 2, 1), Entry(qkv, 2, 2)};
    }
    const ValueId qkv = Clip(Project(name, "bsk,hdk->bshd", x, {heads + 2 * kv_heads, d}, in, spec_.qkv_bias, init));
    return {b_.Slice(qkv, 2, 0, heads), b_.Slice(qkv, 2, heads, heads + kv_heads),
            b_.Slice(qkv, 2, heads + kv_heads, heads + 2 * kv_heads)};
  }

  ValueId Clip(ValueId x) {
    if (!spec_.clip_qkv.has_value()) return x;
    return b_.Add("clamp", {x}, {{"min", -*spec_.clip_qkv}, {"max", *spec_.clip_qkv}});
  }

  ValueId QkNorm(const std::string& name, ValueId x) {
    if (!spec_.qk_norm.has_value()) return x;
    if (spec_.qk_norm_over == DecoderSpec::kHeadDim) return Norm(name, *spec_.qk_norm, x);
    const Dims dims = b_.type(x).dims;
    if (dims.size() != 4) return x;
    b_.SetModule(name);
    const ValueId flat = b_.Reshape(x, {dims[0], dims[1], dims[2] * dims[3]});
    return b_.Reshape(Norm(name, *spec_.qk_norm, flat), dims);
  }

  ValueId Attention(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    Qkv qkv = ProjectQkv(path, x);
    qkv.q = QkNorm(Join(path, names.q_norm), qkv.q);
    qkv.k = QkNorm(Join(path, names.k_norm), qkv.k);
    b_.SetModule(Join(path, names.attention));
    if (spec_.rotary.has_value()) {
      const std::string style = spec_.rotary->pairs == Rotary::kHalves ? "half" : "interleaved";
      for (ValueId* x : {&qkv.q, &qkv.k}) *x = b_.Add("rotary", {*x, cos_, sin_}, {{"style", style}});
    }
    const double scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
    Attrs attrs = {{"causal", true}, {"scale", scale}};
    if (!spec_.alibi_slopes.empty()) attrs["alibi_slopes"] = spec_.alibi_slopes;
    const ValueId out = b_.AddMany("attention", {qkv.q, qkv.k, qkv.v}, attrs, 2)[0];
    return Project(Join(path, names.attention_out), "bshd,nhd->bsn", out, {spec_.hidden_size},
                   {spec_.num_heads, spec_.head_dim}, spec_.attention_out_bias, spec_.init.attention_out(layer));
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

  ValueId Mlp(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const Dims in = {spec_.hidden_size};
    const int64_t inner = spec_.intermediate_size;
    ValueId h = kNoValue;
    if (spec_.mlp_kind == DecoderSpec::kPlain) {
      h = Project(Join(path, names.up), "bsk,nk->bsn", x, {inner}, in, spec_.mlp_bias, spec_.init.input);
      b_.SetModule(Join(path, names.mlp));
      h = Activate(h);
    } else if (spec_.mlp_kind != DecoderSpec::kGated) {
      const ValueId both =
          Project(Join(path, names.fused_mlp), "bsk,tik->bsti", x, {2, inner}, in, spec_.mlp_bias, spec_.init.input);
      const int64_t gate_index = spec_.mlp_kind == DecoderSpec::kGateUp ? 0 : 1;
      const ValueId up = Entry(both, 2, 1 - gate_index);
      const ValueId gate = Entry(both, 2, gate_index);
      b_.SetModule(Join(path, names.mlp));
      h = Gate(gate, up);
    } else {
      const ValueId gate =
          Project(Join(path, names.gate), "bsk,nk->bsn", x, {inner}, in, spec_.mlp_bias, spec_.init.input);
      const ValueId up = Project(Join(path, names.up), "bsk,nk->bsn", x, {inner}, in, spec_.mlp_bias, spec_.init.input);
      b_.SetModule(Join(path, names.mlp));
      h = Gate(gate, up);
    }
    return Project(Join(path, names.down), "bsk,nk->bsn", h, {spec_.hidden_size}, {inner}, spec_.mlp_bias,
                   spec_.init.down(layer));
  }

  ValueId Head(ValueId x) {
    const std::string& name = spec_.names.head;
    const Dims out = {spec_.vocab_rows}, in = {spec_.hidden_size};
    ValueId logits = kNoValue;
    if (spec_.head == DecoderSpec::kOwnHead) {
      logits = Project(name, "bsk,nk->bsn", x, out, in, spec_.head_bias, spec_.init.head);
    } else {
      b_.SetModule(name);
      ValueId weight = embedding_;
      if (spec_.head == DecoderSpec::kNormalizedHead) {
        const Dims dims = {spec_.vocab_rows, spec_.hidden_size};
        weight = Param(absl::StrCat(name, ".weight"), dims, dims, spec_.init.head);
        weight = b_.AddMany("l2_normalize", {weight}, {{"eps", 1e-12}}, 2)[0];
      }
      logits = b_.Einsum("bsk,nk->bsn", x, weight);
    }
    return Scaled(logits, spec_.logit_scale);
  }

  const DecoderSpec& spec_;
  const DecoderBuildOptions& options_;
  Graph graph_;
  Builder b_;
  ValueId tokens_ = kNoValue, targets_ = kNoValue, step_ = kNoValue, sample_ = kNoValue;
  ValueId cos_ = kNoValue, sin_ = kNoValue;
  ValueId embedding_ = kNoValue;
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
