// Bytes that a rank sends in a step. Letters: n ranks of a collective, x bytes of a whole tensor.
//
//   all-gather, reduce-scatter   (n-1)/n x, x being the whole tensor
//   all-reduce                   2 (n-1)/n x
//   all-to-all                   (n-1)/n of the rank's own part
//
// Axes shrink each other's terms: the batch axes (dp fsdp ep), cp and sp leave a rank a part of the tokens; tp, ep,
// fsdp and pp a part of the weights.
#include "tests/matrix/theory.h"

#include <algorithm>

namespace tacc::matrix {
namespace {

using graph::DecoderSpec;

constexpr double kF32 = 4;

double Part(double n) { return (n - 1) / n; }

// Weights of one kind.
struct Weights {
  double elements = 0;
  enum Split { kWhole, kTensor, kExperts } split = kWhole;  // in use, over what
  // A bias is not needed for any derivative.
  bool is_bias = false;
};

class Theory {
 public:
  Theory(const Job& job, const DecoderSpec& spec, const Layout& layout)
      : spec_(spec),
        l_(layout),
        micro_batches_(static_cast<double>(job.num_micro_batches)),
        hidden_(static_cast<double>(spec.hidden_size)),
        is_pipeline_(layout.pp > 1) {
    tokens_ = static_cast<double>(kGlobalBatch / job.num_micro_batches / layout.data_ranks() * kSeqLen) /
              static_cast<double>(layout.cp * layout.sp);
  }

  std::vector<StageTheory> Stages() const {
    std::vector<StageTheory> stages(l_.pp);
    const int64_t num_parts = l_.pp * l_.num_chunks(), layers = spec_.num_layers / num_parts;
    for (int64_t part = 0; part < num_parts; ++part) {
      StageTheory& stage = stages[part % l_.pp];
      const bool first = part == 0, last = part + 1 == num_parts;
      for (int64_t i = 0; i < layers; ++i) AddLayer(first, stage);
      if (first) AddEmbedding(stage);
      if (last) AddHead(stage);
      // The residual stream from the part before and its gradient back to it.
      const double message = ResidualBytes() / l_.tp + AuxBytes();
      stage.sent_bytes += micro_batches_ * message * ((first ? 0 : 1) + (last ? 0 : 1));
    }
    return stages;
  }

 private:
  bool zero_bubble() const { return l_.schedule == graph::PipelineSchedule::kZeroBubble; }
  bool is_moe() const { return spec_.experts.has_value(); }

  // [rows, S / (cp sp), hidden] of a micro-batch: what tp splits further between blocks.
  double ResidualBytes() const { return tokens_ * hidden_ * kF32; }
  // What the load-balancing loss needs of all layers: a number an expert.
  double AuxBytes() const {
    return is_moe() && spec_.experts->aux_loss_coef != 0 ? static_cast<double>(spec_.experts->num_experts) * kF32 : 0;
  }

  // ---- weights ----

  // How many ranks split the weights in use.
  double InUse(const Weights& w) const {
    switch (w.split) {
      case Weights::kWhole:
        return 1;
      case Weights::kTensor:
        return static_cast<double>(l_.tp);
      case Weights::kExperts:
        return static_cast<double>(l_.tp * l_.ep);
    }
    return 1;
  }

  // What a step sends for weights. `gathers`: how often a micro-batch needs them under ZeRO-3.
  void AddWeights(const Weights& w, double gathers, StageTheory& stage) const {
    const double used = w.elements * kF32 / InUse(w), f = static_cast<double>(l_.fsdp * l_.cp * l_.sp);
    const double one = Part(f) * used;  // one gather, or one reduce-scatter
    // Fsdp and what splits the sequence have shards. ZeRO-3: the weights are gathered where they are used, else once,
    // when they are updated. ZeRO-1: gradients are scattered once, as those of ZeRO-3 may be; otherwise each
    // micro-batch's.
    stage.sent_bytes += (l_.zero_stage == 3 ? micro_batches_ * gathers : 1) * one;
    const bool once = l_.zero_stage == 1 || !l_.reduce_each_micro_batch;
    stage.sent_bytes += (once ? 1 : micro_batches_) * one;
    // Whoever else works on other tokens with the same weights has another summand of their gradient: once a step, of
    // what the shards leave of it.
    const double others = static_cast<double>(l_.dp * l_.ep * l_.tp) / InUse(w);
    stage.sent_bytes += 2 * Part(others) * used / f;
    // Weights and two moments; in the bar for memory everything counts as split over all that splits matrices.
    const double shards = static_cast<double>(l_.tp) * (w.split == Weights::kExperts ? static_cast<double>(l_.ep) : 1);
    const double bytes = w.elements * kF32 / shards;
    stage.state_bytes += bytes * (l_.zero_stage == 3 ? 3 / f : 1 + 2 / f);
  }

