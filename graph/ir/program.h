// A program: the states that a rank keeps, its graphs, and the calls of a step.
#ifndef TACC_GRAPH_IR_PROGRAM_H_
#define TACC_GRAPH_IR_PROGRAM_H_

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"

namespace tacc::graph {

// How far a program has come; each level adds facts, and the verifier checks them.
enum class Level { kLogical, kPartitioned, kScheduled, kPlanned };
absl::string_view Name(Level level);

// The purpose of a state. Checkpoints hold weights, optimizer states, averages of weights and the loss scale; copies
// are derived from weights; gradients and counters live within a step, a stash within one micro-batch.
enum class StateKind { kWeight, kCopy, kOptimizer, kAverage, kLossScale, kGradient, kCounter, kStash };
absl::string_view Name(StateKind kind);

// What a training does with a weight.
enum class WeightRole {
  kTrained,
  kFrozen,   // reads it only: no gradient, no optimizer states
  kAdapter,  // trains it beside the model, whose files do not have it
  kBuffer,   // reads it only, and saves it with what is trained: it is part of the model
};
absl::string_view Name(WeightRole role);
// Whether it has a gradient and optimizer states.
inline bool IsTrained(WeightRole role) { return role == WeightRole::kTrained || role == WeightRole::kAdapter; }
// None: no role has that name.
std::optional<WeightRole> FindWeightRole(absl::string_view name);

// A value that lives across calls, one copy a rank, bound by name. Names: weights/W, copies/W, gradients/W, exp_avg/W
// and others of optimizers, counters/C, stash/V, with W a parameter of the model and V a value; loss_scale/S
// (build_training.h).
//
// A stash carries a value of one micro-batch from the call that makes it to those that use it, on this stage or, by
// send and recv, on another. It has `slots` copies: a call on micro-batch m works on copy m mod slots.
struct State {
  std::string name;
  TensorType type;  // the rank's own
  Placement placement;
  StateKind kind = StateKind::kWeight;
  // weights: "normal(STD)", "truncated_normal(STD,BOUND)" (no value beyond +-BOUND), "ones", "zeros",
  // "uniform(LOW,HIGH)"; else "zeros", "copy" (weights/W, cast) or "constant(VALUE)" (of the loss scale).
  std::string init;
  WeightRole role = WeightRole::kTrained;  // weights
  Dims stored_dims;  // weights: the shape in the model's files; the logical shape is a reshape of it
  // The model's tensor's own dims, which checkpoints and other graphs' values have, where its leading dims are merged
  // here so that shards lie in equal rows. Else empty.
  Dims merged_from;
  // weights: the name of each dim (see kLogicalAxes), by which a layout splits it in use; or empty.
  std::vector<std::string> axes;
  int64_t offset = -1;  // bytes from the start of the arena, once planned; a stash's first copy
  int64_t slots = 1;    // copies; only a stash has more than one
  // The stage whose copy goes into checkpoints and counts in the norm, where the state is on several; -1: this one.
  int owner = -1;

  // The dims of the model's tensor, whatever the layout.
  const Dims& logical_dims() const { return merged_from.empty() ? placement.global.dims : merged_from; }

  bool operator==(const State&) const = default;
};

// The lower bound to which f16's loss scale is halved. A step skipped at this scale has another cause than the scale.
inline constexpr double kLeastLossScale = 1.0;

// Names of weights' dims, by which a layout says what it splits: vocab, embed (the model's width), heads, kv_heads,
// head_dim, mlp, experts. Other names are allowed and are never split by default.
inline constexpr const char* kLogicalAxes[] = {"vocab", "embed", "heads", "kv_heads", "head_dim", "mlp", "experts"};

// Bytes from the start of one copy of a stash to the start of the next.
int64_t SlotStride(const State& state);

// The graph that updates weights and optimizer states. It works on them where they rest; every other graph uses weights
// whole.
inline constexpr char kUpdateGraph[] = "update";

// Inputs of the update of a program that a client drives, each a scalar with a default: what the gradients' mean is
// multiplied by; the norm that they are clipped to; and, with the peak of a learning rate behind it, what the schedule
// is multiplied by of the parameters that have that peak, and their momentum (the beta1 of Adam and Lion).
inline constexpr char kGradientFactorInput[] = "update/gradient_factor";
inline constexpr char kMaxGradNormInput[] = "update/max_grad_norm";
inline constexpr char kLearningRateFactorInput[] = "update/learning_rate_factor/";
inline constexpr char kMomentumInput[] = "update/momentum/";
// The graph that sets gradients and counters to zero, before the first micro-batch of a step that accumulates.
inline constexpr char kBeginGraph[] = "begin";

// One entry of a list of calls: run `graph` on micro-batch `micro_batch`.
struct Call {
  std::string graph;
  int64_t micro_batch = 0;
  bool operator==(const Call&) const = default;
};

// The mesh axis along which the stages lie. A rank runs the program of the stage that is its coordinate there.
inline constexpr char kStageAxis[] = "pp";
// The stage of `rank`; 0 on a mesh without that axis.
int64_t StageOf(const Mesh& mesh, int64_t rank);

// One stage's program: the same text for every rank of the stage. A step runs `step`'s calls in order; held-out
// evaluation runs `eval`'s once per evaluation batch. Inputs of graphs: "tokens", "targets" and, where
// documents are kept apart, "document_start" (i32[B,S]: index in the row of the document's first token), "sample"
// (i64[B]: row index in the global batch), "step" (i64[]: updates already done). An input with `zigzag` holds its rows
// in that order (sequence_order.h). Outputs of the step's last graph: "loss" (mean over the global batch's target
// tokens), "grad_norm", "learning_rate", "target_tokens", "skipped" (1.0: the gradient norm was not finite and the
// update was skipped), in f16 "loss_scale" (that of the next step), where experts are shared by ranks "expert_overflow"
// (slots that found no place in a buffer, over all layers), all f32[] (f64 in an f64 program); of an eval graph: "loss"
// (sum), "target_tokens".
struct Program {
  Level level = Level::kLogical;
  Mesh mesh;
  int stage = 0;
  int num_stages = 1;
  int64_t seq_len = 0;           // tokens of a sample, where a rank has programs for several lengths; else 0
  int64_t arena_bytes = -1;      // planned: states, stashes and temporaries
  int64_t workspace_bytes = -1;  // planned: the largest need of a kernel that allocates inside
  std::vector<State> states;
  std::vector<Graph> graphs;
  std::vector<Call> step;
  std::vector<Call> eval;

  // Null when there is none. Valid until `graphs`, or `states`, changes.
  const Graph* FindGraph(absl::string_view name) const;
  Graph* FindGraph(absl::string_view name);
  // Linear in the number of states; for many look-ups make a StateIndex.
  const State* FindState(absl::string_view name) const;
};

// Finds a program's states by name in constant time. The program must outlive it, and its `states` must not change.
class StateIndex {
 public:
  explicit StateIndex(const Program& program);
  // Null when there is none.
  const State* Find(const std::string& name) const;

 private:
  std::unordered_map<std::string, const State*> states_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_PROGRAM_H_
