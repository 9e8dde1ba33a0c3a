// What a model computes, sends and keeps, by unit and kernel, with the part that each axis of a layout leaves a rank.
#ifndef TACC_GRAPH_PLANNER_COST_WORK_H_
#define TACC_GRAPH_PLANNER_COST_WORK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/analysis/cost.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// What a model asks of a machine, for any layout: amounts of one sample (a row of the batch), whole, with the way each
// is split. Made from a graph by AnalyzeModel, or by hand for a program that is not ours (bench/published).

// Which part of a layout splits an extent or a kernel.
enum class Split {
  kNone,    // nothing
  kTokens,  // cp, and the micro-batch multiplies it
  kHome,    // cp, and tp where norms and residuals are sequence-sharded; the micro-batch multiplies it
  kTensor,  // tp
  kExpert,  // ep
};

struct Extent {
  double size = 0;  // 0: large
  Split split = Split::kNone;
};

// One kernel of a unit, or what another one does beside its own work.
struct KernelWork {
  // kCast: makes the copy of a weight in the compute type, of what a rank has of it before it is gathered.
  // kAccumulation: adds a gradient to those of earlier micro-batches. kTiedSum: adds the gradients of a tied weight's
  // two uses, where both are on one stage.
  enum class Purpose { kActivations, kCast, kAccumulation, kTiedSum } purpose = Purpose::kActivations;
  bool is_of_product = false;  // of an accumulation: of a product's result, which the product's kernel adds to itself
  DType dtype = DType::kF32;
  Split region =
      Split::kHome;           // kHome; kTensor: heads, mlp or vocabulary are split, tokens only over cp; kExpert: both
  double flops = 0;           // of matrix products
  double exponentials = 0;    // of an attention whose scores stay on the device's cores
  double repeated_flops = 0;  // of that: what a gradient's kernel computes again
  AttentionMask mask = AttentionMask::kPlain;  // of that
  Extent rows, columns, depth;                 // of the product
  // Of products of one operand that are one where that is faster (join_products.h): the share of each. What they join
  // is the depth of gradients and else the columns.
  std::vector<double> parts;
  bool joins_depth = false;
  Extent groups;            // experts that share out the rows, or of a gradient the depth; none: not grouped
  double sample_bytes = 0;  // activations read and written
  double whole_bytes = 0;   // the same of a region that tp splits, but of values that it does not
  double weight_bytes = 0;  // read whatever the number of samples
  bool is_launched = true;
  bool is_repeated = true;  // of a forward: again where the layer's activations are recomputed
};

// A collective of activations.
struct TransferWork {
  double bytes = 0;
  bool is_repeated = true;  // of a forward: again where the layer's activations are recomputed
  bool is_shared = false;   // of a backward: not where they are, as the repeated forward has just done it
};

// What goes around cp, and is summed up on the way: bytes of whole tensors.
struct RingWork {
  double keys = 0;             // and values
  double key_gradients = 0;    // and those of values, in f32
  double query_gradients = 0;  // in f32; they stay where they are
};

// A direction of a unit's work.
struct PhaseWork {
  std::vector<KernelWork> kernels;
  // Activations that all tp ranks need whole, and partial sums over tp: of whole tensors.
  std::vector<TransferWork> gathers, scatters;
  std::vector<TransferWork> exchanges;  // buffers of tokens that go to experts or back
  RingWork ring;
};

// Elements of parameters, by what splits them in use.
struct ParameterCount {
  double whole = 0, tensor = 0, expert = 0;
  double total() const { return whole + tensor + expert; }
  void Add(const ParameterCount& o, double times) {
    whole += times * o.whole;
    tensor += times * o.tensor;
    expert += times * o.expert;
  }
};

// A parameter's dims, each split in use by kTensor, kExpert or nothing.
using WeightDims = std::vector<Extent>;

// An instant of a unit's backward: bytes of what is still needed of what is saved and of temporaries, split as kHome
// and as kTensor, and the share of the gradients of its parameters that has been made.
struct Instant {
  double home_bytes = 0, tensor_bytes = 0;
  double gradients = 0;
};

// A part of the model that is gathered, recomputed and cut at: a decoder layer, what comes before, what comes after.
struct UnitWork {
  std::string name;
  int64_t count = 1;      // consecutive ones of equal structure
  bool is_layer = false;  // pp cuts between layers
  PhaseWork forward, backward;
  ParameterCount parameters;
  ParameterCount frozen;   // of them, those that are not trained
  ParameterCount narrow;   // of these, those that rest in the type that products compute in
  int num_parameters = 0;  // tensors, each gathered by a collective of its own; 0: all by one
  int num_frozen = 0;      // of them, those that are not trained
  // The dims of those that are trained, and of the others, what copies around collectives follow from; none: no copies.
  std::vector<WeightDims> weights, frozen_weights;
  ParameterCount trained() const {
    ParameterCount rest = parameters;
    rest.Add(frozen, -1);
    return rest;
  }
  double gradients_share =
      0.5;                    // of the backward's products with weights, by FLOPs: those that make gradients of weights
  double input_bytes = 0;     // that comes from the unit before; split as kHome
  double narrowed_bytes = 0;  // of these, what is spared where they are kept in a narrower type for the backward
  double saved_home_bytes = 0;      // kept from forward to backward, split as kHome
  double saved_tensor_bytes = 0;    // the same, split as kTensor
  double working_home_bytes = 0;    // temporaries at the peak of the backward beside what is saved
  double working_tensor_bytes = 0;  // the same, split as kTensor
  // Of the backward, those instants after which less is needed: at which more is needed than at any later one.
  std::vector<Instant> instants;  // none: one, of all that is saved and working
};

struct ModelWork {
  std::vector<UnitWork> units;  // in the order of the model
  // Of the parameters before the layers, those that what comes after them uses too (a tied embedding): with stages the
  // last one has them as well.
  ParameterCount tied;
  bool tied_are_frozen = false;
  int64_t seq_len = 0;
  // What tp, cp and ep must divide; 0: no limit.
  int64_t num_heads = 0, num_kv_heads = 0, num_experts = 0;
  int64_t num_layers = 0;  // units that pp is cut at
  double model_flops = 0;  // of a sample: forward and backward, attention causal, nothing twice
  // The same with tokens in buffers for the ranks that share experts, as a layout with ep runs it: rows are sent, and
  // some are computed and kept that no token fills. For each number of such ranks; none: as this.
  int64_t expert_ranks = 1;
  std::vector<ModelWork> over_expert_ranks;
  const ModelWork& OverExpertRanks(int64_t ep) const {
    for (const ModelWork& work : over_expert_ranks) {
      if (work.expert_ranks == ep) return work;
    }
    return *this;
  }
  double num_parameters() const {
    double total = 0;
    for (const UnitWork& unit : units) total += static_cast<double>(unit.count) * unit.parameters.total();
    return total;
  }
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_WORK_H_
