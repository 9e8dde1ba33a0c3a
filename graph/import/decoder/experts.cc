#include "graph/import/decoder/experts.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tacc::graph {

ValueId ExpertsBuilder::Weights(const std::string& name, const WeightDim& out, const WeightDim& in,
                                const std::string& init, const std::string& rows) {
  const size_t star = name.find(".*");
  b_.SetModule(star == std::string::npos ? ModuleOf(name) : name.substr(0, star));
  const int64_t num_experts = spec_.experts->num_experts;
  return Param(absl::StrCat(name, ".weight", rows), {{num_experts, "experts"}, out, in},
               {num_experts, out.size, in.size}, init);
}

ExpertsBuilder::Slots ExpertsBuilder::Route(const std::string& path, ValueId x) {
  const ExpertsSpec& experts = *spec_.experts;
  const std::string router = Join(path, spec_.names.router);
  b_.SetModule(router);
  const ValueId weight = Param(absl::StrCat(router, ".weight"), {{experts.num_experts, ""}, Hidden()},
                               {experts.num_experts, spec_.hidden_size}, spec_.init.input);
  Attrs product = {{"spec", std::string("bsk,nk->bsn")}};
  if (experts.has_wide_logits) product["dtype"] = std::string("f32");
  ValueId logits = b_.Add("einsum", {x, weight}, std::move(product));
  if (experts.bias == Bias::kPresent) {
    logits = b_.Add("add", {logits, Param(absl::StrCat(router, ".bias"), {{experts.num_experts, ""}},
                                          {experts.num_experts}, spec_.init.input)});
  }
  const ValueId scores = b_.Add(experts.scores == ExpertsSpec::kSoftmax ? "softmax" : "sigmoid", {logits});
  std::vector<ValueId> operands = {scores};
  if (experts.has_choice_bias) {
    const ValueId bias = Param(absl::StrCat(router, ".e_score_correction_bias"), {{experts.num_experts, ""}},
                               {experts.num_experts}, "zeros", WeightRole::kBuffer);
    operands.push_back(b_.Add("add", {scores, bias}));
  }
  Attrs top_k = {{"k", experts.experts_per_token}};
  if (experts.weights == ExpertsSpec::kNormalized) top_k["normalize"] = true;
  if (experts.kept_groups < experts.num_groups) {
    top_k["groups"] = experts.num_groups;
    top_k["kept_groups"] = experts.kept_groups;
    top_k["summed"] = experts.summed;
  }
  const std::vector<ValueId> chosen = b_.AddMany("top_k", std::move(operands), std::move(top_k), 2);
  if (has_aux_loss_) {
    const Attrs counted = {{"num_experts", experts.num_experts}, {"per_sample", true}};
    AddTo(b_.Add("expert_counts", {chosen[1]}, counted), &counts_);
    AddTo(b_.Add("reduce_sum", {scores}, {{"dims", std::vector<int64_t>{1}}}), &probability_sums_);
  }
  return {Scaled(chosen[0], experts.weight_factor), chosen[1]};
}

// The experts of each token, whose outputs are summed. They are scaled before the last product, which is as well and
// leaves less to keep.
ValueId ExpertsBuilder::Layer(const std::string& path, int64_t layer, ValueId x) {
  const DecoderNames& names = spec_.names;
  const ExpertsSpec& experts = *spec_.experts;
  ++num_layers_;
  const Attrs attrs = {{"num_experts", experts.num_experts}};
  const WeightDim inner = {experts.intermediate_size, "mlp"};
  const Slots slots = Route(path, x);
  if (experts.stored == ExpertsSpec::kTurns) return LayerInTurns(path, layer, x, slots);
  auto product = [&](const std::string& name, const std::string& rows) {
    const ValueId w = Weights(Join(path, name), inner, Hidden(), spec_.init.input, rows);
    return b_.Add("expert_matmul", {x, slots.ids, w}, attrs);
  };
  ValueId gate = kNoValue, up = kNoValue;
  if (experts.stored == ExpertsSpec::kGateUp) {
    gate = product(names.expert_gate, absl::StrCat("[:,0:", inner.size, "]"));
    up = product(names.expert_gate, absl::StrCat("[:,", inner.size, ":", 2 * inner.size, "]"));
  } else {
    gate = product(names.expert_gate, "");
    up = product(names.expert_up, "");
  }
  const ValueId h = b_.Add("mul_rows", {Gate(gate, up), slots.weights});
  const ValueId w = Weights(Join(path, names.expert_down), Hidden(), inner, spec_.init.down(layer));
  Attrs summed = attrs;
  summed["sum_slots"] = true;
  const ValueId y = b_.Add("expert_matmul", {h, slots.ids, w}, std::move(summed));
  if (experts.shared_intermediate_size == 0) return y;
  const ValueId shared = Shared(path, layer, x);
  b_.SetModule(Join(path, names.mlp));
  return b_.Add("add", {y, shared});
}

ValueId ExpertsBuilder::Product(const std::string& name, ValueId x, const Slots& slots, const WeightDims& dims,
                                const std::string& init, ValueId times, const Attrs& attrs) {
  b_.SetModule(ModuleOf(name));
  const int64_t num_experts = spec_.experts->num_experts, in = dims[0].size;
  WeightDims matrix = {{num_experts, "experts"}}, column = matrix;
  matrix.insert(matrix.end(), dims.begin(), dims.end());
  column.insert(column.end(), dims.begin() + 1, dims.end());
  int64_t out = 1;
  for (size_t d = 1; d < dims.size(); ++d) out *= dims[d].size;
  const Dims stored = {num_experts, in, out};
  Attrs transposed = attrs;
  transposed["transposed"] = true;
  const ValueId w = b_.Reshape(Param(name, matrix, stored, init), stored);
  const ValueId y = b_.Add("expert_matmul", {x, slots.ids, w}, std::move(transposed));
  if (spec_.experts->bias == Bias::kNone) return y;
  const ValueId bias = Param(absl::StrCat(name, "_bias"), column, {num_experts, out}, "zeros");
  return b_.Add("add",
                {y, b_.Add("expert_matmul", {times, slots.ids, b_.Reshape(bias, {num_experts, out, 1})}, attrs)});
}

