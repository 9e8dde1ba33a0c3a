// One graph cut into those of the stages of a pipeline.
#ifndef TACC_GRAPH_PASSES_STAGES_GRAPH_CUTTER_H_
#define TACC_GRAPH_PASSES_STAGES_GRAPH_CUTTER_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/stages/stages.h"

namespace tacc::graph {

// Graphs of the parts of one graph, and what travels between them.
struct CutGraph {
  // Per stage, in the order in which a micro-batch meets them.
  std::vector<std::vector<Graph>> graphs;
  std::vector<std::vector<State>> stashes;
};

// Cuts the training graph (forward and backward) or the eval graph.
class GraphCutter {
 public:
  GraphCutter(const Graph& graph, const Program& program, const OpTable& ops, const StageOptions& options,
              const PipelineShape& shape, int* next_channel)
      : graph_(graph),
        program_(program),
        states_(program),
        ops_(ops),
        options_(options),
        shape_(shape),
        num_parts_(shape.num_virtual()),
        is_eval_(graph.Output("loss") != kNoValue),
        next_channel_(*next_channel) {}
  absl::StatusOr<CutGraph> Run();

 private:
  // A place is a pass over a part: place = pass * num_parts + part.
  int PlaceOf(PassKind pass, int part) const { return static_cast<int>(pass) * num_parts_ + part; }
  PassKind Pass(int place) const { return static_cast<PassKind>(place / num_parts_); }
  int Part(int place) const { return place % num_parts_; }
  int StageOf(int place) const { return Part(place) % shape_.num_stages; }
  int ChunkOf(int place) const { return Part(place) / shape_.num_stages; }
  int num_places() const { return 3 * num_parts_; }
  // When a micro-batch comes to the place.
  int TimeOf(int place) const;
  std::string PlaceName(int place) const;
  std::string StashName(ValueId v) const;
  const State* StateOf(const Node& node) const;

  // The forward is what comes up to the last counter: the loss.
  int NumForwardNodes() const;
  absl::Status AssignPlaces();

  // ---- gradients with parts on several stages ----

  // Ops through which a sum on its way to an accumulator passes unchanged.
  bool PassesSums(const Node& node) const;

  // The last part's place of the contributions to `v` on each stage, and the nodes that add them up.
  void CollectTerms(ValueId v, std::map<int, int>& place_of_stage, std::vector<int>& chain) const;

  // Each stage adds up its own contributions to a gradient; the update sums over stages.
  void SplitGradients();

  // The part of `v` that stage `stage` adds up; kNoValue: none.
  ValueId CloneSum(ValueId v, int stage, int place, const std::vector<int>& chain,
                   std::vector<std::pair<Node, int>>& added);

  // Reads of accumulators lie where they are used.
  void AssignReads();

  // What no other part waits for leads to weights' gradients only.
  void MoveToWeightPass();

  // ---- the graphs of the places ----

  struct Piece {
    Graph graph;
    std::vector<ValueId> values;  // of the whole graph -> of this one
    std::vector<Node> outputs;    // after what is sent: they wait for the other stages
  };
  absl::Status EmitAll();
  void Emit(int index, int place);
  ValueId Import(ValueId v, Piece& piece);

  // The value in the graph of `place`: made there, made again there, or read from its stash.
  ValueId Get(ValueId v, int place, const std::string& module);

  // From an operand that takes no more memory than the result, without arithmetic.
  bool IsCheaperMadeAgain(const Node& node) const;

  // Every stage puts out what one stage knows.
  void EmitOutputs();

  // ---- stashes and messages ----
  static Node MessageNode(const Op& op, const std::string& stash, const std::string& module, int channel);
  absl::StatusOr<CutGraph> Connect();

  Graph graph_;
  const Program& program_;
  const StateIndex states_;
  const OpTable& ops_;
  const StageOptions& options_;
  const PipelineShape& shape_;
  const int num_parts_;
  const bool is_eval_;
  int& next_channel_;
  int num_forward_ = 0;
  std::vector<int> places_;     // of each node, kDerived or kFollows
  std::vector<int> producers_;  // of each value
  std::vector<int> num_uses_;
  std::vector<Piece> pieces_;                   // by place
  std::map<ValueId, std::set<int>> crossings_;  // value -> places that read its stash
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_STAGES_GRAPH_CUTTER_H_
