#include "graph/passes/stages/stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/rewrite/simplify.h"

namespace tacc::graph {
namespace {

constexpr int kDerived = -1;  // a node that is made again wherever it is needed
constexpr int kFollows = -2;  // a read of an accumulator: lies where it is used

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

  absl::StatusOr<CutGraph> Run() {
    num_forward_ = NumForwardNodes();
    TACC_RETURN_IF_ERROR(AssignPlaces());
    SplitGradients();
    AssignReads();
    if (shape_.schedule == PipelineSchedule::kZeroBubble) MoveToWeightPass();
    TACC_RETURN_IF_ERROR(EmitAll());
    if (is_eval_) EmitOutputs();
    return Connect();
  }

 private:
  // A place is a pass over a part: place = pass * num_parts + part.
  int PlaceOf(PassKind pass, int part) const { return static_cast<int>(pass) * num_parts_ + part; }
  PassKind Pass(int place) const { return static_cast<PassKind>(place / num_parts_); }
  int Part(int place) const { return place % num_parts_; }
  int StageOf(int place) const { return Part(place) % shape_.num_stages; }
  int ChunkOf(int place) const { return Part(place) / shape_.num_stages; }
  int num_places() const { return 3 * num_parts_; }
  // When a micro-batch comes to the place.
  int TimeOf(int place) const {
    return Pass(place) == PassKind::kForward ? place : (static_cast<int>(Pass(place)) + 1) * num_parts_ - Part(place);
  }
  std::string PlaceName(int place) const {
    return is_eval_ ? absl::StrCat("eval.", ChunkOf(place)) : GraphName(Pass(place), ChunkOf(place));
  }
  std::string StashName(ValueId v) const {
    return absl::StrCat(is_eval_ ? "stash/eval." : "stash/", graph_.values[v].name);
  }
  const State* StateOf(const Node& node) const {
    if (node.op != Op::kRead && node.op != Op::kStore) return nullptr;
    return states_.Find(node.symbol);
  }

  // The forward is what comes up to the last counter: the loss.
  int NumForwardNodes() const {
    if (is_eval_) return static_cast<int>(graph_.nodes.size());
    int end = 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const State* state = StateOf(graph_.nodes[i]);
      if (graph_.nodes[i].op == Op::kStore && state != nullptr && state->kind == StateKind::kCounter)
        end = static_cast<int>(i) + 1;
    }
    return end;
  }