  // Weight and, for a LayerNorm, bias. Their derivative needs the weight again.
  void AddNorm(double size, StageTheory& stage) const {
    AddWeights({size}, 2, stage);
    if (spec_.norm.affine == graph::Affine::kWeightBias) AddWeights({size, Weights::kWhole, true}, 1, stage);
  }

  void AddMatrix(double elements, Weights::Split split, StageTheory& stage) const {
    AddWeights({elements, split}, 2, stage);  // forward, and backward for the derivative of what it is applied to
  }

  void AddBias(graph::Bias bias, double elements, Weights::Split split, StageTheory& stage) const {
    if (bias == graph::Bias::kPresent) AddWeights({elements, split, true}, 1, stage);
  }

  // ---- activations ----

  // A block between its norm and the residual stream, over tp. Forward: gather what the norm gives, scatter the sum.
  // Backward: gather the gradient of that sum, scatter the gradient of the norm's result; and gather this again for the
  // weights' gradients, for nobody keeps it whole. (Korthikanti et al., 2022, section 4.2.2.) A weight pass of its own
  // gathers the gradient of the sum once more.
  void AddBlock(bool first_part, double bytes, StageTheory& stage) const {
    const double times = 5 + (zero_bubble() && !first_part ? 1 : 0);
    stage.sent_bytes += micro_batches_ * times * Part(static_cast<double>(l_.tp)) * bytes;
  }

  void AddLayer(bool first_part, StageTheory& stage) const {
    const double q = static_cast<double>(spec_.num_heads * spec_.head_dim);
    const double kv = static_cast<double>(spec_.num_kv_heads * spec_.head_dim);
    AddNorm(hidden_, stage);
    AddMatrix((2 * q + 2 * kv) * hidden_, Weights::kTensor, stage);
    AddBias(spec_.qkv_bias, q + 2 * kv, Weights::kTensor, stage);
    AddBias(spec_.attention_out_bias, hidden_, Weights::kWhole, stage);
    if (spec_.qk_norm.has_value()) {
      for (int i = 0; i < 2; ++i) AddNorm(static_cast<double>(spec_.head_dim), stage);
    }
    AddBlock(first_part, ResidualBytes(), stage);
    AddAttention(q, kv, stage);
    AddNorm(hidden_, stage);
    if (is_moe()) {
      AddExperts(first_part, stage);
    } else {
      const double inner = static_cast<double>(spec_.intermediate_size);
      AddMatrix((spec_.mlp_kind == DecoderSpec::kPlain ? 2 : 3) * inner * hidden_, Weights::kTensor, stage);
      AddBias(spec_.mlp_bias, inner, Weights::kTensor, stage);
      AddBias(spec_.mlp_bias, hidden_, Weights::kWhole, stage);
      AddBlock(first_part, ResidualBytes(), stage);
    }
  }

  // Ulysses: q, k, v to heads and the result back to the sequence, and their gradients the other way; but where tp
  // leaves a rank one kv head, k and v are gathered, in the backward again, and their gradients scattered (Jacobs et
  // al., 2023). Ring: k and v go round, n-1 steps, and once more in the backward with their gradients (Liu et al.,
  // 2023).
  void AddAttention(double q, double kv, StageTheory& stage) const {
    const double q_bytes = tokens_ * q * kF32 / static_cast<double>(l_.tp);
    const double kv_bytes = tokens_ * kv * kF32 / static_cast<double>(l_.tp);
    const bool one_head = spec_.num_kv_heads == l_.tp;
    const double exchanges =
        2 * 2 * q_bytes * Part(static_cast<double>(l_.sp)) +
        2 * kv_bytes * (one_head ? 3 * static_cast<double>(l_.sp - 1) : 2 * Part(static_cast<double>(l_.sp)));
    const double rotations = (2 + 4) * static_cast<double>(l_.cp - 1) * kv_bytes;
    stage.sent_bytes += micro_batches_ * (exchanges + rotations);
  }

