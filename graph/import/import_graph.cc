#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "graph/import/import.h"
#include "graph/import/json_file.h"
#include "graph/import/weights.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/program.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ir/weight_init.h"
#include "graph/ops/input_axes.h"
#include "text/utf8.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxGraphBytes = 100 << 20;
constexpr int64_t kMaxStackEntries = 1 << 16;

// Where the nodes of a graph text stand: its lines with text, after the header, hold one node each.
class NodePlaces {
 public:
  NodePlaces(const std::string& text, const std::string& file) : file_(file) {
    int number = 0;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      ++number;
      const absl::string_view stripped = absl::StripAsciiWhitespace(line);
      if (stripped.empty() || stripped[0] == '#') continue;
      lines_.push_back({number, static_cast<int>(stripped.data() - line.data()) + 1, std::string(line)});
    }
    if (!lines_.empty()) lines_.erase(lines_.begin());  // tacc.graph 1
  }

  // "file:line:col: what", the line, a caret.
  absl::Status Error(size_t node, const std::string& what) const {
    if (node >= lines_.size()) return absl::InvalidArgumentError(absl::StrCat(file_, ": ", what));
    const Line& line = lines_[node];
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", line.number, ":", line.column, ": ", what, "\n  ",
                                                   line.text, "\n  ", std::string(line.column - 1, ' '), "^"));
  }
  absl::Status AtEnd(const std::string& what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ":", lines_.empty() ? 1 : lines_.back().number, ":1: ", what));
  }

 private:
  struct Line {
    int number, column;
    std::string text;
  };
  std::string file_;
  std::vector<Line> lines_;
};

// A param that is some rows of a tensor of the files, "qkv.weight[0:64]", or of each of its entries, "w[:,0:64]", as
// worker/checkpoint/tensors/tensor_rows.h reads it.
struct NamedRows {
  std::string tensor;
  size_t dim = 0;
  int64_t begin = 0, end = 0;
};
std::optional<NamedRows> ParseNamedRows(const std::string& name) {
  const size_t bracket = name.rfind('[');
  if (bracket == std::string::npos || bracket == 0 || name.back() != ']') return std::nullopt;
  absl::string_view range = absl::string_view(name).substr(bracket + 1, name.size() - bracket - 2);
  NamedRows rows{.tensor = name.substr(0, bracket)};
  if (absl::ConsumePrefix(&range, ":,")) rows.dim = 1;
  const std::pair<std::string, std::string> ends = absl::StrSplit(range, absl::MaxSplits(':', 1));
  if (!absl::SimpleAtoi(ends.first, &rows.begin) || !absl::SimpleAtoi(ends.second, &rows.end)) return std::nullopt;
  if (rows.begin < 0 || rows.end <= rows.begin) return std::nullopt;
  return rows;
}

// Whether only a client can send this input; a data folder or the rank gives the others.
bool IsLive(const std::string& input) {
  return input != "tokens" && input != "targets" && input != "step" && input != "sample";
}

// An input that is not live.
struct WantedInput {
  TensorType type;
  const char* meaning;
};

// Whether this output is none of those that a training step is made of: the model's forward returns it.
bool IsReturned(const Node& output) {
  return output.symbol != "loss" && output.symbol != "target_tokens" && ChangedBuffer(output.symbol).empty();
}

// Notes in the graph, as InputAxes reads it, what the dims are of inputs that only a client gives: B, S of dim 1, or
// the same on all ranks. `more_rows` and `longer` are the graph with B and S larger by one, by which they are known.
absl::Status NameInputAxes(const Graph& more_rows, const Graph& longer, const NodePlaces& places, Graph& graph) {
  const auto extents = [](const Graph& of, size_t node) { return of.type(of.nodes[node].results[0]).dims; };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    if (node.op != Op::kInput || !IsLive(node.symbol)) continue;
    const Dims dims = extents(graph, i), rows = extents(more_rows, i), length = extents(longer, i);
    std::vector<std::string> axes;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (rows[d] != dims[d] && (d > 0 || rows[d] != dims[d] + 1 || length[d] != dims[d])) {
        return places.Error(i, absl::StrCat("dim ", d, " of input \"", node.symbol,
                                            "\" depends on B; of an input dim 0 may be B, and no other dim"));
      }
      axes.push_back(Name(rows[d] != dims[d]                   ? InputAxis::kBatch
                          : d == 1 && length[d] == dims[d] + 1 ? InputAxis::kSequence
                                                               : InputAxis::kNone));
    }
    if (!axes.empty()) node.attrs["axes"] = std::move(axes);
  }
  return absl::OkStatus();
}