ValueId ExpertsBuilder::ClampedGate(ValueId both) {
  const ExpertsSpec::ClampedGate& clamped = *spec_.experts->clamped_gate;
  Dims pairs = b_.type(both).dims;
  if (pairs.empty()) return both;  // there was an error
  pairs.back() /= 2;
  pairs.push_back(2);
  both = b_.Reshape(both, pairs);
  const auto clamp = [&](ValueId x, double min) {
    return b_.Add("clamp", {x}, {{"min", min}, {"max", clamped.limit}});
  };
  const int64_t last = static_cast<int64_t>(pairs.size()) - 1;
  const ValueId gate = clamp(Entry(both, last, 0), std::numeric_limits<float>::lowest());
  const ValueId up = b_.Add("add_scalar", {clamp(Entry(both, last, 1), -clamped.limit)}, {{"value", 1.0}});
  // swiglu's gate is multiplied by its own sigmoid: by alpha too much.
  return b_.Add("swiglu", {Scaled(gate, clamped.alpha), Scaled(up, 1 / clamped.alpha)});
}

ValueId ExpertsBuilder::LayerInTurns(const std::string& path, int64_t layer, ValueId x, const Slots& slots) {
  const DecoderNames& names = spec_.names;
  const WeightDim inner = {spec_.experts->intermediate_size, "mlp"};
  Attrs attrs = {{"num_experts", spec_.experts->num_experts}};
  Dims column = b_.type(x).dims;
  if (column.empty()) return x;  // there was an error
  column.back() = 1;
  const ValueId ones = b_.Constant(1.0, {DType::kF32, column});
  const ValueId both =
      Product(Join(path, names.expert_gate), x, slots, {Hidden(), inner, {2, ""}}, spec_.init.input, ones, attrs);
  const ValueId h = b_.Add("mul_rows", {ClampedGate(both), slots.weights});
  column = b_.type(slots.weights).dims;
  column.push_back(1);
  const ValueId weights = b_.Reshape(slots.weights, column);
  attrs["sum_slots"] = true;
  return Product(Join(path, names.expert_down), h, slots, {inner, Hidden()}, spec_.init.down(layer), weights, attrs);
}

ValueId ExpertsBuilder::Shared(const std::string& path, int64_t layer, ValueId x) {
  const DecoderNames& names = spec_.names;
  const WeightDim inner = {spec_.experts->shared_intermediate_size, "mlp"};
  auto product = [&](const std::string& name) {
    return Project(Join(path, name), "bsk,nk->bsn", x, {inner}, {Hidden()}, spec_.mlp_bias, spec_.init.input);
  };
  const ValueId gate = product(names.shared_gate), up = product(names.shared_up);
  b_.SetModule(Join(path, ModuleOf(names.shared_gate)));
  ValueId h = Gate(gate, up);
  if (spec_.experts->has_shared_weight) {
    const std::string name = Join(path, names.shared_weight);
    b_.SetModule(name);
    const ValueId w = Param(absl::StrCat(name, ".weight"), {Hidden()}, {1, spec_.hidden_size}, spec_.init.input);
    h = b_.Add("mul_rows", {h, b_.Add("sigmoid", {b_.Einsum("bsk,k->bs", x, w)})});
  }
  return Project(Join(path, names.shared_down), "bsk,nk->bsn", h, {Hidden()}, {inner}, spec_.mlp_bias,
                 spec_.init.down(layer));
}

// Source: Fedus et al., Switch Transformers, arXiv 2101.03961, equations 4 to 6; of all layers, as transformers has it.
ValueId ExpertsBuilder::WithAuxLoss(ValueId loss, ValueId num_targets, ValueId sample, int64_t seq_len) {
  if (counts_ == kNoValue) return loss;
  const ExpertsSpec& experts = *spec_.experts;
  const auto sum = [&](ValueId x) { return b_.Add("reduce_sum", {x}, {{"dims", std::vector<int64_t>{0}}}); };
  // 1 of a sample, 0 of padding, whose number is -1.
  const ValueId is_sample = b_.Add("clamp", {b_.Add("add_scalar", {b_.Cast(sample, DType::kF32)}, {{"value", 1.0}})},
                                   {{"min", 0.0}, {"max", 1.0}});
  const ValueId rows = b_.Scale(sum(is_sample), static_cast<double>(num_layers_ * seq_len));
  const auto mean = [&](ValueId of_samples) {
    const ValueId total = sum(b_.Add("mul_rows", {of_samples, is_sample}));
    return b_.Add(
        "div",
        {total, b_.Add("broadcast", {rows},
                       {{"shape", std::vector<int64_t>{experts.num_experts}}, {"dims", std::vector<int64_t>{}}})});
  };
  const ValueId products = b_.Add("mul", {mean(counts_), mean(probability_sums_)});
  const ValueId aux = b_.Scale(sum(products), experts.aux_loss_coef * static_cast<double>(experts.num_experts));
  return b_.Add("add", {loss, b_.Add("mul", {aux, num_targets})});
}

}  // namespace tacc::graph
