#include "graph/passes/rewrite/join_products.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ops/einsum_spec.h"
#include "graph/passes/memory/plan_memory.h"

namespace tacc::graph {
namespace {

using Nodes = std::vector<int>;  // their indexes; of parts, in order

// The texts of "bse,me->bsm" and of its gradients, and the dim of the result in which several are joined: the first of
// the weight's own.
struct Specs {
  std::string forward, of_x, of_weight;
  int64_t dim = 0;
};

// Of a product whose weight has rows of what is contracted, and whose result ends with the weight's rows: what several
// weights make is then a matrix like its parts.
std::optional<Specs> SpecsOf(const std::string& text) {
  const auto spec = ParseEinsum(text);
  if (!spec.ok()) return std::nullopt;
  const auto in_x = [&](char c) { return spec->a.find(c) != std::string::npos; };
  const size_t num_rows = std::find_if(spec->b.begin(), spec->b.end(), in_x) - spec->b.begin();
  const std::string rows = spec->b.substr(0, num_rows), contracted = spec->b.substr(num_rows);
  if (rows.empty() || !std::all_of(contracted.begin(), contracted.end(), in_x)) return std::nullopt;
  if (spec->y.size() < num_rows || spec->y.substr(spec->y.size() - num_rows) != rows) return std::nullopt;
  const std::string before = spec->y.substr(0, spec->y.size() - num_rows);
  if (before + contracted != spec->a) return std::nullopt;
  return Specs{text, absl::StrCat(spec->y, ",", spec->b, "->", spec->a),
               absl::StrCat(spec->y, ",", spec->a, "->", spec->b), static_cast<int64_t>(before.size())};
}

// A node that makes the gradients of the products' results, and what is made of these.
struct Backward {
  int node = -1;
  Nodes rotaries;  // of the gradients of q and of k
  std::vector<ValueId> gradients;
  Nodes of_x;        // empty: none is made
  Nodes sums;        // of these, the last one is of all
  Nodes of_weights;  // -1: none is made
};

// Products that may be joined, and all that reads what they make.
struct Match {
  Specs specs;
  Nodes products;
  Nodes rotaries;  // of q and of k
  Nodes readers;   // swiglus, attentions
  std::vector<Backward> backwards;
  int64_t group = 0;  // query heads to one of k; 0: gate and up
};

class Joiner {
 public:
  Joiner(Graph& graph, const Mesh& mesh, const NodeSeconds& seconds)
      : graph_(graph), mesh_(mesh), seconds_(seconds), producers_(graph.Producers()), users_(graph.values.size()) {
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId v : graph.nodes[i].operands) users_[v].push_back(static_cast<int>(i));
    }
    taken_.assign(graph.nodes.size(), 0);
    instead_.resize(graph.nodes.size());
  }

  bool Run() {
    bool changed = false;
    const int num_nodes = static_cast<int>(graph_.nodes.size());
    for (int i = 0; i < num_nodes; ++i) {
      if (taken_[i]) continue;
      const std::optional<Match> match = Find(i);
      if (!match.has_value() || !IsFaster(*match)) continue;
      Join(*match);
      changed = true;
    }
    if (!changed) return false;
    std::vector<Node> nodes;
    for (int i = 0; i < num_nodes; ++i) {
      for (Node& node : instead_[i]) nodes.push_back(std::move(node));
      if (!taken_[i]) nodes.push_back(std::move(graph_.nodes[i]));
    }
    graph_.nodes = std::move(nodes);
    graph_.CompactValues();
    return true;
  }

 private:
  const Node& NodeOf(int i) const { return graph_.nodes[i]; }
  ValueId Operand(int node, int i) const { return graph_.nodes[node].operands[i]; }
  ValueId Result(int node, int i = 0) const { return graph_.nodes[node].results[i]; }

  bool LieAlike(ValueId a, ValueId b) const {
    return graph_.type(a) == graph_.type(b) && graph_.values[a].placement == graph_.values[b].placement;
  }