  absl::Status AssignPlaces() {
    const std::vector<char> derived = DerivedNodes(graph_, program_, ops_);
    TACC_ASSIGN_OR_RETURN(const std::vector<int> cuts, CutPoints(graph_, num_forward_, ops_, options_, num_parts_));
    producers_ = graph_.Producers();
    places_.assign(graph_.nodes.size(), kDerived);
    std::map<std::string, std::set<int>> parts_of;  // module -> parts
    int part = 0;
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      const Node& node = graph_.nodes[i];
      if (derived[i]) continue;
      if (node.op == Op::kRead) {
        places_[i] = kFollows;
      } else if (node.op == Op::kOutput) {
        places_[i] = std::max(0, places_[producers_[node.operands[0]]]);
      } else if (i < num_forward_) {
        while (part + 1 < num_parts_ && i >= cuts[part + 1]) ++part;
        places_[i] = PlaceOf(PassKind::kForward, part);
        parts_of[node.module].insert(part);
      } else {
        // The backward runs through the parts the other way; a module that several parts share does not move it.
        const auto it = parts_of.find(node.module);
        if (it != parts_of.end() && it->second.size() == 1) part = *it->second.begin();
        places_[i] = PlaceOf(PassKind::kBackward, part);
      }
    }
    return absl::OkStatus();
  }

  // ---- gradients with parts on several stages ----

  // Ops through which a sum on its way to an accumulator passes unchanged.
  bool PassesSums(const Node& node) const {
    return node.operands.size() == 1 && node.results.size() == 1 &&
           (ops_.Find(node.op)->is_collective || node.op == Op::kShardSlice || node.op == Op::kMaskPadding ||
            node.op == "cast" || node.op == "reshape");
  }

  // The last part's place of the contributions to `v` on each stage, and the nodes that add them up.
  void CollectTerms(ValueId v, std::map<int, int>& place_of_stage, std::vector<int>& chain) const {
    const int n = producers_[v];
    const Node& node = graph_.nodes[n];
    const bool carries = num_uses_[v] == 1 && ((node.op == "add" && node.operands.size() == 2) || PassesSums(node));
    if (places_[n] == kFollows || (carries && n >= num_forward_)) {
      chain.push_back(n);
      for (ValueId operand : node.operands) CollectTerms(operand, place_of_stage, chain);
      return;
    }
    if (places_[n] == kDerived) return;
    const auto [it, inserted] = place_of_stage.try_emplace(StageOf(places_[n]), places_[n]);
    if (!inserted && TimeOf(places_[n]) > TimeOf(it->second)) it->second = places_[n];
  }

  // Each stage adds up its own contributions to a gradient; the update sums over stages.
  void SplitGradients() {
    num_uses_.assign(graph_.values.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (ValueId v : node.operands) ++num_uses_[v];
    }
    std::vector<std::vector<std::pair<Node, int>>> added(graph_.nodes.size());  // after a node: nodes and places
    std::vector<char> removed(graph_.nodes.size(), 0);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const State* state = StateOf(graph_.nodes[i]);
      if (graph_.nodes[i].op != Op::kStore || state == nullptr || state->kind != StateKind::kGradient) continue;
      const ValueId sum = graph_.nodes[i].operands[0];
      std::map<int, int> place_of_stage;
      std::vector<int> chain;
      CollectTerms(sum, place_of_stage, chain);
      if (place_of_stage.empty()) continue;
      chain.push_back(static_cast<int>(i));
      if (place_of_stage.size() == 1) {
        for (int n : chain) places_[n] = place_of_stage.begin()->second;
        continue;
      }
      for (int n : chain) removed[n] = 1;
      for (const auto& [stage, place] : place_of_stage) {
        Node store = graph_.nodes[i];
        store.operands = {CloneSum(sum, stage, place, chain, added[i])};
        added[i].emplace_back(std::move(store), place);
      }
    }
    std::vector<Node> nodes;
    std::vector<int> places;
    int num_forward = num_forward_;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (static_cast<int>(i) == num_forward_) num_forward = static_cast<int>(nodes.size());
      if (!removed[i]) {
        nodes.push_back(std::move(graph_.nodes[i]));
        places.push_back(places_[i]);
      }
      for (auto& [node, place] : added[i]) {
        nodes.push_back(std::move(node));
        places.push_back(place);
      }
    }
    num_forward_ = num_forward;
    graph_.nodes = std::move(nodes);
    places_ = std::move(places);
    producers_ = graph_.Producers();
  }

  // The part of `v` that stage `stage` adds up; kNoValue: none.
  ValueId CloneSum(ValueId v, int stage, int place, const std::vector<int>& chain,
                   std::vector<std::pair<Node, int>>& added) {
    const int n = producers_[v];
    if (std::find(chain.begin(), chain.end(), n) == chain.end())
      return places_[n] >= 0 && StageOf(places_[n]) == stage ? v : kNoValue;
    Node node = graph_.nodes[n];
    std::vector<ValueId> operands;
    for (ValueId operand : node.operands) {
      const ValueId part = CloneSum(operand, stage, place, chain, added);
      if (part != kNoValue) operands.push_back(part);
    }
    if (!node.operands.empty() && operands.empty()) return kNoValue;
    if (operands.size() < node.operands.size()) return operands[0];  // an add of one
    node.operands = std::move(operands);
    const Value original = graph_.values[v];
    node.results = {graph_.AddValue(original.name, original.type)};
    graph_.values.back().placement = original.placement;
    const ValueId result = node.results[0];
    added.emplace_back(std::move(node), place);
    return result;
  }

  // Reads of accumulators lie where they are used.
  void AssignReads() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (ValueId v : graph_.nodes[i].operands) {
        int& place = places_[producers_[v]];
        if (place == kFollows && places_[i] >= 0) place = places_[i];
      }
    }
  }

  // What no other part waits for leads to weights' gradients only.
  void MoveToWeightPass() {
    std::vector<std::vector<int>> users(graph_.values.size());
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (ValueId v : graph_.nodes[i].operands) users[v].push_back(static_cast<int>(i));
    }
    std::vector<char> waited_for(graph_.nodes.size(), 0);
    for (int i = static_cast<int>(graph_.nodes.size()) - 1; i >= 0; --i) {
      if (places_[i] < 0 || Pass(places_[i]) != PassKind::kBackward || Part(places_[i]) == 0) continue;
      for (ValueId v : graph_.nodes[i].results) {
        for (int user : users[v]) {
          const bool same = places_[user] >= 0 && Part(places_[user]) == Part(places_[i]);
          if (!same || waited_for[user]) waited_for[i] = 1;
        }
      }
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (places_[i] >= 0 && Pass(places_[i]) == PassKind::kBackward && Part(places_[i]) > 0 && !waited_for[i])
        places_[i] = PlaceOf(PassKind::kWeight, Part(places_[i]));
    }
  }

  // ---- the graphs of the places ----

  struct Piece {
    Graph graph;
    std::vector<ValueId> values;  // of the whole graph -> of this one
    std::vector<Node> outputs;    // after what is sent: they wait for the other stages
  };

  absl::Status EmitAll() {
    pieces_.resize(num_places());
    for (int place = 0; place < num_places(); ++place) {
      pieces_[place].graph = graph_.EmptyPart(PlaceName(place));
      pieces_[place].values.assign(graph_.values.size(), kNoValue);
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (places_[i] >= 0 && !(is_eval_ && graph_.nodes[i].op == Op::kOutput)) Emit(static_cast<int>(i), places_[i]);
    }
    return absl::OkStatus();
  }

  void Emit(int index, int place) {
    Node node = graph_.nodes[index];
    for (ValueId& v : node.operands) v = Get(v, place, node.module);
    Piece& piece = pieces_[place];
    for (ValueId& v : node.results) v = Import(v, piece);
    piece.graph.nodes.push_back(std::move(node));
  }

  ValueId Import(ValueId v, Piece& piece) {
    piece.graph.values.push_back(graph_.values[v]);
    return piece.values[v] = static_cast<ValueId>(piece.graph.values.size() - 1);
  }

  // The value in the graph of `place`: made there, made again there, or read from its stash.
  ValueId Get(ValueId v, int place, const std::string& module) {
    Piece& piece = pieces_[place];
    if (piece.values[v] != kNoValue) return piece.values[v];
    const int n = producers_[v];
    if (places_[n] == kDerived || IsCheaperMadeAgain(graph_.nodes[n])) {
      Emit(n, place);
      return piece.values[v];
    }
    crossings_[v].insert(place);
    Node read;
    read.op = Op::kRead;
    read.symbol = StashName(v);
    read.module = module;
    read.results = {Import(v, piece)};
    piece.graph.nodes.push_back(std::move(read));
    return piece.values[v];
  }

  // From an operand that takes no more memory than the result, without arithmetic.
  bool IsCheaperMadeAgain(const Node& node) const {
    if (node.operands.size() != 1 || node.results.size() != 1) return false;
    if (graph_.type(node.operands[0]).bytes() > graph_.type(node.results[0]).bytes()) return false;
    const OpDef& def = *ops_.Find(node.op);
    const std::vector<int> aliases = def.aliases ? def.aliases(CallOf(graph_, node)) : std::vector<int>();
    return (!aliases.empty() && aliases[0] >= 0) || node.op == Op::kAllGather || node.op == "cast" ||
           node.op == Op::kMaskPadding;
  }

  // Every stage puts out what one stage knows.
  void EmitOutputs() {
    std::vector<int64_t> stages;
    for (int stage = 0; stage < shape_.num_stages; ++stage) stages.push_back(stage);
    for (const Node& output : graph_.nodes) {
      if (output.op != Op::kOutput) continue;
      const ValueId v = output.operands[0];
      const int n = producers_[v];
      for (int stage = 0; stage < shape_.num_stages; ++stage) {
        const int place = PlaceOf(PassKind::kForward, (shape_.num_chunks - 1) * shape_.num_stages + stage);
        Piece& piece = pieces_[place];
        if (places_[n] == kDerived) {
          Node own = output;
          own.operands = {Get(v, place, output.module)};
          piece.outputs.push_back(std::move(own));
          continue;
        }
        const auto add = [&](Node node) {
          node.module = output.module;
          node.results = {piece.graph.AddValue(graph_.values[v].name, graph_.type(v))};
          piece.graph.values.back().placement = graph_.values[v].placement;
          piece.outputs.push_back(std::move(node));
          return piece.outputs.back().results[0];
        };
        ValueId own = kNoValue;
        if (StageOf(places_[n]) == stage) {
          own = Get(v, place, output.module);
        } else {
          Node zero;
          zero.op = Op::kConstant;
          zero.attrs = {{"value", 0.0},
                        {"dtype", std::string(Name(graph_.type(v).dtype))},
                        {"shape", graph_.values[v].placement->global.dims}};
          own = add(std::move(zero));
        }
        Node sum;
        sum.op = Op::kStageSum;
        sum.attrs = {{"stages", stages}};
        sum.operands = {own};
        Node end = output;
        end.operands = {add(std::move(sum))};
        piece.outputs.push_back(std::move(end));
      }
    }
  }

  // ---- stashes and messages ----

  static Node MessageNode(const Op& op, const std::string& stash, const std::string& module, int channel) {
    Node node;
    node.op = op;
    node.symbol = stash;
    node.module = module;
    node.attrs = {{"channel", static_cast<int64_t>(channel)}};
    return node;
  }

  absl::StatusOr<CutGraph> Connect() {
    CutGraph result;
    result.stashes.resize(shape_.num_stages);
    std::vector<Graph> receives(num_places()), finishes(num_places());
    for (const auto& [v, consumers] : crossings_) {
      const int from = places_[producers_[v]];
      const std::string stash = StashName(v);
      const std::string& module = graph_.nodes[producers_[v]].module;
      State state;
      state.name = stash;
      state.kind = StateKind::kStash;
      state.init = "zeros";
      state.type = graph_.type(v);
      state.placement = *graph_.values[v].placement;
      std::map<int, int> first;  // stage -> the first place there that takes the value
      for (int place : consumers) {
        const auto [it, inserted] = first.try_emplace(StageOf(place), place);
        if (!inserted && TimeOf(place) < TimeOf(it->second)) it->second = place;
      }
      Graph& made_in = pieces_[from].graph;
      Node store;
      store.op = Op::kStore;
      store.symbol = stash;
      store.module = module;
      store.operands = {pieces_[from].values[v]};
      made_in.nodes.push_back(std::move(store));
      result.stashes[StageOf(from)].push_back(state);
      for (const auto& [stage, place] : first) {
        if (stage == StageOf(from)) continue;
        const int channel = next_channel_++;
        Node send = MessageNode(Op::kSend, stash, module, channel);
        send.attrs["to"] = static_cast<int64_t>(stage);
        made_in.nodes.push_back(std::move(send));
        finishes[from].nodes.push_back(MessageNode(Op::kFinish, stash, module, channel));
        Node receive = MessageNode(Op::kRecv, stash, module, channel);
        receive.attrs["from"] = static_cast<int64_t>(StageOf(from));
        receives[place].nodes.push_back(std::move(receive));
        std::vector<Node>& nodes = pieces_[place].graph.nodes;
        const auto read = std::find_if(nodes.begin(), nodes.end(),
                                       [&](const Node& node) { return node.op == Op::kRead && node.symbol == stash; });
        if (read == nodes.end()) return absl::InternalError(absl::StrCat("\"", stash, "\" is received but not read"));
        nodes.insert(read, MessageNode(Op::kFinish, stash, module, channel));
        result.stashes[stage].push_back(state);
      }
    }
    std::vector<int> order(num_places());
    for (int place = 0; place < num_places(); ++place) order[place] = place;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return TimeOf(a) < TimeOf(b); });
    result.graphs.resize(shape_.num_stages);
    for (int place : order) {
      std::vector<Graph>& graphs = result.graphs[StageOf(place)];
      const std::string name = pieces_[place].graph.name;
      const auto take = [&](Graph& graph, const char* prefix) {
        if (graph.nodes.empty()) return;
        graph.name = absl::StrCat(prefix, name);
        graphs.push_back(std::move(graph));
      };
      for (Node& node : pieces_[place].outputs) pieces_[place].graph.nodes.push_back(std::move(node));
      take(receives[place], "receive.");
      take(pieces_[place].graph, "");
      take(finishes[place], "finish.");
    }
    return result;
  }

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

