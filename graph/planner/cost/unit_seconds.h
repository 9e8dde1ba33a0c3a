// Seconds of the units of a model, the parts of which an estimate is the sum.
#ifndef TACC_GRAPH_PLANNER_COST_UNIT_SECONDS_H_
#define TACC_GRAPH_PLANNER_COST_UNIT_SECONDS_H_

#include <cstdint>

#include "graph/planner/cost/cluster.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/cost/pipeline_seconds.h"
#include "graph/planner/cost/work.h"

namespace tacc::graph {

// Seconds of one micro-batch in one unit.
struct UnitSeconds {
  double compute = 0, recompute = 0, tensor = 0, context = 0, expert = 0;
  double in_forward = 0, in_weights = 0;  // of these: in the forward, and for gradients of weights
  // Traffic of weights and gradients that is exposed, by pass; and what hides behind compute of other units.
  PassSeconds data, hidden_data;
  // Not of a micro-batch, but of the step: copies around what is gathered and summed once.
  double gather_copies = 0, sum_copies = 0;
  double total() const { return compute + tensor + context + expert + data.total(); }
  PassSeconds passes() const {
    PassSeconds passes = data;
    passes.Add({in_forward, compute + tensor + context + expert - in_forward - in_weights, in_weights}, 1);
    return passes;
  }
  void Add(const UnitSeconds& o, double times) {
    compute += times * o.compute;
    recompute += times * o.recompute;
    tensor += times * o.tensor;
    context += times * o.context;
    expert += times * o.expert;
    in_forward += times * o.in_forward;
    in_weights += times * o.in_weights;
    data.Add(o.data, times);
    gather_copies += times * o.gather_copies;
    sum_copies += times * o.sum_copies;
  }
};

// The groups of ranks that talk to each other, by what they talk about.
struct Groups {
  GroupShape pp, tp, cp, ep;
  GroupShape shards;           // of a parameter, where ZeRO cuts it
  GroupShape replicas;         // of a shard of a parameter: gradients are summed over them once a step
  GroupShape expert_replicas;  // the same of an expert's
};
Groups GroupsOf(const Layout& l, int64_t devices_per_node);

// What one unit of a model takes in a layout, and what the whole step adds to that. All arguments are borrowed.
class UnitEstimator {
 public:
  UnitEstimator(const Cluster& cluster, const Layout& layout, const Execution& execution)
      : m_(cluster.machine),
        sums_(cluster.machine),
        l_(layout),
        x_(execution),
        g_(GroupsOf(layout, cluster.machine.devices_per_node)) {
    sums_.sums_in_order = sums_.sums_in_order || (x_.sums_widen && !m_.shares_cores);
  }
  UnitSeconds Unit(const UnitWork& unit) const;

  // Reduction of gradients over the replicas once a step, less what the backward of the last micro-batch hides where it
  // does, and the gathering of weights after a sharded update. `slot`: of all units of the stage, which has parameters
  // `p` in so many tensors.
  double DataOnce(const ParameterCount& p, double tensors, const UnitSeconds& slot) const;
  double Update(const ParameterCount& p) const;

  // The update's sum of the gradients of what lies on the first and on the last stage.
  double StageSum(const ParameterCount& p) const;

  // One way between two stages.
  double Send(double bytes_of_sample) const;

 private:
  // Unless all stages are on one node, some are not.
  GroupShape TwoStages() const { return {2, g_.pp.num_nodes() > 1 ? 1 : 2}; }

  struct Phase {
    double device = 0, tensor = 0, context = 0, expert = 0, kernels = 0;
    double ring = 0;         // steps of a ring that attention hides
    double before_ring = 0;  // of device
    double in_ring = 0;      // attention, and what is added up beside it
  };

  struct Phases {
    const Phase &forward, &again, &backward;
  };

  // ZeRO-3: weights are gathered before the forward, again before the backward where they were dropped. Sharded
  // gradients are reduced after the backward of every micro-batch. `scale`: what the unit computes over what its phases
  // take on the device.
  void AddData(const UnitWork& unit, const Phases& phases, double scale, UnitSeconds& s) const;

  bool IsOverOtherLinks(const GroupShape& g) const { return (g_.shards.num_nodes() > 1) != (g.num_nodes() > 1); }
  double HeldUpOverSameLinks(const Phase& phase) const;

  // The seconds of a forward or a backward that computes for so long in which traffic between the shards of a parameter
  // holds up nothing: more where collectives that hold up the kernels go over other links, less where hidden ones go
  // over the same.
  double Behind(const Phase& phase, double compute, bool is_forward) const;

  // Of tensors of so many bytes together, each by a collective of its own.
  static double Collectives(const Machine& machine, CollectiveKind kind, double bytes, double tensors,
                            const GroupShape& group);
  double Replicate(const ParameterCount& p, const GroupShape& group, double tensors) const;

  // Of an element of a gradient that has been summed.
  double SummedBytes() const { return x_.sums_widen ? 4 : x_.gradient_bytes; }

  // Around the gathers of a unit's weights and the sums of their gradients over shards: as PackedBytes.
  double CopiesOfGather(const UnitWork& unit) const;
  double CopiesOfSum(const UnitWork& unit) const;

  // What is done of a phase's work: all of a forward; what recomputation repeats of it; all of a backward; or what is
  // left of it where the forward has just been repeated.
  enum class Of { kForward, kAgain, kBackward, kBackwardAfterAgain };
  static bool IsDone(const TransferWork& transfer, Of of);
  Phase Run(const PhaseWork& work, Of of) const;

  // The steps of a ring: each computes what it has while the next keys come. Gradients of keys travel with them from
  // the second step on, and at last home, which nothing hides. `share`: of whole tensors.
  void GoRound(const PhaseWork& work, double share, Phase& phase) const;

  // The kernel's own, with its issue where that does not run ahead.
  double Issued(double device, bool is_launched = true) const;
  double Kernel(const KernelWork& k) const;

  // Of a unit's weights: each time that they are gathered, or kept for as long as a graph runs.
  double Casts(const UnitWork& unit, bool is_repeated) const;

  // Of a unit's gradients to those of the micro-batches before.
  double Accumulations(const UnitWork& unit) const;

  // Of a step of a ring where the sequence is split.
  double Attention(const KernelWork& k, double bytes) const;

  // Of the kernels that a ring hides behind: all products of the phase that have no weights.
  double WeightlessSeconds(const PhaseWork& work) const;

  const Machine& m_;
  Machine sums_;  // the same, as it sums gradients
  const Layout& l_;
  const Execution& x_;
  const Groups g_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_UNIT_SECONDS_H_