  // Router and experts. Slots of a token: the experts that it chose.
  void AddExperts(bool first_part, StageTheory& stage) const {
    const double num_experts = static_cast<double>(spec_.experts->num_experts);
    const double slots = static_cast<double>(spec_.experts->experts_per_token);
    const double inner = static_cast<double>(spec_.experts->intermediate_size);
    AddMatrix(num_experts * hidden_, Weights::kWhole, stage);
    AddMatrix(num_experts * 3 * inner * hidden_, Weights::kExperts, stage);
    const double t = static_cast<double>(l_.tp), e = static_cast<double>(l_.ep);
    if (l_.ep == 1) {
      AddBlock(first_part, ResidualBytes(), stage);
      // Ids and weights of the slots with it, in each pass, and the weights' gradient.
      stage.sent_bytes += micro_batches_ * 5 * Part(t) * tokens_ * slots * kF32;
      return;
    }
    // Buffers of the rows that a rank's tokens send to the experts of each rank: as many rows as can come, since none
    // is left out. Rows go there and results back, and their gradients likewise.
    const double rows = tokens_ * e * std::min(slots, num_experts / e) / t;
    const double own = rows * hidden_ * kF32;
    stage.sent_bytes += micro_batches_ * 4 * Part(e) * own;
    // With the rows their experts' ids and weights, and back the weights' gradient.
    stage.sent_bytes += micro_batches_ * 3 * Part(e) * rows * kF32;
    // Over tp a block of its own: the rows are gathered and their results scattered.
    AddBlock(first_part, t * own, stage);
    stage.sent_bytes += micro_batches_ * 5 * Part(t) * t * rows * kF32;
  }

  // A vocabulary split over tp: rows of the table that other ranks have are summed into the residual stream, and the
  // gradient of the stream is gathered.
  void AddEmbedding(StageTheory& stage) const {
    AddWeights({Table(), Weights::kTensor}, 1, stage);
    if (spec_.embedding_norm.has_value()) AddNorm(hidden_, stage);
    stage.sent_bytes += micro_batches_ * 2 * Part(static_cast<double>(l_.tp)) * ResidualBytes();
  }

  double Table() const { return static_cast<double>(spec_.vocab_rows) * hidden_; }

  void AddHead(StageTheory& stage) const {
    // Forward and backward follow each other, so a gather serves both; in a pipeline they are passes of their own.
    const double gathers = is_pipeline_ ? 2 : 1;
    AddWeights({hidden_}, gathers, stage);
    if (spec_.norm.affine == graph::Affine::kWeightBias) AddWeights({hidden_, Weights::kWhole, true}, 1, stage);
    if (spec_.head == DecoderSpec::kOwnHead) {
      AddWeights({Table(), Weights::kTensor}, gathers, stage);
    } else {
      AddTiedHead(gathers, stage);
    }
    const double t = static_cast<double>(l_.tp);
    // Gather what the head is applied to, scatter its gradient; in a pipeline gather again for the backward.
    stage.sent_bytes += micro_batches_ * (1 + gathers) * Part(t) * ResidualBytes();
    // Logits are never gathered: a number a token from each shard of the vocabulary.
    stage.sent_bytes += micro_batches_ * (t - 1) * tokens_ * kF32;
  }

  // The table is the embedding's: gathered once more. On another stage it is a state there too, and its gradients are
  // summed over both.
  void AddTiedHead(double gathers, StageTheory& stage) const {
    if (!is_pipeline_) {
      const double used = Table() * kF32 / static_cast<double>(l_.tp);
      if (l_.zero_stage == 3)
        stage.sent_bytes += micro_batches_ * gathers * Part(static_cast<double>(l_.fsdp * l_.cp * l_.sp)) * used;
      return;
    }
    AddWeights({Table(), Weights::kTensor}, gathers, stage);
  }

  const DecoderSpec& spec_;
  const Layout& l_;
  const double micro_batches_;
  const double hidden_;
  const bool is_pipeline_;
  double tokens_ = 0;  // of a micro-batch, between blocks of tp
};

// A tied table's gradient, of what fsdp and tp leave of it, over the first and the last stage.
double TiedSumBytes(const DecoderSpec& spec, const Layout& l) {
  if (spec.head != DecoderSpec::kTiedHead || l.pp == 1) return 0;
  return static_cast<double>(spec.vocab_rows * spec.hidden_size) * kF32 /
         static_cast<double>(l.tp * l.fsdp * l.cp * l.sp);
}

}  // namespace

std::vector<StageTheory> TheoryOf(const Job& job, const DecoderSpec& spec, const Layout& layout) {
  std::vector<StageTheory> stages = Theory(job, spec, layout).Stages();
  stages.front().sent_bytes += TiedSumBytes(spec, layout);
  stages.back().sent_bytes += TiedSumBytes(spec, layout);
  return stages;
}

}  // namespace tacc::matrix