// The calls of an evaluation: everything that arrives is awaited from the start.
std::vector<Call> EvalCalls(const Program& program, int num_chunks) {
  std::vector<Call> calls;
  for (const char* prefix : {"receive.", "", "finish."}) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const std::string name = absl::StrCat(prefix, "eval.", chunk);
      if (program.FindGraph(name) != nullptr) calls.push_back({name, 0});
    }
  }
  return calls;
}

// The states that each graph reads or stores.
void CollectStates(const Graph& graph, int stage, std::map<std::string, std::set<int>>& stages_of) {
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kRead || node.op == Op::kStore) stages_of[node.symbol].insert(stage);
  }
}

// A stage has all states of a parameter, or none; every stage has the loss scale, and updates it alike.
void CompleteStates(const Program& program, int num_stages, std::map<std::string, std::set<int>>& stages_of) {
  std::map<std::string, std::set<int>> stages_of_parameter;
  const auto parameter = [](const State& state) { return state.name.substr(state.name.find('/') + 1); };
  const auto belongs = [](const State& state) {
    return state.kind != StateKind::kCounter && state.kind != StateKind::kLossScale && state.kind != StateKind::kStash;
  };
  for (const State& state : program.states) {
    if (belongs(state)) stages_of_parameter[parameter(state)].merge(std::set<int>(stages_of[state.name]));
  }
  for (const State& state : program.states) {
    if (belongs(state)) stages_of[state.name] = stages_of_parameter[parameter(state)];
    if (state.kind != StateKind::kLossScale) continue;
    for (int stage = 0; stage < num_stages; ++stage) stages_of[state.name].insert(stage);
  }
}

}  // namespace

