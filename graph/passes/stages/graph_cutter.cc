#include "graph/passes/stages/graph_cutter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

constexpr int kDerived = -1;  // a node that is made again wherever it is needed
constexpr int kFollows = -2;  // a read of an accumulator: lies where it is used

}  // namespace

absl::StatusOr<CutGraph> GraphCutter::Run() {
  num_forward_ = NumForwardNodes();
  TACC_RETURN_IF_ERROR(AssignPlaces());
  SplitGradients();
  AssignReads();
  if (shape_.schedule == PipelineSchedule::kZeroBubble) MoveToWeightPass();
  TACC_RETURN_IF_ERROR(EmitAll());
  if (is_eval_) EmitOutputs();
  return Connect();
}

int GraphCutter::TimeOf(int place) const {
  return Pass(place) == PassKind::kForward ? place : (static_cast<int>(Pass(place)) + 1) * num_parts_ - Part(place);
}

std::string GraphCutter::PlaceName(int place) const {
  return is_eval_ ? absl::StrCat("eval.", ChunkOf(place)) : GraphName(Pass(place), ChunkOf(place));
}

std::string GraphCutter::StashName(ValueId v) const {
  return absl::StrCat(is_eval_ ? "stash/eval." : "stash/", graph_.values[v].name);
}

const State* GraphCutter::StateOf(const Node& node) const {
  if (node.op != Op::kRead && node.op != Op::kStore) return nullptr;
  return states_.Find(node.symbol);
}

int GraphCutter::NumForwardNodes() const {
  if (is_eval_) return static_cast<int>(graph_.nodes.size());
  int end = 0;
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    const State* state = StateOf(graph_.nodes[i]);
    if (graph_.nodes[i].op == Op::kStore && state != nullptr && state->kind == StateKind::kCounter)
      end = static_cast<int>(i) + 1;
  }
  return end;
}

absl::Status GraphCutter::AssignPlaces() {
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

bool GraphCutter::PassesSums(const Node& node) const {
  return node.operands.size() == 1 && node.results.size() == 1 &&
         (ops_.Find(node.op)->is_collective || node.op == Op::kShardSlice || node.op == Op::kMaskPadding ||
          node.op == "cast" || node.op == "reshape");
}

void GraphCutter::CollectTerms(ValueId v, std::map<int, int>& place_of_stage, std::vector<int>& chain) const {
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

void GraphCutter::SplitGradients() {
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

ValueId GraphCutter::CloneSum(ValueId v, int stage, int place, const std::vector<int>& chain,
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

void GraphCutter::AssignReads() {
  for (size_t i = 0; i < graph_.nodes.size(); ++i) {
    for (ValueId v : graph_.nodes[i].operands) {
      int& place = places_[producers_[v]];
      if (place == kFollows && places_[i] >= 0) place = places_[i];
    }
  }
}

void GraphCutter::MoveToWeightPass() {
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

absl::Status GraphCutter::EmitAll() {
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

void GraphCutter::Emit(int index, int place) {
  Node node = graph_.nodes[index];
  for (ValueId& v : node.operands) v = Get(v, place, node.module);
  Piece& piece = pieces_[place];
  for (ValueId& v : node.results) v = Import(v, piece);
  piece.graph.nodes.push_back(std::move(node));
}

ValueId GraphCutter::Import(ValueId v, Piece& piece) {
  piece.graph.values.push_back(graph_.values[v]);
  return piece.values[v] = static_cast<ValueId>(piece.graph.values.size() - 1);
}

ValueId GraphCutter::Get(ValueId v, int place, const std::string& module) {
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

bool GraphCutter::IsCheaperMadeAgain(const Node& node) const {
  if (node.operands.size() != 1 || node.results.size() != 1) return false;
  if (graph_.type(node.operands[0]).bytes() > graph_.type(node.results[0]).bytes()) return false;
  const OpDef& def = *ops_.Find(node.op);
  const std::vector<int> aliases = def.aliases ? def.aliases(CallOf(graph_, node)) : std::vector<int>();
  return (!aliases.empty() && aliases[0] >= 0) || node.op == Op::kAllGather || node.op == "cast" ||
         node.op == Op::kMaskPadding;
}

void GraphCutter::EmitOutputs() {
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

Node GraphCutter::MessageNode(const Op& op, const std::string& stash, const std::string& module, int channel) {
  Node node;
  node.op = op;
  node.symbol = stash;
  node.module = module;
  node.attrs = {{"channel", static_cast<int64_t>(channel)}};
  return node;
}

absl::StatusOr<CutGraph> GraphCutter::Connect() {
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

}  // namespace tacc::graph
