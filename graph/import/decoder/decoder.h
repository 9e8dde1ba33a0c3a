// What a family's config.json becomes: the shape of a decoder and the names of its weights, and the graph of it.
#ifndef TACC_GRAPH_IMPORT_DECODER_DECODER_H_
#define TACC_GRAPH_IMPORT_DECODER_DECODER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/import/decoder/rotary.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Names of a family's modules, as in its safetensors: a weight is NAME.weight, a bias NAME.bias. In `layer`, {layer} is
// the layer's number, {group} and {member} its place in groups of DecoderSpec::layers_per_group. The rest of a layer's
// names are relative to it. A norm with an empty name is not there.
struct DecoderNames {
  std::string base;  // module that some files leave out of the names, as "transformer."
  std::string embedding = "model.embed_tokens";
  std::string embedding_norm;
  std::string positions;
  std::string layer = "model.layers.{layer}";
  std::string final_norm = "model.norm";
  std::string head = "lm_head";

  std::string attention = "self_attn";             // module path of the attention's computation; empty: the layer's own
  std::string attention_norm = "input_layernorm";  // before the branch
  std::string attention_post_norm;                 // on what the branch adds
  std::string q = "self_attn.q_proj", k = "self_attn.k_proj", v = "self_attn.v_proj";
  std::string qkv;  // fused
  std::string q_norm, k_norm;
  // Of latent attention: what makes the latents, their norms, and what makes heads of them.
  std::string q_a = "self_attn.q_a_proj", q_a_norm = "self_attn.q_a_layernorm", q_b = "self_attn.q_b_proj";
  std::string kv_a = "self_attn.kv_a_proj_with_mqa", kv_a_norm = "self_attn.kv_a_layernorm",
              kv_b = "self_attn.kv_b_proj";
  std::string attention_out = "self_attn.o_proj";
  std::string sinks = "self_attn.sinks";  // the param itself
  std::string mlp = "mlp";
  std::string mlp_norm = "post_attention_layernorm";  // before the branch
  std::string mlp_post_norm;                          // on what the branch adds
  std::string gate = "mlp.gate_proj", up = "mlp.up_proj", down = "mlp.down_proj";
  std::string fused_mlp;  // up and gate in one
  std::string router = "mlp.gate";
  // Of each expert, the * is its number; or of all of them, by ExpertsSpec::stored.
  std::string expert_gate = "mlp.experts.*.gate_proj", expert_up = "mlp.experts.*.up_proj",
              expert_down = "mlp.experts.*.down_proj";
  // Of the expert that all tokens take.
  std::string shared_weight = "mlp.shared_expert_gate";
  std::string shared_gate = "mlp.shared_expert.gate_proj", shared_up = "mlp.shared_expert.up_proj",
              shared_down = "mlp.shared_expert.down_proj";
};

// What a norm has to learn. kOnePlusWeight: rows are multiplied by 1 + the weight (Gemma).
enum class Affine { kNone, kWeight, kWeightBias, kOnePlusWeight };

struct NormSpec {
  enum Kind { kRms, kLayer } kind = kRms;
  Affine affine = Affine::kWeight;
  double eps = 1e-6;
};

enum class Bias { kNone, kPresent };

// Initial values of random weights (State::init).
struct DecoderInit {
  std::string embedding, positions, head;
  std::string input;                                        // q, k, v, gate, up
  std::function<std::string(int64_t)> attention_out, down;  // by layer
  std::string key;                                          // of config.json that says how wide; empty: none does
};

// Gated MLPs of which a router chooses some for each token.
struct ExpertsSpec {
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // the most probable ones
  int64_t intermediate_size = 0;  // of each
  // A matrix for each expert; or one tensor for all, expert_down, and one with each expert's gate and its up below it,
  // expert_gate; or the same transposed, [E, in, out], whose columns are in turns of the gate and of the up, and whose
  // names are the params' own.
  enum Stored { kEach, kGateUp, kTurns } stored = kEach;
  // Of the router, NAME.bias, and of each expert's products, with kTurns: NAME_bias.
  Bias bias = Bias::kNone;
  // Of an expert: its probability among all; or the sigmoid of its logit.
  enum Scores { kSoftmax, kSigmoid } scores = kSoftmax;
  // A number for each expert is added to its score where experts are chosen, and only there: router's
  // e_score_correction_bias, which is read and never trained.
  bool has_choice_bias = false;
  // A token's experts come from kept_groups groups of so many, whose `summed` largest scores have the largest sums.
  int64_t num_groups = 1, kept_groups = 1, summed = 1;
  // What an expert's output is multiplied by: its score, or its share of those of the token's experts; and this factor.
  enum Weights { kProbabilities, kNormalized } weights = kProbabilities;
  double weight_factor = 1;
  // The router's logits are in fp32 whatever else is in.
  bool has_wide_logits = false;
  // Of the load-balancing loss of a micro-batch, E times the sum over experts of (slots that it got / tokens) x (its
  // mean probability), tokens of all layers counted together. 0: none.
  double aux_loss_coef = 0;
  std::set<int64_t> dense_layers;  // layers that have one MLP
  // Of the MLP whose output is added for all tokens; 0: none. Its output is multiplied by the sigmoid of a product of
  // the token, where it has that weight.
  int64_t shared_intermediate_size = 0;
  bool has_shared_weight = false;
  // An expert makes g sigmoid(alpha g) (u + 1) of its gate g, cut at the limit, and its up u, cut at it on both sides;
  // absent: what MLPs make of them.
  struct ClampedGate {
    double alpha = 1, limit = 0;
  };
  std::optional<ClampedGate> clamped_gate;
};