class GraphChecker {
 public:
  GraphChecker(const Graph& graph, const NodePlaces& places, const ImportOptions& options, const OpTable& ops)
      : graph_(graph), places_(places), ops_(ops) {
    const TensorType ids = {DType::kI32, {options.batch, options.seq_len}};
    inputs_ = {{"tokens", {ids, "token ids, i32[B,S]"}},
               {"targets", {ids, "the next tokens, -1 where there is none, i32[B,S]"}},
               {"step", {{DType::kI64, {}}, "updates already done, i64[]"}},
               {"sample", {{DType::kI64, {options.batch}}, "row numbers in the global batch, i64[B]"}}};
  }

  absl::Status Check() {
    std::set<std::string> inputs, outputs, params;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op == Op::kInput) {
        TACC_RETURN_IF_ERROR(CheckInput(i));
        inputs.insert(node.symbol);
      } else if (node.op == Op::kParam) {
        if (!params.insert(node.symbol).second)
          return places_.Error(i, absl::StrCat("param \"", node.symbol, "\" is declared twice"));
        TACC_RETURN_IF_ERROR(CheckParam(i));
        params_.push_back(i);
      } else if (node.op == Op::kOutput) {
        TACC_RETURN_IF_ERROR(CheckOutput(i));
        if (!outputs.insert(node.symbol).second)
          return places_.Error(i, absl::StrCat("output \"", node.symbol, "\" is given twice"));
      } else {
        TACC_RETURN_IF_ERROR(CheckNode(i));
      }
    }
    const bool is_live = std::any_of(inputs.begin(), inputs.end(), IsLive);
    for (const char* name : {"tokens", "targets"}) {
      if (is_live || inputs.count(name) > 0) continue;
      return places_.AtEnd(absl::StrCat("the graph has no input \"", name, "\" (", inputs_.at(name).meaning, ")"));
    }
    for (const char* name : {"loss", "target_tokens"}) {
      if (outputs.count(name) > 0) continue;
      return places_.AtEnd(absl::StrCat("the graph has no output \"", name,
                                        "\"; a model ends with `output \"loss\"` (a sum over target tokens) and "
                                        "`output \"target_tokens\"` (their number)"));
    }
    if (params.empty()) return places_.AtEnd("the graph has no param, so there is nothing to train");
    TACC_RETURN_IF_ERROR(CheckChangedBuffers());
    return CheckExportedNames();
  }

 private:
  // What a buffer becomes is of the type that it has.
  absl::Status CheckChangedBuffers() const {
    std::map<std::string, TensorType> buffers;
    for (size_t i : params_) {
      const Node& node = graph_.nodes[i];
      if (GetAttr<std::string>(node.attrs, "role") == Name(WeightRole::kBuffer))
        buffers.emplace(node.symbol, graph_.type(node.results[0]));
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      const std::string name = node.op == Op::kOutput ? ChangedBuffer(node.symbol) : "";
      if (name.empty()) continue;
      const auto buffer = buffers.find(name);
      if (buffer == buffers.end())
        return places_.Error(i, absl::StrCat("the graph has no param \"", name, "\" with role=buffer"));
      if (const TensorType& type = graph_.type(node.operands[0]); type != buffer->second) {
        return places_.Error(i, absl::StrCat("output \"", node.symbol, "\" is ", type.ToString(), "; wanted ",
                                             buffer->second.ToString(), " as the buffer"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckInput(size_t i) const {
    const Node& node = graph_.nodes[i];
    if (node.results.size() != 1) return places_.Error(i, "an input has one result");
    if (node.symbol.empty()) return places_.Error(i, "an input needs a quoted name");
    const DType dtype = graph_.type(node.results[0]).dtype;
    const bool is_whole = dtype == DType::kI32 || dtype == DType::kI64;
    for (const auto& [key, value] : node.attrs) {
      if (is_whole && (key == "limit" || key == "ignored") && std::holds_alternative<int64_t>(value)) continue;
      return places_.Error(
          i, absl::StrCat("an input of whole numbers takes limit=N and ignored=N, others no attributes, got ", key, "=",
                          Print(value)));
    }
    if (node.symbol == "document_start")
      return places_.Error(i, "\"document_start\" is an input that the compiler adds; name this one otherwise");
    const auto it = inputs_.find(node.symbol);
    if (it == inputs_.end()) return absl::OkStatus();
    const TensorType& type = graph_.type(node.results[0]);
    if (type == it->second.type) return absl::OkStatus();
    return places_.Error(i, absl::StrCat("input \"", node.symbol, "\" is ", type.ToString(), "; wanted ",
                                         it->second.type.ToString(), " (", it->second.meaning, ")"));
  }

  absl::Status CheckParam(size_t i) const {
    const Node& node = graph_.nodes[i];
    if (node.results.size() != 1) return places_.Error(i, "a param has one result");
    const TensorType& type = graph_.type(node.results[0]);
    if (node.symbol.empty()) return places_.Error(i, "a param needs a quoted name");
    if (!IsUtf8(node.symbol)) return places_.Error(i, "the name of a param must be UTF-8, without zero bytes");
    if (node.symbol == "__metadata__")
      return places_.Error(i, "\"__metadata__\" is no name for a param: safetensors files have it for themselves");
    if (type.num_elements() == 0)
      return places_.Error(i, absl::StrCat("param \"", node.symbol, "\" is ", type.ToString(), ", which is empty"));
    if (type.dtype != DType::kF32)
      return places_.Error(i, absl::StrCat("param \"", node.symbol, "\" is ", type.ToString(), "; wanted f32"));
    for (const auto& [key, value] : node.attrs) {
      const bool fits = (key == "init" && std::holds_alternative<std::string>(value)) ||
                        (key == "stored" && std::holds_alternative<std::vector<int64_t>>(value)) ||
                        (key == "role" && value == Attr(std::string(Name(WeightRole::kBuffer)))) ||
                        (key == "axes" && std::holds_alternative<std::vector<std::string>>(value));
      if (!fits)
        return places_.Error(
            i, absl::StrCat("param takes init=\"...\", stored=[...], axes=[NAME,...] and role=buffer, got ", key, "=",
                            Print(value)));
    }
    if (const auto init = GetAttr<std::string>(node.attrs, "init", "zeros"); !ParseWeightInit(init).ok())
      return places_.Error(i, std::string(ParseWeightInit(init).status().message()));
    const auto axes = GetAttr<std::vector<std::string>>(node.attrs, "axes");
    if (!axes.empty() && static_cast<int>(axes.size()) != type.rank()) {
      return places_.Error(
          i, absl::StrCat("axes= has ", axes.size(), " names for the ", type.rank(), " dims of ", type.ToString()));
    }
    TensorType stored = type;
    stored.dims = GetAttr<std::vector<int64_t>>(node.attrs, "stored", type.dims);
    if (stored.num_elements() == type.num_elements()) return absl::OkStatus();
    return places_.Error(i, absl::StrCat("stored=", DimsToString(stored.dims), " is no reshape of ", type.ToString()));
  }

  // Params become tensors of files, rows of one ("w[0:4]") or one for each entry ("experts.*.w"): all must be there,
  // and none twice.
  absl::Status CheckExportedNames() const {
    std::map<std::string, size_t> tensors;                       // -> the param's node
    std::map<std::string, std::map<int64_t, size_t>> of_tensor;  // tensor -> first row -> node
    std::map<std::string, size_t> dim_of;                        // tensor -> that of its rows
    for (size_t i : params_) {
      const std::string& name = graph_.nodes[i].symbol;
      const Dims dims = StoredDims(i);
      if (const std::optional<NamedRows> rows = ParseNamedRows(name); rows.has_value()) {
        if (dims.size() <= rows->dim || dims[rows->dim] != rows->end - rows->begin) {
          return places_.Error(i, absl::StrCat("param \"", name, "\" is named for ", rows->end - rows->begin,
                                               " rows of a tensor, but is ", DimsToString(dims)));
        }
        const auto [dim, is_new] = dim_of.emplace(rows->tensor, rows->dim);
        if (!is_new && dim->second != rows->dim)
          return places_.Error(i,
                               absl::StrCat("the params of \"", rows->tensor, "\" are rows of two dims; wanted one"));
        if (!of_tensor[rows->tensor].emplace(rows->begin, i).second)
          return places_.Error(i, absl::StrCat("two params begin at row ", rows->begin, " of \"", rows->tensor, "\""));
        continue;
      }
      const size_t star = name.find('*');
      if (star != std::string::npos && dims.empty()) {
        return places_.Error(
            i, absl::StrCat("param \"", name, "\" names a tensor for each entry of its first dim, and has no dim"));
      }
      if (star != std::string::npos && dims[0] > kMaxStackEntries) {
        return places_.Error(i, absl::StrCat("param \"", name, "\" names a tensor for each of its ", dims[0],
                                             " entries; at most ", kMaxStackEntries, " are taken"));
      }
      for (int64_t entry = 0; entry < (star == std::string::npos ? 1 : dims[0]); ++entry) {
        std::string tensor = name;
        if (star != std::string::npos) tensor.replace(star, 1, absl::StrCat(entry));
        TACC_RETURN_IF_ERROR(AddTensor(tensor, i, tensors));
      }
    }
    for (const auto& [tensor, parts] : of_tensor) {
      TACC_RETURN_IF_ERROR(AddTensor(tensor, parts.begin()->second, tensors));
      int64_t end = 0;
      const Dims first = StoredDims(parts.begin()->second);
      for (const auto& [begin, i] : parts) {
        Dims dims = StoredDims(i);
        if (begin != end) {
          return places_.Error(i, absl::StrCat("param \"", graph_.nodes[i].symbol, "\" begins at row ", begin,
                                               "; the rows of \"", tensor, "\" before it end at ", end));
        }
        const size_t dim = dim_of.at(tensor);
        end = begin + dims[dim];
        dims[dim] = first[dim];
        if (dims == first) continue;
        return places_.Error(i, absl::StrCat("the rows of \"", tensor, "\" differ in their other dims: ",
                                             DimsToString(StoredDims(i)), " and ", DimsToString(first)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(const std::string& tensor, size_t i, std::map<std::string, size_t>& tensors) const {
    const auto [it, is_new] = tensors.emplace(tensor, i);
    if (is_new) return absl::OkStatus();
    return places_.Error(
        i, absl::StrCat("params \"", graph_.nodes[it->second].symbol, "\" and \"", graph_.nodes[i].symbol,
                        "\" would both be tensor \"", tensor, "\" of an exported model; name one otherwise"));
  }

  Dims StoredDims(size_t param) const {
    const Node& node = graph_.nodes[param];
    return GetAttr<std::vector<int64_t>>(node.attrs, "stored", graph_.type(node.results[0]).dims);
  }

  absl::Status CheckOutput(size_t i) const {
    const Node& node = graph_.nodes[i];
    if (node.operands.size() != 1) return places_.Error(i, "an output has one operand");
    for (const auto& [key, value] : node.attrs) {
      if (key == "splittable" && node.symbol == "loss" && std::holds_alternative<bool>(value)) continue;
      return places_.Error(i, absl::StrCat("output \"loss\" takes splittable=false, others no attributes, got ", key,
                                           "=", Print(value)));
    }
    if (node.symbol.empty()) return places_.Error(i, "an output needs a quoted name");
    if (IsReturned(node) || !ChangedBuffer(node.symbol).empty()) return absl::OkStatus();
    const TensorType wanted = {DType::kF32, {}};
    const TensorType& type = graph_.type(node.operands[0]);
    if (type == wanted) return absl::OkStatus();
    return places_.Error(
        i, absl::StrCat("output \"", node.symbol, "\" is ", type.ToString(), "; wanted ", wanted.ToString()));
  }

  absl::Status CheckNode(size_t i) const {
    const Node& node = graph_.nodes[i];
    const OpDef* op = ops_.Find(node.op);
    if (op == nullptr) return places_.Error(i, absl::StrCat("unknown op '", node.op.name(), "'"));
    if (op->is_collective || op->has_side_effect || node.op == Op::kRead) {
      return places_.Error(i,
                           absl::StrCat("op '", node.op.name(), "' is not for a model's graph; the compiler adds it"));
    }
    const OpCall call = CallOf(graph_, node);
    const absl::StatusOr<std::vector<TensorType>> inferred = InferTypes(*op, node.attrs, call.operands);
    if (!inferred.ok()) return places_.Error(i, std::string(inferred.status().message()));
    if (inferred->size() != node.results.size()) {
      return places_.Error(
          i, absl::StrCat(node.op.name(), " has ", inferred->size(), " results, the line names ", node.results.size()));
    }
    for (size_t r = 0; r < inferred->size(); ++r) {
      if ((*inferred)[r] == call.results[r]) continue;
      return places_.Error(
          i, absl::StrCat("the type of %", graph_.values[node.results[r]].name, " is written ",
                          call.results[r].ToString(), ", but ", node.op.name(), " makes ", (*inferred)[r].ToString()));
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const NodePlaces& places_;
  const OpTable& ops_;
  std::map<std::string, WantedInput> inputs_;
  std::vector<size_t> params_;  // nodes
};

// Ids of the inputs below this are safe in each table that they are looked up in and in each loss. A table whose rows
// are not chosen by ids of an input, as that of learned positions, says nothing of them.
int64_t VocabularyOf(const Graph& graph) {
  int64_t vocab_size = 0;
  auto limit = [&](int64_t rows) { vocab_size = vocab_size == 0 ? rows : std::min(vocab_size, rows); };
  std::vector<bool> holds_ids(graph.values.size());
  for (const Node& node : graph.nodes) {
    if (node.op == "input") {
      holds_ids[node.results[0]] = true;
    } else if (node.op == "reshape" || node.op == "transpose" || node.op == "slice" || node.op == "broadcast") {
      holds_ids[node.results[0]] = holds_ids[node.operands[0]];
    }
    if (node.op == "embedding" && holds_ids[node.operands[1]]) limit(graph.type(node.operands[0]).dims[0]);
    if (node.op == "cross_entropy") limit(graph.type(node.operands[0]).dims.back());
  }
  return vocab_size;
}

// The module path up to its first number, or "".
std::string UnitOf(const std::string& module) {
  std::string unit;
  for (absl::string_view part : absl::StrSplit(module, '.')) {
    absl::StrAppend(&unit, unit.empty() ? "" : ".", part);
    if (!part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit)) return unit;
  }
  return "";
}

// Decides where the initial weights of a graph's file come from: safetensors beside it, which must be those of its
// params, or none.
absl::Status FindWeights(const std::string& path, const ImportOptions& options, ImportedModel& model) {
  if (options.weights == ImportOptions::Weights::kRandom) return absl::OkStatus();
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string dir = parent.empty() ? "." : parent;
  TACC_ASSIGN_OR_RETURN(const StoredWeights stored, ReadStoredWeights(dir));
  if (stored.kind != StoredWeights::kSafetensors) {
    if (options.weights == ImportOptions::Weights::kAuto) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": there is no model.safetensors beside it; set model.weights: random"));
  }
  model.weights = ImportOptions::Weights::kPretrained;
  WeightsCheck check;
  check.wanted = WantedTensors(model.forward, [](const Node&) { return true; });
  check.ignorable = [](const std::string&) { return false; };
  const absl::Status status = CheckWeights(stored, check);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(
      "the weights beside ", path, " are not those of its params; with model.weights: random they are left alone:\n",
      status.message()));
}

}  // namespace

absl::StatusOr<ImportedModel> ImportGraphText(const std::string& text, const std::string& file,
                                              const ImportOptions& options, const OpTable& ops) {
  if (options.batch < 1 || options.seq_len < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch = ", options.batch, ", seq_len = ", options.seq_len, "; wanted at least 1 each"));
  }
  for (const auto& [option, classes] :
       {std::pair("dist.fsdp.wrap_layer_cls", options.wrap_layer_cls), std::pair("memory.gc_cls", options.gc_cls)}) {
    if (classes.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(option,
                                                   ": a graph text has no classes; its units are its module paths up "
                                                   "to the first number, as @layers.0. Remove the option"));
  }
  if (options.outputs != ImportOptions::Outputs::kLoss)
    return absl::InvalidArgumentError(absl::StrCat(file, ": a graph text has the outputs it has"));
  ParseOptions parse;
  parse.file = file;
  parse.symbols = {{"B", options.batch}, {"S", options.seq_len}};
  ImportedModel model;
  absl::StatusOr<Graph> parsed = ParseGraph(text, parse);
  if (!parsed.ok()) {
    // The line and its caret are indented, as everywhere in import: they continue the message.
    return absl::Status(parsed.status().code(), absl::StrReplaceAll(parsed.status().message(), {{"\n", "\n  "}}));
  }
  model.forward = *std::move(parsed);
  model.forward.name = "forward";
  const NodePlaces places(text, file);
  TACC_RETURN_IF_ERROR(GraphChecker(model.forward, places, options, ops).Check());
  model.family = "graph";
  const auto parse_for = [&](int64_t batch, int64_t seq_len) {
    parse.symbols = {{"B", batch}, {"S", seq_len}};
    return ParseGraph(text, parse);
  };
  TACC_ASSIGN_OR_RETURN(const Graph of_one_row, parse_for(1, options.seq_len));  // the same model for any number
  TACC_ASSIGN_OR_RETURN(const Graph more_rows, parse_for(options.batch + 1, options.seq_len));
  TACC_ASSIGN_OR_RETURN(const Graph longer, parse_for(options.batch, options.seq_len + 1));
  TACC_RETURN_IF_ERROR(NameInputAxes(more_rows, longer, places, model.forward));
  model.facts = {{"graph", Fingerprint(Print(of_one_row))}};
  model.vocab_size = VocabularyOf(model.forward);
  for (Node& node : model.forward.nodes) {
    if (node.op == Op::kOutput && IsReturned(node)) node.attrs["returned"] = true;
    if (node.op == "embedding" && model.residual_module.empty()) model.residual_module = node.module;
    if (node.op == Op::kInput && IsLive(node.symbol)) model.live_inputs.push_back(node.symbol);
    if (node.op == Op::kParam) model.num_parameters += model.forward.type(node.results[0]).num_elements();
    const std::string unit = UnitOf(node.module);
    if (!unit.empty() && std::count(model.units.begin(), model.units.end(), unit) == 0) model.units.push_back(unit);
  }
  return model;
}

absl::StatusOr<ImportedModel> ImportGraphFile(const std::string& path, const ImportOptions& options,
                                              const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxGraphBytes));
  TACC_ASSIGN_OR_RETURN(ImportedModel model, ImportGraphText(text, path, options, ops));
  TACC_RETURN_IF_ERROR(FindWeights(path, options, model));
  return model;
}

}  // namespace tacc::graph