  // Whether the values differ in the extent of one dim only, of which each rank has as much as the others.
  bool LieAlikeBut(int64_t dim, ValueId a, ValueId b) const {
    Value x = graph_.values[a], y = graph_.values[b];
    if (x.type.rank() != y.type.rank() || x.placement.has_value() != y.placement.has_value()) return false;
    for (Value* v : {&x, &y}) {
      v->type.dims[dim] = 0;
      if (!v->placement.has_value()) continue;
      int64_t& extent = v->placement->global.dims[dim];
      if (extent % NumShards(mesh_, v->placement->sharding.dims[dim]) != 0) return false;
      extent = 0;
    }
    return x.type == y.type && x.placement == y.placement;
  }

  // Einsums of one form, alike in types and placements but for the extent of the dims given of the second operand and
  // of the result, of one repeat.
  bool AreAlike(const Nodes& einsums, int64_t operand_dim, int64_t result_dim) const {
    const Node& first = NodeOf(einsums[0]);
    return std::all_of(einsums.begin(), einsums.end(), [&](int i) {
      const Node& node = NodeOf(i);
      return node.op == "einsum" && node.attrs == first.attrs && node.recompute == first.recompute &&
             LieAlikeBut(operand_dim, node.operands[1], first.operands[1]) &&
             (result_dim < 0 ? LieAlike(node.results[0], first.results[0])
                             : LieAlikeBut(result_dim, node.results[0], first.results[0]));
    });
  }

  std::vector<ValueId> WeightsOf(const Nodes& products) const {
    std::vector<ValueId> weights;
    for (int i : products) weights.push_back(Operand(i, 1));
    return weights;
  }

  // What makes the weight: not what only gives it its dims.
  const Node& MakerOf(ValueId weight) const {
    int i = producers_[weight];
    while (NodeOf(i).op == "reshape") i = producers_[Operand(i, 0)];
    return NodeOf(i);
  }

  // Whether plan-memory may place the weights one behind the other, and nobody wants one of them elsewhere.
  bool MayLieTogether(const std::vector<ValueId>& weights) const {
    const Op& op = MakerOf(weights[0]).op;
    if (op != "cast" && op != Op::kAllGather && op != Op::kRead) return false;
    std::vector<std::string> states;
    for (ValueId v : weights) {
      if (MakerOf(v).op != op || graph_.type(v).bytes() % kArenaAlignment != 0) return false;
      if (const auto it = together_.find(v); it != together_.end() && it->second != weights) return false;
      states.push_back(MakerOf(v).symbol);
    }
    for (const std::string& state : states) {
      const auto it = states_together_.find(state);
      if (op == Op::kRead && it != states_together_.end() && it->second != states) return false;
    }
    const auto are_distinct = [](auto list) {
      std::sort(list.begin(), list.end());
      return std::adjacent_find(list.begin(), list.end()) == list.end();
    };
    return are_distinct(weights) && (op != Op::kRead || are_distinct(states));
  }

  void LetLieTogether(const std::vector<ValueId>& weights) {
    std::vector<std::string> states;
    for (ValueId v : weights) {
      together_[v] = weights;
      if (const Node& node = MakerOf(v); node.op == Op::kRead) states.push_back(node.symbol);
    }
    for (const std::string& state : states) states_together_[state] = states;
  }

  // By a node that reads what the products make.
  std::optional<Match> Find(int reader) const {
    const Node& node = NodeOf(reader);
    Match match;
    std::vector<ValueId> read;
    if (node.op == "swiglu") {
      read = node.operands;
    } else if (node.op == "attention") {
      read = {node.operands.begin(), node.operands.begin() + 3};
    } else {
      return std::nullopt;
    }
    std::vector<ValueId> made = read;
    if (node.op == "attention") {
      const int64_t heads = graph_.type(read[0]).dims[2], kv_heads = graph_.type(read[1]).dims[2];
      match.group = heads / kv_heads;
      if (graph_.type(read[0]).dims[3] != graph_.type(read[2]).dims[3]) return std::nullopt;
      if (std::optional<Nodes> rotaries = AlikeRotaries({producers_[read[0]], producers_[read[1]]})) {
        match.rotaries = *std::move(rotaries);
        for (int part = 0; part < 2; ++part) {
          made[part] = Operand(match.rotaries[part], 0);
          if (users_[made[part]].size() != 1) return std::nullopt;
        }
      }
    }
    for (ValueId v : made) {
      if (producers_[v] < 0) return std::nullopt;
      match.products.push_back(producers_[v]);
    }
    if (!AreProducts(match) || !FindReaders(read, match)) return std::nullopt;
    return match;
  }