absl::StatusOr<bool> CutStages(std::vector<Program>& programs, const OpTable& ops, const StageOptions& options) {
  const Program& program = programs[0];
  const int axis = program.mesh.Find(kStageAxis);
  if (axis < 0) return absl::InternalError(absl::StrCat("the mesh has no axis ", kStageAxis));
  const Graph* training = program.FindGraph("forward_backward");
  const Graph* update = program.FindGraph(kUpdateGraph);
  const Graph* eval = program.FindGraph("eval");
  if (training == nullptr || update == nullptr || eval == nullptr)
    return absl::InvalidArgumentError("wanted the graphs forward_backward, update and eval");
  PipelineShape shape;
  shape.schedule = options.schedule;
  shape.num_stages = static_cast<int>(program.mesh.axes[axis].size);
  shape.num_chunks = options.num_chunks;
  shape.num_micro_batches = std::count_if(program.step.begin(), program.step.end(),
                                          [](const Call& call) { return call.graph == "forward_backward"; });
  int next_channel = 0;
  TACC_ASSIGN_OR_RETURN(CutGraph steps, GraphCutter(*training, program, ops, options, shape, &next_channel).Run());
  TACC_ASSIGN_OR_RETURN(CutGraph evals, GraphCutter(*eval, program, ops, options, shape, &next_channel).Run());
  std::map<std::string, std::set<int>> stages_of;
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    for (const CutGraph* cut : {&steps, &evals}) {
      for (const Graph& graph : cut->graphs[stage]) CollectStates(graph, stage, stages_of);
    }
  }
  CompleteStates(program, shape.num_stages, stages_of);
  TACC_ASSIGN_OR_RETURN(std::vector<Graph> updates, CutUpdate(*update, program, ops, stages_of, shape.num_stages));

  std::vector<Program> stages(shape.num_stages);
  for (const State& state : program.states) {
    const std::set<int>& on = stages_of[state.name];
    for (int stage : on) {
      stages[stage].states.push_back(state);
      if (*on.begin() != stage) stages[stage].states.back().owner = *on.begin();
    }
  }
  const Graph* begin = program.FindGraph(kBeginGraph);
  std::vector<Graph> begins;
  if (begin != nullptr) begins = CutBegin(*begin, ops, stages_of, shape.num_stages);
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    Program& out = stages[stage];
    out.level = program.level;
    out.mesh = program.mesh;
    out.stage = stage;
    out.num_stages = shape.num_stages;
    for (CutGraph* cut : {&steps, &evals}) {
      for (State& state : cut->stashes[stage]) out.states.push_back(std::move(state));
    }
    if (begin != nullptr) {
      out.graphs.push_back(std::move(begins[stage]));
      out.step.push_back({begin->name, 0});
    }
    for (Graph& graph : steps.graphs[stage]) out.graphs.push_back(std::move(graph));
    out.graphs.push_back(std::move(updates[stage]));
    for (Graph& graph : evals.graphs[stage]) out.graphs.push_back(std::move(graph));
    TACC_ASSIGN_OR_RETURN(const std::vector<PassCall> passes, PassesOf(shape, stage));
    for (Call& call : CallsOf(out, passes)) out.step.push_back(std::move(call));
    out.step.push_back({kUpdateGraph, 0});
    out.eval = EvalCalls(out, shape.num_chunks);
    AssignSlots(out);
  }
  programs = std::move(stages);
  return true;
}

}  // namespace tacc::graph
