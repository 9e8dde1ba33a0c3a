#ifndef TACC_GRAPH_IMPORT_DECODER_EXPERTS_H_
#define TACC_GRAPH_IMPORT_DECODER_EXPERTS_H_

#include <cstdint>
#include <string>

#include "graph/import/decoder/decoder_parts.h"

namespace tacc::graph {

// Builds the mixtures of experts of a decoder (ExpertsSpec), which stand in place of MLPs.
class ExpertsBuilder : private DecoderParts {
 public:
  enum class AuxLoss { kNone, kAdded };

  // With kAdded, and a coefficient in the spec, the load-balancing loss is counted.
  ExpertsBuilder(const DecoderSpec& spec, AuxLoss aux_loss, Builder& builder)
      : DecoderParts(spec, builder),
        has_aux_loss_(aux_loss == AuxLoss::kAdded && spec.experts.has_value() && spec.experts->aux_loss_coef != 0) {}

  bool IsIn(int64_t layer) const { return spec_.experts.has_value() && spec_.experts->dense_layers.count(layer) == 0; }
  bool has_aux_loss() const { return has_aux_loss_; }

  // What the experts of a layer, whose module path is `path`, make of x [B,S,N].
  ValueId Layer(const std::string& path, int64_t layer, ValueId x);

  // `loss` and the load-balancing loss of all layers, times the number of targets, by which the sum of losses is
  // divided in the end; `loss` itself where there is none. `sample` i64[B] is -1 of padding; S is `seq_len`.
  ValueId WithAuxLoss(ValueId loss, ValueId num_targets, ValueId sample, int64_t seq_len);

 private:
  struct Slots {
    ValueId weights, ids;  // [B,S,K]
  };
  // Which experts a token goes to, and what their outputs are multiplied by.
  Slots Route(const std::string& path, ValueId x);
  // The experts' matrices NAME.weight, [E, out, in]. `rows`: "[:,BEGIN:END]" where they are only those rows of what is
  // stored of each expert.
  ValueId Weights(const std::string& name, const WeightDim& out, const WeightDim& in, const std::string& init,
                  const std::string& rows = "");
  // x times the experts' matrices NAME, as kTurns has them, with their biases; `dims` of a matrix, that of x first. The
  // bias of a slot is its expert's column times a number of the slot or token, `times` [..., 1]: so it is a product as
  // others are, done where the expert lies.
  ValueId Product(const std::string& name, ValueId x, const Slots& slots, const WeightDims& dims,
                  const std::string& init, ValueId times, const Attrs& attrs);
  // Of rows of a gate and an up in turns.
  ValueId ClampedGate(ValueId both);
  // What the experts with kTurns make of x, summed over a token's.
  ValueId LayerInTurns(const std::string& path, int64_t layer, ValueId x, const Slots& slots);
  // What the MLP that all tokens take makes of x.
  ValueId Shared(const std::string& path, int64_t layer, ValueId x);
  void AddTo(ValueId value, ValueId* sum) { *sum = *sum == kNoValue ? value : b_.Add("add", {*sum, value}); }

  bool has_aux_loss_;
  int64_t num_layers_ = 0;                                   // built so far
  ValueId counts_ = kNoValue, probability_sums_ = kNoValue;  // over layers
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_DECODER_EXPERTS_H_