  // Two rotaries that turn by the same tables, if these are such.
  std::optional<Nodes> AlikeRotaries(const Nodes& nodes) const {
    for (int i : nodes) {
      if (i < 0 || NodeOf(i).op != "rotary" || taken_[i]) return std::nullopt;
    }
    const Node &a = NodeOf(nodes[0]), &b = NodeOf(nodes[1]);
    const bool alike = a.attrs == b.attrs && a.recompute == b.recompute && a.operands[1] == b.operands[1] &&
                       a.operands[2] == b.operands[2] && a.attrs.count("parts") == 0;
    return alike ? std::optional(nodes) : std::nullopt;
  }

  // Whether the match's products are of one operand and may be joined.
  bool AreProducts(Match& match) const {
    const Node& first = NodeOf(match.products[0]);
    if (first.op != "einsum" || first.attrs.size() != 1) return false;
    const std::optional<Specs> specs = SpecsOf(GetAttr<std::string>(first.attrs, "spec"));
    if (!specs.has_value()) return false;
    match.specs = *specs;
    for (int i : match.products) {
      if (taken_[i] || NodeOf(i).op != "einsum" || Operand(i, 0) != first.operands[0]) return false;
    }
    // Rows of gate and up, heads of q, k and v.
    const int64_t rank = graph_.type(first.results[0]).rank(), inner = match.group > 0 ? 2 : 1;
    return AreAlike(match.products, 0, specs->dim) && specs->dim == rank - inner &&
           MayLieTogether(WeightsOf(match.products));
  }

