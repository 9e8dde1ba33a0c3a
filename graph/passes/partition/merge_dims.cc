#include "graph/passes/partition/merge_dims.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/state_names.h"

namespace tacc::graph {
namespace {

class DimMerger {
 public:
  DimMerger(Graph& graph, const StateIndex& states, const ParameterForms& forms)
      : graph_(graph), states_(states), forms_(forms), is_update_(graph.name == kUpdateGraph) {}

  void Run() {
    bool any = false;
    for (const auto& [name, form] : forms_) any = any || form.is_merged();
    if (!any) return;
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    form_of_.assign(graph_.values.size(), nullptr);
    for (Node& node : nodes) {
      if (node.op == Op::kConstant) constants_[node.results[0]] = node;
      if (node.op == Op::kRead) {
        Read(std::move(node));
      } else if (node.op == Op::kStore) {
        Store(std::move(node));
      } else {
        Visit(std::move(node));
      }
    }
  }

 private:
  // The form of a state like a parameter that has merged dims; else null.
  const ParameterForm* FormOf(const State* state) const {
    if (state == nullptr) return nullptr;
    const auto it = forms_.find(ParameterOf(*state));
    if (it == forms_.end() || !it->second.is_merged() || state->logical_dims() != it->second.dims) return nullptr;
    return &it->second;
  }

  void Read(Node node) {
    const ValueId v = node.results[0];
    const State* state = states_.Find(node.symbol);
    const ParameterForm* form = FormOf(state);
    if (form != nullptr && !state->merged_from.empty()) SetMerged(v, form);
    if (state != nullptr && state->kind == StateKind::kGradient) gradients_.insert(v);
    const bool is_apart = form != nullptr && state->merged_from.empty() && is_update_;
    const std::string module = node.module;
    graph_.nodes.push_back(std::move(node));
    if (is_apart) merged_[v] = Reshape(v, form->merged_dims, module, form);
  }

  void Store(Node node) {
    const State* state = states_.Find(node.symbol);
    const ParameterForm* form = FormOf(state);
    if (form != nullptr) {
      const ValueId v = Latest(node.operands[0]);
      const bool is_merged = form_of_[v] != nullptr;
      const bool wants_merged = !state->merged_from.empty();
      node.operands[0] = is_merged == wants_merged ? v
                         : wants_merged            ? Merged(v, node.module, form)
                                                   : Reshape(v, form->dims, node.module, nullptr);
    }
    graph_.nodes.push_back(std::move(node));
  }

  // Any other node.
  void Visit(Node node) {
    const ParameterForm* form = nullptr;
    for (ValueId& v : node.operands) {
      v = Latest(v);
      if (form == nullptr) form = form_of_[v];
    }
    if (form != nullptr && StaysMerged(node)) {
      for (ValueId& v : node.operands) {
        if (form_of_[v] == nullptr && graph_.type(v).dims == form->dims) v = Merged(v, node.module, form);
      }
      for (ValueId v : node.results) {
        if (graph_.type(v).dims == form->dims) SetMerged(v, form);
        if (node.op == "add") gradients_.insert(v);
      }
    } else if (form != nullptr) {
      for (ValueId& v : node.operands) {
        if (form_of_[v] != nullptr) v = Apart(v, node.module);
      }
    }
    graph_.nodes.push_back(std::move(node));
  }

  // What the update does is done element by element, or sums over all. Elsewhere casts to less and sums of gradients
  // are made where the states lie.
  bool StaysMerged(const Node& node) const {
    if (is_update_) return true;
    if (node.op == "add")
      return std::any_of(node.operands.begin(), node.operands.end(),
                         [&](ValueId v) { return gradients_.count(v) > 0; });
    return node.op == "cast" &&
           ByteSize(graph_.type(node.results[0]).dtype) < ByteSize(graph_.type(node.operands[0]).dtype);
  }

  // Of a value that was read apart and is used merged, that.
  ValueId Latest(ValueId v) const {
    const auto it = merged_.find(v);
    return it == merged_.end() ? v : it->second;
  }

  void SetMerged(ValueId v, const ParameterForm* form) {
    graph_.values[v].type.dims = form->merged_dims;
    form_of_[v] = form;
  }

  // A constant is made again as it is wanted.
  ValueId Merged(ValueId v, const std::string& module, const ParameterForm* form) {
    const auto found = constants_.find(v);
    if (found == constants_.end()) return Reshape(v, form->merged_dims, module, form);
    Node constant = found->second;
    const ValueId made = AddValue(graph_.values[v].name, {graph_.type(v).dtype, form->merged_dims}, form);
    constant.attrs["shape"] = form->merged_dims;
    constant.results = {made};
    graph_.nodes.push_back(std::move(constant));
    return made;
  }

  // Once for each module that reads it.
  ValueId Apart(ValueId v, const std::string& module) {
    auto [it, inserted] = apart_.try_emplace({v, module}, kNoValue);
    if (inserted) it->second = Reshape(v, form_of_[v]->dims, module, nullptr);
    return it->second;
  }

  ValueId Reshape(ValueId v, const Dims& dims, const std::string& module, const ParameterForm* form) {
    Node node;
    node.op = "reshape";
    node.operands = {v};
    node.attrs = {{"shape", dims}};
    node.module = module;
    node.results = {AddValue(graph_.values[v].name, {graph_.type(v).dtype, dims}, form)};
    graph_.nodes.push_back(node);
    return node.results[0];
  }

  ValueId AddValue(std::string name, TensorType type, const ParameterForm* form) {
    const ValueId v = graph_.AddValue(name, std::move(type));
    form_of_.resize(graph_.values.size(), nullptr);
    form_of_[v] = form;
    return v;
  }

  Graph& graph_;
  const StateIndex& states_;
  const ParameterForms& forms_;
  const bool is_update_;
  std::vector<const ParameterForm*> form_of_;  // of a value with merged dims; else null
  std::set<ValueId> gradients_;                // of these, what is read of gradients and sums of it
  std::map<ValueId, Node> constants_;
  std::map<ValueId, ValueId> merged_;  // of what the update reads apart
  std::map<std::pair<ValueId, std::string>, ValueId> apart_;
};

}  // namespace

void MergeDims(Graph& graph, const StateIndex& states, const ParameterForms& forms) {
  DimMerger(graph, states, forms).Run();
}

}  // namespace tacc::graph
