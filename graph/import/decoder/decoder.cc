#include "graph/import/decoder/decoder.h"

#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/import/decoder/decoder_parts.h"
#include "graph/import/decoder/experts.h"
#include "graph/import/decoder/latent_attention.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

using AuxLoss = ExpertsBuilder::AuxLoss;

class DecoderBuilder : private DecoderParts {
 public:
  DecoderBuilder(const DecoderSpec& spec, const DecoderBuildOptions& options, Builder& builder)
      : DecoderParts(spec, builder),
        options_(options),
        latent_attention_(spec, builder),
        experts_(spec, options.outputs == DecoderBuildOptions::kLoss ? AuxLoss::kAdded : AuxLoss::kNone, builder) {}

  absl::Status Build() {
    const Dims tokens_dims = {options_.batch, options_.seq_len};
    tokens_ = b_.Leaf(Op::kInput, "tokens", {DType::kI32, tokens_dims});
    if (options_.outputs == DecoderBuildOptions::kLoss)
      targets_ = b_.Leaf(Op::kInput, "targets", {DType::kI32, tokens_dims});
    if (spec_.has_dropout()) step_ = b_.Leaf(Op::kInput, "step", {DType::kI64, {}});
    if (spec_.has_dropout() || experts_.has_aux_loss())
      sample_ = b_.Leaf(Op::kInput, "sample", {DType::kI64, {options_.batch}});
    ValueId x = Embed();
    if (spec_.rotary.has_value()) AddTables(*spec_.rotary, DecoderSpec::Layer::kRotary);
    if (spec_.local_rotary.has_value()) AddTables(*spec_.local_rotary, DecoderSpec::Layer::kLocalRotary);
    for (int64_t layer = 0; layer < spec_.num_layers; ++layer) x = Layer(layer, x);
    const ValueId logits = Head(Norm(spec_.names.final_norm, spec_.norm, x, Hidden()));
    if (options_.outputs == DecoderBuildOptions::kLogits) {
      b_.End(Op::kOutput, "logits", logits);
    } else {
      const std::vector<ValueId> loss = b_.AddMany("cross_entropy", {logits, targets_}, {}, 3);
      b_.End(Op::kOutput, "loss", experts_.WithAuxLoss(loss[0], loss[1], sample_, options_.seq_len));
      b_.End(Op::kOutput, "target_tokens", loss[1]);
    }
    return b_.status();
  }

 private:
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

  // Gives heads their positions, in layers that have such.
  ValueId Rotate(const DecoderSpec::Layer& layer, ValueId x) {
    const auto table = tables_.find(layer.positions);
    if (table == tables_.end()) return x;
    const Rotary& rotary = layer.positions == DecoderSpec::Layer::kRotary ? *spec_.rotary : *spec_.local_rotary;
    const std::string style = rotary.pairs == Rotary::kHalves ? "half" : "interleaved";
    return b_.Add("rotary", {x, table->second[0], table->second[1]}, {{"style", style}});
  }

  Qkv HeadsOf(const std::string& path, const DecoderSpec::Layer& layer, ValueId x) {
    const auto rotate = [&](ValueId heads) { return Rotate(layer, heads); };
    if (spec_.latent.has_value()) return latent_attention_.Build(path, x, rotate);
    const DecoderNames& names = spec_.names;
    Qkv qkv = ProjectQkv(path, x);
    qkv.q = QkNorm(Join(path, names.q_norm), qkv.q);
    qkv.k = QkNorm(Join(path, names.k_norm), qkv.k);
    b_.SetModule(Join(path, names.attention));
    for (ValueId* x : {&qkv.q, &qkv.k, &qkv.v}) *x = Clip(*x, DecoderSpec::kAfterNorm);
    return {rotate(qkv.q), rotate(qkv.k), qkv.v};
  }

  ValueId Attention(const std::string& path, int64_t layer, ValueId x) {
    const DecoderNames& names = spec_.names;
    const DecoderSpec::Layer own = spec_.LayerAt(layer);
    const Qkv heads = HeadsOf(path, own, x);
    double scale = spec_.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(spec_.head_dim)));
    if (spec_.scaled_by_layer) scale /= static_cast<double>(layer + 1);
    std::vector<ValueId> operands = {heads.q, heads.k, heads.v};
    Attrs attrs = {{"causal", true}, {"scale", scale}};
    if (spec_.has_sinks) {
      operands.push_back(Param(Join(path, names.sinks), {Heads()}, {spec_.num_heads}, spec_.init.input));
      attrs["sinks"] = true;
    }
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
    const WeightDim value = spec_.latent.has_value() ? WeightDim{spec_.latent->value, ""} : HeadDim();
    return Project(Join(path, names.attention_out), "bshd,nhd->bsn", out, {Hidden()}, {Heads(), value},
                   spec_.attention_out_bias, spec_.init.attention_out(layer));
  }

  ValueId Mlp(const std::string& path, int64_t layer, ValueId x) {
    if (experts_.IsIn(layer)) return experts_.Layer(path, layer, x);
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

  const DecoderBuildOptions& options_;
  LatentAttentionBuilder latent_attention_;
  ExpertsBuilder experts_;
  ValueId tokens_ = kNoValue, targets_ = kNoValue, step_ = kNoValue, sample_ = kNoValue;
  std::map<DecoderSpec::Layer::Positions, std::vector<ValueId>> tables_;  // cosines and sines
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
  Graph graph;
  graph.name = "forward";
  Builder builder(graph, ops);
  TACC_RETURN_IF_ERROR(DecoderBuilder(spec, options, builder).Build());
  return graph;
}

}  // namespace tacc::graph