// Attention whose keys and values are made of a short vector of each token (MLA). A head's query and key have `nope`
// dims without a position, and `rope` dims with one, which all heads' keys share. Source: DeepSeek-AI, DeepSeek-V2,
// arXiv 2405.04434, section 2.1.
struct LatentSpec {
  int64_t q_rank = 0;  // of the vector that queries are made of; 0: they are made of the token itself
  int64_t kv_rank = 0;
  int64_t nope = 0, rope = 0;  // DecoderSpec::head_dim is their sum
  int64_t value = 0;           // a head's value
  NormSpec norm;               // of both vectors
};

// Every fact of a decoder-only transformer that its graph depends on. Letters: B batch, S sequence, N hidden size, H
// heads, K key-value heads, D head size, I intermediate size, V rows of the vocabulary.
struct DecoderSpec {
  std::string family;
  DecoderNames names;
  DecoderInit init;

  int64_t vocab_rows = 0;   // V
  int64_t hidden_size = 0;  // N
  int64_t num_layers = 0;
  int64_t num_heads = 0;          // H
  int64_t num_kv_heads = 0;       // K
  int64_t head_dim = 0;           // D
  int64_t intermediate_size = 0;  // I
  int64_t layers_per_group = 1;
  int64_t max_seq_len = 0;  // 0: any

  NormSpec norm;
  enum ResidualFrom { kFromInput, kFromNorm } residual_from = kFromInput;  // what the branch is added to
  std::optional<NormSpec> embedding_norm;

  // Branches of a layer: the MLP after attention; both of the layer's input, whose dropouts are apart, or one of their
  // sum. In parallel an MLP without a norm of its own takes attention's.
  enum Branches { kInTurn, kParallel, kParallelSum } branches = kInTurn;

  // How q, k and v lie in the files: three matrices; one after the other in one; [H, 3, D] in one (K = H); or for each
  // key-value head its query heads, it and its values: [K, H/K + 2, D].
  enum QkvLayout { kSeparate, kStacked, kInterleaved, kGrouped } qkv_layout = kSeparate;
  // Matrices of layers lie in the files as [in, out], not [out, in] (GPT-2).
  bool transposed_matrices = false;
  Bias qkv_bias = Bias::kNone;
  Bias attention_out_bias = Bias::kNone;
  std::optional<double> clip_qkv;
  enum ClipPlace { kBeforeNorm, kAfterNorm } clip_place = kBeforeNorm;
  std::optional<LatentSpec> latent;  // then qkv_bias is that of what makes the latents
  std::optional<NormSpec> qk_norm;
  enum QkNormOver { kHeadDim, kAllHeads } qk_norm_over = kHeadDim;

  std::optional<double> attention_scale;  // of scores; absent: 1 / sqrt(D)
  bool scaled_by_layer = false;           // scores of layer i are divided by i + 1
  double attention_softcap = 0;           // bends scores: cap * tanh(score / cap); 0: none
  double attention_dropout = 0;           // of probabilities
  bool has_sinks = false;                 // one more key of each head, with a learned score and value 0
  std::optional<Rotary> rotary, local_rotary;
  // What attention is in one layer.
  struct Layer {
    int64_t window = 0;  // a token sees so many up to itself; 0: all before it
    enum Positions { kRotary, kLocalRotary, kNoRotary } positions = kRotary;
  };
  std::vector<Layer> layers;         // empty: none differs from the default
  std::vector<double> alibi_slopes;  // empty: none
  int64_t learned_positions = 0;     // rows; 0: none

  // up alone; gate and up; both in one, the gate first; both in one, up first.
  enum MlpKind { kPlain, kGated, kGateUp, kUpGate } mlp_kind = kGated;
  enum Activation { kSilu, kGelu, kGeluTanh, kRelu } activation = kSilu;
  Bias mlp_bias = Bias::kNone;
  std::optional<ExpertsSpec> experts;

  double embedding_scale = 1.0;
  double residual_scale = 1.0;  // of what a branch adds
  double embedding_dropout = 0;
  double residual_dropout = 0;

  // Of its own; the embedding; of its own with rows of length 1 (Baichuan 2's NormHead).
  enum Head { kOwnHead, kTiedHead, kNormalizedHead } head = kOwnHead;
  // A tied matrix lies in the files under the head's name.
  bool stored_as_head = false;
  // A tied head gives way to one in the files that has other values.
  bool stored_head_counts = false;
  Bias head_bias = Bias::kNone;
  double logit_scale = 1.0;
  double logit_softcap = 0;  // bends logits; 0: none

  std::vector<std::string> notes;  // what of config.json is done in another way than it says

  // Module path of a layer.
  std::string LayerPath(int64_t layer) const;
  Layer LayerAt(int64_t layer) const { return layers.empty() ? Layer() : layers[layer]; }
  bool has_dropout() const { return embedding_dropout > 0 || residual_dropout > 0 || attention_dropout > 0; }
};

struct DecoderBuildOptions {
  int64_t batch = 1;
  int64_t seq_len = 1;
  int64_t dropout_seed = 0;
  enum Outputs { kLoss, kLogits } outputs = kLoss;
};

// The forward graph in f32, weights with their `axes`. The residual stream begins as the result of rank 3 of the module
// names.embedding. Inputs: "tokens" i32[B,S]; with kLoss "targets" i32[B,S] (-1: ignored); with dropout "step"
// i64[] and "sample" i64[B]; with experts' load-balancing loss "sample", which is -1 of rows of padding: they do not
// enter it. Outputs: "loss" (sum of the cross-entropy over targets >= 0, plus their number times the
// experts' weighted load-balancing loss) and "target_tokens" (their number), or "logits". Params of experts are stacks:
// [E, ...] under a name with a *, in the files one tensor for each expert.
absl::StatusOr<Graph> BuildDecoder(const DecoderSpec& spec, const DecoderBuildOptions& options, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_DECODER_DECODER_H_
