#include "graph/import/finetune/lora.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ops/builder.h"
#include "graph/ops/einsum_spec.h"
#include "graph/ops/input_axes.h"
#include "text/nearest_name.h"

namespace tacc::graph {
namespace {

struct Module {
  enum Kind { kLinear, kEmbedding, kTied, kExperts, kRouter, kOther } kind = kOther;
  std::vector<int> params, products;  // nodes
};

const char* InWords(Module::Kind kind) {
  switch (kind) {
    case Module::kLinear:
      return "a linear module";
    case Module::kEmbedding:
      return "an embedding";
    case Module::kTied:
      return "an embedding that is the head too (tied)";
    case Module::kExperts:
      return "experts, whose matrices are one stack";
    case Module::kRouter:
      return "the router of experts";
    case Module::kOther:
      return "no linear module";
  }
  return "";
}

// The rows of an adapter's B that belong to a param, by its name: "[0:64]" of one that is these rows of a tensor, or of
// each of its entries ("[:,0:64]", of a transposed matrix its columns), or "".
std::string RowsOf(const std::string& symbol) {
  const size_t bracket = symbol.find('[');
  return bracket == std::string::npos ? "" : absl::StrReplaceAll(symbol.substr(bracket), {{"[:,", "["}});
}

// The module of a param: its name without its rows and its last component.
std::string ModuleOf(const std::string& symbol) {
  const std::string name = symbol.substr(0, symbol.find('['));
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

std::string LastOf(const std::string& path) { return path.substr(path.rfind('.') + 1); }

bool EndsWithPath(const std::string& path, const std::string& end) {
  return path == end || absl::EndsWith(path, absl::StrCat(".", end));
}

// As peft matches modules to save.
bool EndsWithText(const std::string& path, const std::string& end) { return absl::EndsWith(path, end); }

// Whether the module or one that holds it is named so.
bool LiesIn(std::string path, const std::string& name) {
  while (!EndsWithPath(path, name)) {
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return false;
    path.resize(dot);
  }
  return true;
}

class Adapters {
 public:
  Adapters(const LoraOptions& options, const LoraModel& model, const OpTable& ops, Graph& graph)
      : options_(options), model_(model), graph_(graph), b_(graph, ops), producers_(graph.Producers()) {
    readers_.resize(graph.values.size());
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      for (ValueId v : graph.nodes[i].operands) readers_[v].push_back(static_cast<int>(i));
    }
    FindModules();
  }

  absl::StatusOr<LoraModules> Run() {
    TACC_RETURN_IF_ERROR(ChooseSaved());
    TACC_RETURN_IF_ERROR(ChooseTargets());
    for (Node& node : graph_.nodes) {
      if (node.op != Op::kParam) continue;
      if (saved_.count(PathOf(ModuleOf(node.symbol))) == 0) node.attrs["role"] = std::string(Name(WeightRole::kFrozen));
    }
    if (options_.dropout > 0) FindOrAddInputs();
    std::map<int, std::string> in_order;  // by product: the input of one may be the result of another
    for (const std::string& target : targets_) in_order[modules_.at(target).products[0]] = target;
    for (const auto& [product, target] : in_order) TACC_RETURN_IF_ERROR(Adapt(target, modules_.at(target)));
    TACC_RETURN_IF_ERROR(b_.status());
    Insert();
    return LoraModules{ShortNames(targets_, EndsWithPath), ShortNames(saved_, EndsWithText), transposed_};
  }

 private:
  // As transformers names the module.
  std::string PathOf(const std::string& module) const {
    std::string path = module == model_.head ? model_.head_path : absl::StrCat(model_.base_prefix, module);
    for (const auto& [end, name] : model_.renamed) {
      if (EndsWithPath(path, end)) return absl::StrCat(path.substr(0, path.size() - end.size()), name);
    }
    return path;
  }

  // The module as the model's files name it.
  std::string InFiles(const Module& module) const { return ModuleOf(graph_.nodes[module.params[0]].symbol); }

  bool IsReadBy(ValueId v, const char* op) const {
    return std::any_of(readers_[v].begin(), readers_[v].end(), [&](int i) { return graph_.nodes[i].op == op; });
  }

  // Whether experts are chosen by the value, or by what is made of it alone or with a bias.
  bool Chooses(ValueId v) const {
    while (!IsReadBy(v, "top_k")) {
      if (readers_[v].size() != 1) return false;
      const Node& reader = graph_.nodes[readers_[v][0]];
      if (reader.results.empty() || (reader.operands.size() != 1 && reader.op != "add")) return false;
      v = reader.results[0];
    }
    return true;
  }

  void FindModules() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op != Op::kParam) continue;
      const ValueId v = node.results[0];
      Module& module = modules_[PathOf(ModuleOf(node.symbol))];
      module.params.push_back(static_cast<int>(i));
      if (absl::StrContains(node.symbol, "*")) {
        module.kind = Module::kExperts;
      } else if (IsReadBy(v, "embedding")) {
        module.kind = IsReadBy(v, "einsum") ? Module::kTied : Module::kEmbedding;
        for (int reader : readers_[v]) {  // the head that it is
          if (graph_.nodes[reader].op == "einsum") modules_[PathOf(graph_.nodes[reader].module)].kind = Module::kTied;
        }
      } else if (IsReadBy(v, "einsum") && readers_[v].size() == 1) {
        const Node& product = graph_.nodes[readers_[v][0]];
        module.kind = Chooses(product.results[0]) ? Module::kRouter : Module::kLinear;
        module.products.push_back(readers_[v][0]);
      }
    }
  }

  absl::Status ChooseSaved() {
    for (const std::string& name : options_.modules_to_save) {
      bool found = false;
      for (const auto& [path, module] : modules_) {
        if (module.params.empty() || !LiesIn(path, name)) continue;
        if (module.kind == Module::kTied || module.kind == Module::kExperts) {
          return absl::InvalidArgumentError(absl::StrCat("train.lora.modules_to_save: ", path, " is ",
                                                         InWords(module.kind), ", which an adapter cannot hold"));
        }
        if (InFiles(module) != path) {
          return absl::InvalidArgumentError(absl::StrCat("train.lora.modules_to_save: ", path, " is called ",
                                                         InFiles(module),
                                                         " in the model's files, and peft would not find it; leave it "
                                                         "out"));
        }
        saved_.insert(path);
        found = true;
      }
      if (!found) return NoSuch("train.lora.modules_to_save", name);
    }
    return absl::OkStatus();
  }

  absl::Status NoSuch(const std::string& option, const std::string& name) const {
    std::set<std::string> known;
    for (const auto& [path, module] : modules_) known.insert(LastOf(path));
    const std::vector<std::string> names(known.begin(), known.end());
    return absl::InvalidArgumentError(absl::StrCat(option, ": the model has no module '", name, "'; the nearest is '",
                                                   NearestName(LastOf(name), names), "'"));
  }

  absl::Status ChooseTargets() {
    for (const std::string& name : options_.target_modules) {
      bool found = false;
      for (const auto& [path, module] : modules_) {
        if (name == kAllLinear ? !IsOfAllLinear(path, module) : !EndsWithPath(path, name)) continue;
        found = true;
        if (saved_.count(path) > 0) continue;
        if (module.kind != Module::kLinear) {
          return absl::InvalidArgumentError(absl::StrCat("train.lora.target_modules: '", name, "' names ", path,
                                                         ", which is ", InWords(module.kind),
                                                         "; adapters go to linear modules, as ", Examples()));
        }
        if (model_.taken_for_experts.count(LastOf(path)) > 0) {
          return absl::InvalidArgumentError(absl::StrCat("train.lora.target_modules: '", name, "' names ", path,
                                                         ", which peft takes for a part of experts; leave it out"));
        }
        if (const std::string stored = InFiles(module); path != stored && path != model_.base_prefix + stored) {
          return absl::InvalidArgumentError(
              absl::StrCat("train.lora.target_modules: '", name, "' names ", path, ", which is called ", stored,
                           " in the model's files; adapters of such a module are not supported: leave it out"));
        }
        targets_.insert(path);
      }
      if (!found && name != kAllLinear) return NoSuch("train.lora.target_modules", name);
    }
    if (!targets_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "train.lora.target_modules leaves no module to adapt: train.lora.modules_to_save has all of them; name fewer "
        "there");
  }

  bool IsOfAllLinear(const std::string& path, const Module& module) const {
    return module.kind == Module::kLinear && path != PathOf(model_.head) &&
           model_.taken_for_experts.count(LastOf(path)) == 0;
  }

  // The names of the linear modules.
  std::string Examples() const {
    std::set<std::string> names;
    for (const auto& [path, module] : modules_) {
      if (module.kind == Module::kLinear && model_.taken_for_experts.count(LastOf(path)) == 0)
        names.insert(LastOf(path));
    }
    return absl::StrJoin(names, ", ");
  }

  // As few names as match these modules, as `matches` says, and no others.
  template <typename Matches>
  std::vector<std::string> ShortNames(const std::set<std::string>& chosen, const Matches& matches) const {
    std::set<std::string> names;
    for (const std::string& path : chosen) {
      const std::string last = LastOf(path);
      const bool is_enough = std::all_of(modules_.begin(), modules_.end(), [&](const auto& entry) {
        return !matches(entry.first, last) || chosen.count(entry.first) > 0;
      });
      names.insert(is_enough ? last : path);
    }
    return {names.begin(), names.end()};
  }

  // Of dropout. New ones come first.
  void FindOrAddInputs() {
    for (const Node& node : graph_.nodes) {
      if (node.op == "dropout") next_key_ = std::max(next_key_, GetAttr<int64_t>(node.attrs, "key") + 1);
      if (node.attrs.count("dropout_key") > 0)  // attention's
        next_key_ = std::max(next_key_, GetAttr<int64_t>(node.attrs, "dropout_key") + 1);
      if (node.op != Op::kInput) continue;
      if (node.symbol == "step") step_ = node.results[0];
      if (node.symbol == "sample") sample_ = node.results[0];
    }
    const size_t first = graph_.nodes.size();
    if (step_ == kNoValue) step_ = b_.Leaf(Op::kInput, "step", {DType::kI64, {}});
    if (sample_ == kNoValue)
      sample_ = b_.Leaf(Op::kInput, "sample", {DType::kI64, {ExtentOf(graph_, InputAxis::kBatch)}});
    Take(first, inputs_);
  }

  // Moves the nodes from `first` on, just made, to `place`.
  void Take(size_t first, std::vector<Node>& place) {
    std::move(graph_.nodes.begin() + static_cast<std::ptrdiff_t>(first), graph_.nodes.end(), std::back_inserter(place));
    graph_.nodes.resize(first);
  }

  ValueId Param(const std::string& name, const Dims& dims, const std::vector<std::string>& axes, const Dims& stored,
                const std::string& init) {
    Attrs attrs = {{"axes", axes}, {"init", init}, {"role", std::string(Name(WeightRole::kAdapter))}};
    if (stored != dims) attrs["stored"] = stored;
    return b_.Leaf(Op::kParam, name, {DType::kF32, dims}, std::move(attrs));
  }

  absl::Status Adapt(const std::string& path, const Module& module) {
    ValueId low = kNoValue, of = kNoValue;  // s A dropout(x), and x
    for (int index : module.products) {
      const Node product = graph_.nodes[index];  // a copy: the builder appends to graph.nodes
      const Node weight = graph_.nodes[producers_[product.operands[1]]];
      TACC_ASSIGN_OR_RETURN(const EinsumSpec spec, ParseEinsum(GetAttr<std::string>(product.attrs, "spec")));
      const Dims dims = graph_.type(product.operands[1]).dims;
      const std::vector<std::string> axes =
          GetAttr<std::vector<std::string>>(weight.attrs, "axes", std::vector<std::string>(dims.size()));
      // Letters and dims of the weight, which it makes and which it takes.
      std::string out, in;
      Dims out_dims, in_dims;
      std::vector<std::string> out_axes, in_axes;
      bool is_linear = true;
      for (size_t i = 0; i < spec.b.size(); ++i) {
        const bool takes = absl::StrContains(spec.a, spec.b[i]);
        is_linear &= takes != absl::StrContains(spec.y, spec.b[i]);
        (takes ? in : out).push_back(spec.b[i]);
        (takes ? in_dims : out_dims).push_back(dims[i]);
        (takes ? in_axes : out_axes).push_back(axes[i]);
      }
      // A module that makes one number has a weight without that dim: `out` is empty.
      const bool plain = absl::StartsWith(spec.b, out), transposed = !plain && absl::StartsWith(spec.b, in);
      if (!is_linear || in.empty() || !(transposed || plain) || (of != kNoValue && of != product.operands[0])) {
        return absl::InvalidArgumentError(absl::StrCat("train.lora.target_modules: ", path, ": its product \"", spec.a,
                                                       ",", spec.b, "->", spec.y, "\" is not that of a linear module"));
      }
      std::string rows = spec.a;  // what is multiplied, without what is summed over
      std::erase_if(rows, [&](char c) { return absl::StrContains(in, c); });
      char r = 'a';
      while (absl::StrContains(absl::StrCat(spec.a, spec.b), r)) ++r;
      transposed_ |= transposed;
      const int64_t num_in = Product(in_dims), num_rows = Product(out_dims);

      const size_t first = graph_.nodes.size();
      b_.SetModule(product.module);
      if (low == kNoValue) {
        of = product.operands[0];
        ValueId x = of;
        if (options_.dropout > 0) {
          x = b_.Add("dropout", {x, step_, sample_},
                     {{"rate", options_.dropout}, {"key", next_key_++}, {"seed", model_.seed}});
        }
        in_dims.insert(in_dims.begin(), options_.r);
        in_axes.insert(in_axes.begin(), "");
        const std::string bound = Print(Attr(1 / std::sqrt(static_cast<double>(num_in))));
        const ValueId a = Param(absl::StrCat(path, ".lora_A.weight"), in_dims, in_axes, {options_.r, num_in},
                                absl::StrCat("uniform(-", bound, ",", bound, ")"));
        low = b_.Einsum(absl::StrCat(spec.a, ",", std::string(1, r), in, "->", rows, std::string(1, r)), x, a);
        const double rank = static_cast<double>(options_.r);
        const double scale = options_.alpha / (options_.use_rslora ? std::sqrt(rank) : rank);
        if (scale != 1) low = b_.Scale(low, scale);
      }
      out_dims.push_back(options_.r);
      out_axes.push_back("");
      const ValueId up = Param(absl::StrCat(path, ".lora_B.weight", RowsOf(weight.symbol)), out_dims, out_axes,
                               {num_rows, options_.r}, "zeros");
      const ValueId more =
          b_.Einsum(absl::StrCat(rows, std::string(1, r), ",", out, std::string(1, r), "->", spec.y), low, up);
      const int last = LastOfModule(index);
      const ValueId y = graph_.nodes[last].results[0];
      const ValueId sum = b_.Add("add", {y, more});
      TACC_RETURN_IF_ERROR(b_.status());
      for (int reader : readers_[y]) {
        for (ValueId& v : graph_.nodes[reader].operands) {
          if (v == y) v = sum;
        }
      }
      Take(first, after_[last]);
    }
    return absl::OkStatus();
  }

  static int64_t Product(const Dims& dims) {
    int64_t product = 1;
    for (int64_t d : dims) product *= d;
    return product;
  }

  // The node that makes the result of a module's product: the product, or what adds its bias.
  int LastOfModule(int product) const {
    const Node& node = graph_.nodes[product];
    const std::vector<int>& readers = readers_[node.results[0]];
    if (readers.size() != 1 || graph_.nodes[readers[0]].op != "add") return product;
    const Node& add = graph_.nodes[readers[0]];
    if (add.operands[0] != node.results[0] || producers_[add.operands[1]] < 0) return product;
    const Node& bias = graph_.nodes[producers_[add.operands[1]]];
    return bias.op == Op::kParam && add.module == node.module ? readers[0] : product;
  }

  void Insert() {
    std::vector<Node> nodes = std::move(inputs_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      nodes.push_back(std::move(graph_.nodes[i]));
      const auto after = after_.find(static_cast<int>(i));
      if (after == after_.end()) continue;
      std::move(after->second.begin(), after->second.end(), std::back_inserter(nodes));
    }
    graph_.nodes = std::move(nodes);
  }

  const LoraOptions& options_;
  const LoraModel& model_;
  Graph& graph_;
  Builder b_;
  const std::vector<int> producers_;
  std::vector<std::vector<int>> readers_;
  std::map<std::string, Module> modules_;  // by path, as transformers names them
  std::set<std::string> saved_, targets_;
  ValueId step_ = kNoValue, sample_ = kNoValue;
  int64_t next_key_ = 0;
  bool transposed_ = false;
  std::vector<Node> inputs_;
  std::map<int, std::vector<Node>> after_;  // by node, what is put behind it
};

}  // namespace

absl::StatusOr<LoraModules> AddLora(const LoraOptions& options, const LoraModel& model, const OpTable& ops,
                                    Graph& forward) {
  return Adapters(options, model, ops, forward).Run();
}

}  // namespace tacc::graph