  // Finds who reads the values: whether they are all such as can read them joined.
  bool FindReaders(const std::vector<ValueId>& read, Match& match) const {
    std::set<int> users;
    for (ValueId v : read) users.insert(users_[v].begin(), users_[v].end());
    for (int user : users) {
      const Node& node = NodeOf(user);
      const bool is_gradient = node.op == "swiglu_grad" || node.op == "attention_grad";
      if (!is_gradient && node.op != "swiglu" && node.op != "attention") return false;
      const size_t first = node.op == "attention_grad" ? 1 : 0;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        const bool is_part = i >= first && i < first + read.size();
        if (is_part ? node.operands[i] != read[i - first]
                    : std::find(read.begin(), read.end(), node.operands[i]) != read.end())
          return false;
      }
      if (taken_[user] || GetAttr<bool>(node.attrs, "wide") || GetAttr<int64_t>(node.attrs, "shift") != 0) return false;
      if (!is_gradient) {
        match.readers.push_back(user);
        continue;
      }
      std::optional<Backward> backward = FindBackward(user, match);
      if (!backward.has_value()) return false;
      match.backwards.push_back(*std::move(backward));
    }
    return true;
  }

  std::optional<Backward> FindBackward(int node, const Match& match) const {
    Backward backward;
    backward.node = node;
    backward.gradients = NodeOf(node).results;
    if (!match.rotaries.empty()) {
      Nodes turned;
      for (int part = 0; part < 2; ++part) {
        const std::vector<int>& users = users_[backward.gradients[part]];
        if (users.size() != 1) return std::nullopt;
        turned.push_back(users[0]);
      }
      const std::optional<Nodes> rotaries = AlikeRotaries(turned);
      if (!rotaries.has_value()) return std::nullopt;
      // The one that turns both comes right after this node.
      for (int table : {1, 2}) {
        if (producers_[Operand(turned[0], table)] > node) return std::nullopt;
      }
      backward.rotaries = *rotaries;
      for (int part = 0; part < 2; ++part) backward.gradients[part] = Result(turned[part]);
    }
    for (ValueId gradient : backward.gradients) {
      int of_x = -1, of_weight = -1;
      for (int user : users_[gradient]) {
        const Node& einsum = NodeOf(user);
        if (einsum.op != "einsum" || einsum.operands[0] != gradient || einsum.attrs.count("parts") > 0 || taken_[user])
          return std::nullopt;
        const std::string spec = GetAttr<std::string>(einsum.attrs, "spec");
        int& found = spec == match.specs.of_x ? of_x : of_weight;
        if (found >= 0 || (spec != match.specs.of_x && spec != match.specs.of_weight)) return std::nullopt;
        found = user;
      }
      if (of_x >= 0) backward.of_x.push_back(of_x);
      backward.of_weights.push_back(of_weight);
    }
    if (backward.of_x.empty()) return backward;
    if (backward.of_x.size() != match.products.size() || NodeOf(backward.of_x[0]).attrs.size() != 1 ||
        !AreAlike(backward.of_x, 0, -1) || !MayLieTogether(WeightsOf(backward.of_x)) || !FindSums(backward))
      return std::nullopt;
    return backward;
  }

  // The adds that make one value of the gradients of x.
  bool FindSums(Backward& backward) const {
    std::set<ValueId> terms;
    for (int i : backward.of_x) terms.insert(Result(i));
    if (terms.size() != backward.of_x.size()) return false;
    while (terms.size() > 1) {
      int sum = -1;
      for (ValueId term : terms) {
        const std::vector<int>& users = users_[term];
        if (users.size() != 1 || NodeOf(users[0]).op != "add") return false;
        const Node& add = NodeOf(users[0]);
        if (add.operands[0] != add.operands[1] && terms.count(add.operands[0]) + terms.count(add.operands[1]) == 2)
          sum = users[0];
      }
      if (sum < 0 || !LieAlike(Result(sum), Operand(sum, 0))) return false;
      terms.erase(Operand(sum, 0));
      terms.erase(Operand(sum, 1));
      terms.insert(Result(sum));
      backward.sums.push_back(sum);
    }
    return true;
  }

  double Seconds(const Nodes& nodes) const {
    double seconds = 0;
    for (int i : nodes) seconds += seconds_(NodeOf(i), CallOf(graph_, NodeOf(i)));
    return seconds;
  }
  // Of the products as one.
  double JoinedSeconds(const std::string& spec, const TensorType& a, const Nodes& products,
                       const TensorType& result) const {
    Node node;
    node.op = "einsum_joined";
    node.attrs = {{"spec", spec}};
    OpCall call{&node.attrs, {a}, {result}};
    for (ValueId v : WeightsOf(products)) call.operands.push_back(graph_.type(v));
    return seconds_(node, call);
  }

  bool IsFaster(const Match& match) const {
    const TensorType made = Joined(match.products, match.specs.dim).type;
    double apart = Seconds(match.products);
    double joined =
        JoinedSeconds(match.specs.forward, graph_.type(Operand(match.products[0], 0)), match.products, made);
    for (const Backward& backward : match.backwards) {
      if (backward.of_x.empty()) continue;
      apart += Seconds(backward.of_x);
      joined += JoinedSeconds(match.specs.of_x, made, backward.of_x, graph_.type(Result(backward.sums.back())));
    }
    return joined < apart;
  }

  // The results of the nodes as one value, one behind the other in dim `dim` on each rank.
  Value Joined(const Nodes& nodes, int64_t dim) const {
    Value whole = graph_.values[Result(nodes[0])];
    for (size_t i = 1; i < nodes.size(); ++i) {
      const Value& part = graph_.values[Result(nodes[i])];
      whole.type.dims[dim] += part.type.dims[dim];
      if (whole.placement.has_value()) whole.placement->global.dims[dim] += part.placement->global.dims[dim];
    }
    return whole;
  }
  ValueId AddLike(Value like) {  // Which may be one of the graph's: they move.
    const ValueId v = graph_.AddValue(like.name, like.type);
    graph_.values[v].placement = like.placement;
    return v;
  }

  // A node in place of `like`.
  static Node Instead(const Node& like, const char* op, std::vector<ValueId> operands, ValueId result, Attrs attrs) {
    Node node;
    node.op = op;
    node.operands = std::move(operands);
    node.results = {result};
    node.attrs = std::move(attrs);
    node.module = like.module;
    node.recompute = like.recompute;
    return node;
  }

  void Take(const Nodes& nodes) {
    for (int i : nodes) taken_[i] = 1;
  }

  Node JoinedProduct(const Nodes& products, ValueId a, ValueId result, const std::string& spec) {
    const std::vector<ValueId> weights = WeightsOf(products);
    std::vector<ValueId> operands = {a};
    operands.insert(operands.end(), weights.begin(), weights.end());
    Take(products);
    LetLieTogether(weights);
    return Instead(NodeOf(products[0]), "einsum_joined", std::move(operands), result, {{"spec", spec}});
  }

  // Turns the q and k of a joined value as these nodes do; the value itself where there are none.
  ValueId Turn(ValueId joined, const Nodes& rotaries, int64_t group, std::vector<Node>& nodes) {
    if (rotaries.empty()) return joined;
    const Node& like = NodeOf(rotaries[0]);
    const ValueId turned = AddLike(graph_.values[joined]);
    Attrs attrs = like.attrs;
    attrs["limit"] = group + 1;
    attrs["parts"] = group + 2;
    nodes.push_back(Instead(like, "rotary", {joined, like.operands[1], like.operands[2]}, turned, std::move(attrs)));
    Take(rotaries);
    return turned;
  }

  void Join(const Match& match) {
    Nodes before = match.products;
    before.insert(before.end(), match.rotaries.begin(), match.rotaries.end());
    std::vector<Node>& nodes = instead_[*std::max_element(before.begin(), before.end())];
    const Value like = Joined(match.products, match.specs.dim);
    const ValueId made = AddLike(like);
    nodes.push_back(JoinedProduct(match.products, Operand(match.products[0], 0), made, match.specs.forward));
    const ValueId read = Turn(made, match.rotaries, match.group, nodes);
    const bool is_attention = match.group > 0;
    for (int reader : match.readers) {
      Node& node = graph_.nodes[reader];
      node.op = is_attention ? "attention_joined" : "swiglu_joined";
      if (is_attention) node.attrs["group"] = match.group;
      node.operands.erase(node.operands.begin(), node.operands.begin() + match.products.size());
      node.operands.insert(node.operands.begin(), read);
    }
    for (const Backward& backward : match.backwards) JoinBackward(match, backward, read, like);
  }

  void JoinBackward(const Match& match, const Backward& backward, ValueId read, const Value& like) {
    const bool is_attention = match.group > 0;
    Node node = NodeOf(backward.node);
    const size_t first = is_attention ? 1 : 0;
    node.op = is_attention ? "attention_joined_grad" : "swiglu_joined_grad";
    if (is_attention) node.attrs["group"] = match.group;
    node.operands.erase(node.operands.begin() + first, node.operands.begin() + first + match.products.size());
    node.operands.insert(node.operands.begin() + first, read);
    Value gradients = like;
    gradients.name = graph_.values[node.results[0]].name;
    node.results = {AddLike(gradients)};
    std::vector<Node>& nodes = instead_[backward.node];
    nodes.push_back(node);
    Take({backward.node});
    const ValueId gradient = Turn(node.results[0], backward.rotaries, match.group, nodes);
    if (!backward.of_x.empty()) {
      Take(backward.sums);
      const int sum = backward.sums.back();
      instead_[sum] = {JoinedProduct(backward.of_x, gradient, Result(sum), match.specs.of_x)};
    }
    const int64_t parts = is_attention ? match.group + 2 : 2;
    for (int64_t part = 0; part < static_cast<int64_t>(backward.of_weights.size()); ++part) {
      if (backward.of_weights[part] < 0) continue;
      Node& product = graph_.nodes[backward.of_weights[part]];
      product.operands[0] = gradient;
      product.attrs["dim"] = match.specs.dim;
      product.attrs["parts"] = parts;
      product.attrs["start"] = is_attention && part > 0 ? match.group + part - 1 : part;
      product.attrs["limit"] = is_attention ? match.group + part : part + 1;
    }
  }

  Graph& graph_;
  const Mesh& mesh_;
  const NodeSeconds& seconds_;
  const std::vector<int> producers_;
  std::vector<std::vector<int>> users_;     // of values
  std::vector<char> taken_;                 // nodes that are no more
  std::vector<std::vector<Node>> instead_;  // by node: what comes in its place
  // Weights that are joined, and states that are read as such: with which, in order.
  std::map<ValueId, std::vector<ValueId>> together_;
  std::map<std::string, std::vector<std::string>> states_together_;
};

}  // namespace

bool JoinProducts(Program& program, const OpTable&, const NodeSeconds& seconds) {
  bool changed = false;
  for (Graph& graph : program.graphs) changed |= Joiner(graph, program.mesh, seconds).Run();
  return changed;
}

}  // namespace tacc::graph
