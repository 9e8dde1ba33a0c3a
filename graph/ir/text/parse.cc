#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ir/text/phrase_parser.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
// New names count on from the largest number that one ends with.
constexpr int64_t kMaxNumberOfName = int64_t{1} << 62;

class Parser : public PhraseParser {
 public:
  Parser(absl::string_view text, const ParseOptions& options) : PhraseParser(text, options) {}

  absl::StatusOr<Graph> ParseGraphFile() {
    TACC_RETURN_IF_ERROR(Start("tacc.graph"));
    TACC_RETURN_IF_ERROR(EndOfLine());
    Graph graph;
    while (token_.kind != Token::kEnd) TACC_RETURN_IF_ERROR(ParseNode(&graph));
    graph.ReserveNames(max_suffix_ + 1);
    return graph;
  }

  absl::StatusOr<Program> ParseProgramFile() {
    Program program;
    TACC_RETURN_IF_ERROR(Start("tacc.program"));
    TACC_RETURN_IF_ERROR(ParseLevel(&program.level));
    TACC_RETURN_IF_ERROR(EndOfLine());
    while (token_.kind != Token::kEnd) TACC_RETURN_IF_ERROR(ParseSection(&program));
    return program;
  }

 private:
  absl::Status Start(absl::string_view header) {
    absl::Status status = Advance();
    if (status.ok()) status = SkipNewlines();
    if (!status.ok() || token_.kind != Token::kWord || header != token_.text.c_str()) {
      // Without the line: the file may be anything, and a secret.
      return absl::InvalidArgumentError(
          absl::StrCat(lexer_.Place(token_.position), ": the text must start with '", header, " 1'"));
    }
    TACC_RETURN_IF_ERROR(Advance());
    if (token_.kind != Token::kInt || token_.integer != 1) {
      return Error(
          absl::StrCat("version ", token_.text, " of the text form is not known; this program reads version 1"));
    }
    return Advance();
  }

  absl::Status ParseLevel(Level* level) {
    for (Level l : {Level::kLogical, Level::kPartitioned, Level::kScheduled, Level::kPlanned}) {
      if (token_.kind == Token::kWord && Name(l) == token_.text.c_str()) {
        *level = l;
        return Advance();
      }
    }
    return Error("wanted a level: logical, partitioned, scheduled or planned");
  }

  absl::Status ParseSection(Program* program) {
    if (token_.kind != Token::kWord) return Error("wanted mesh, stage, seq_len, arena, state, graph, step or eval");
    const std::string word = token_.text;
    const Token place = token_;
    TACC_RETURN_IF_ERROR(Advance());
    if (word == "mesh") return ParseMesh(program);
    if (word == "stage") {
      TACC_RETURN_IF_ERROR(ParseInt(&program->stage));
      TACC_RETURN_IF_ERROR(ExpectWord("of"));
      TACC_RETURN_IF_ERROR(ParseInt(&program->num_stages));
      return EndOfLine();
    }
    if (word == "seq_len") {
      TACC_RETURN_IF_ERROR(ParseInt(&program->seq_len));
      return EndOfLine();
    }
    if (word == "arena") {
      TACC_RETURN_IF_ERROR(ExpectKey("bytes"));
      TACC_RETURN_IF_ERROR(ParseInt(&program->arena_bytes));
      TACC_RETURN_IF_ERROR(ExpectKey("workspace"));
      TACC_RETURN_IF_ERROR(ParseInt(&program->workspace_bytes));
      return EndOfLine();
    }
    if (word == "state") return ParseState(program);
    if (word == "graph") {
      Graph graph;
      TACC_RETURN_IF_ERROR(ParseWord(&graph.name));
      if (program->FindGraph(graph.name) != nullptr) {
        return lexer_.Error(place.position, absl::StrCat("graph ", graph.name, " is defined twice"));
      }
      TACC_RETURN_IF_ERROR(Expect("{"));
      TACC_RETURN_IF_ERROR(EndOfLine());
      mesh_ = &program->mesh;
      values_.clear();
      max_suffix_ = -1;
      while (!IsPunct("}")) {
        if (token_.kind == Token::kEnd)
          return lexer_.Error(place.position, absl::StrCat("graph ", graph.name, " has no closing '}'"));
        TACC_RETURN_IF_ERROR(ParseNode(&graph));
      }
      TACC_RETURN_IF_ERROR(Advance());
      graph.ReserveNames(max_suffix_ + 1);
      program->graphs.push_back(std::move(graph));
      return EndOfLine();
    }
    if (word == "step") return ParseCalls(&program->step);
    if (word == "eval") return ParseCalls(&program->eval);
    return lexer_.Error(
        place.position,
        absl::StrCat("unknown section '", word, "'; wanted mesh, stage, seq_len, arena, state, graph, step or eval"));
  }

  absl::Status ParseMesh(Program* program) {
    while (token_.kind == Token::kWord) {
      Mesh::Axis axis;
      axis.name = token_.text;
      const size_t place = token_.position;
      TACC_RETURN_IF_ERROR(Advance());
      TACC_RETURN_IF_ERROR(Expect("="));
      TACC_RETURN_IF_ERROR(ParseInt(&axis.size));
      if (axis.size < 1)
        return lexer_.Error(place,
                            absl::StrCat("mesh axis ", axis.name, " has size ", axis.size, "; wanted at least 1"));
      if (program->mesh.Find(axis.name) >= 0)
        return lexer_.Error(place, absl::StrCat("mesh axis ", axis.name, " is given twice"));
      program->mesh.axes.push_back(axis);
    }
    return EndOfLine();
  }

  absl::Status ParseState(Program* program) {
    State state;
    mesh_ = &program->mesh;
    const size_t place = token_.position;
    if (token_.kind != Token::kString) return Error("wanted the state's name in quotes");
    state.name = token_.text;
    if (program->FindState(state.name) != nullptr)
      return Error(absl::StrCat("state \"", state.name, "\" is defined twice"));
    TACC_RETURN_IF_ERROR(Advance());
    TACC_RETURN_IF_ERROR(Expect(":"));
    Value value;
    TACC_RETURN_IF_ERROR(ParseTyped(&value));
    state.type = value.type;
    state.offset = value.offset;
    if (value.placement.has_value()) {
      state.placement = *value.placement;
    } else {
      state.placement = {value.type, Sharding::Replicated(value.type.rank())};
    }
    Attrs attrs;
    TACC_RETURN_IF_ERROR(ParseAttrs(&attrs));
    for (const auto& [key, attr] : attrs) {
      if (key == "kind" && std::holds_alternative<std::string>(attr)) {
        bool found = false;
        for (StateKind k : {StateKind::kWeight, StateKind::kCopy, StateKind::kOptimizer, StateKind::kAverage,
                            StateKind::kLossScale, StateKind::kGradient, StateKind::kCounter, StateKind::kStash}) {
          if (Name(k) == std::get<std::string>(attr).c_str()) {
            state.kind = k;
            found = true;
          }
        }
        if (!found) {
          return lexer_.Error(
              place,
              absl::StrCat("unknown kind '", std::get<std::string>(attr),
                           "'; wanted weight, copy, optimizer, average, loss_scale, gradient, counter or stash"));
        }
      } else if (key == "role" && std::holds_alternative<std::string>(attr)) {
        const std::optional<WeightRole> role = FindWeightRole(std::get<std::string>(attr));
        if (!role.has_value()) {
          return lexer_.Error(place, absl::StrCat("unknown role '", std::get<std::string>(attr),
                                                  "'; wanted trained, frozen, adapter or buffer"));
        }
        state.role = *role;
      } else if (key == "init" && std::holds_alternative<std::string>(attr)) {
        state.init = std::get<std::string>(attr);
      } else if (key == "stored" && std::holds_alternative<std::vector<int64_t>>(attr)) {
        state.stored_dims = std::get<std::vector<int64_t>>(attr);
      } else if (key == "merged_from" && std::holds_alternative<std::vector<int64_t>>(attr)) {
        state.merged_from = std::get<std::vector<int64_t>>(attr);
      } else if (key == "axes" && std::holds_alternative<std::vector<std::string>>(attr)) {
        state.axes = std::get<std::vector<std::string>>(attr);
      } else if (key == "at" && std::holds_alternative<int64_t>(attr)) {
        state.offset = std::get<int64_t>(attr);
      } else if (key == "slots" && std::holds_alternative<int64_t>(attr)) {
        state.slots = std::get<int64_t>(attr);
      } else if (key == "owner" && std::holds_alternative<int64_t>(attr)) {
        state.owner = static_cast<int>(std::get<int64_t>(attr));
      } else {
        return lexer_.Error(place,
                            absl::StrCat("attribute '", key,
                                         "' of a state is unknown or of a wrong type; wanted kind, init, role, stored, "
                                         "merged_from, axes, slots, owner, at"));
      }
    }
    program->states.push_back(std::move(state));
    return EndOfLine();
  }

  absl::Status ParseCalls(std::vector<Call>* calls) {
    TACC_RETURN_IF_ERROR(Expect("{"));
    TACC_RETURN_IF_ERROR(EndOfLine());
    while (!IsPunct("}")) {
      TACC_RETURN_IF_ERROR(ExpectWord("call"));
      Call call;
      TACC_RETURN_IF_ERROR(ParseWord(&call.graph));
      TACC_RETURN_IF_ERROR(ExpectKey("micro_batch"));
      TACC_RETURN_IF_ERROR(ParseInt(&call.micro_batch));
      TACC_RETURN_IF_ERROR(EndOfLine());
      calls->push_back(std::move(call));
    }
    TACC_RETURN_IF_ERROR(Advance());
    return EndOfLine();
  }

  absl::Status ParseNode(Graph* graph) {
    Node node;
    std::vector<Token> results;
    if (token_.kind == Token::kValue) {
      while (true) {
        if (token_.kind != Token::kValue) return Error("wanted a value (%name)");
        results.push_back(token_);
        TACC_RETURN_IF_ERROR(Advance());
        if (!IsPunct(",")) break;
        TACC_RETURN_IF_ERROR(Advance());
      }
      TACC_RETURN_IF_ERROR(Expect("="));
    }
    if (token_.kind != Token::kWord) return Error("wanted a line of the form `%result = op %operand key=value : type`");
    node.op = Op(token_.text);
    TACC_RETURN_IF_ERROR(Advance());
    if (token_.kind == Token::kString) {
      node.symbol = token_.text;
      TACC_RETURN_IF_ERROR(Advance());
    }
    while (token_.kind == Token::kValue) {
      auto it = values_.find(token_.text);
      if (it == values_.end()) {
        return Error(absl::StrCat("%", token_.text, " is used before any line defines it"));
      }
      node.operands.push_back(it->second);
      TACC_RETURN_IF_ERROR(Advance());
      if (!IsPunct(",")) break;
      TACC_RETURN_IF_ERROR(Advance());
      if (token_.kind != Token::kValue) return Error("wanted another operand (%name) after ','");
    }
    TACC_RETURN_IF_ERROR(ParseAttrs(&node.attrs));
    std::vector<Value> values;
    if (IsPunct(":")) {
      TACC_RETURN_IF_ERROR(Advance());
      while (true) {
        Value value;
        TACC_RETURN_IF_ERROR(ParseTyped(&value));
        values.push_back(std::move(value));
        if (!IsPunct(",")) break;
        TACC_RETURN_IF_ERROR(Advance());
      }
    }
    if (values.size() != results.size()) {
      return Error(absl::StrCat(node.op.name(), " defines ", results.size(), " results but gives ", values.size(),
                                " types; write one type after ':' for each"));
    }
    if (token_.kind == Token::kModule) {
      node.module = token_.text;
      TACC_RETURN_IF_ERROR(Advance());
    }
    if (token_.kind == Token::kWord && token_.text == "recompute") {
      TACC_RETURN_IF_ERROR(ExpectKey("recompute"));
      TACC_RETURN_IF_ERROR(ParseInt(&node.recompute));
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = static_cast<ValueId>(graph->values.size());
      if (!values_.emplace(results[i].text, id).second) {
        return lexer_.Error(results[i].position, absl::StrCat("%", results[i].text, " is already defined"));
      }
      values[i].name = results[i].text;
      const size_t dot = values[i].name.rfind('.');
      int64_t suffix = 0;
      if (dot != std::string::npos && absl::SimpleAtoi(values[i].name.substr(dot + 1), &suffix)) {
        if (suffix > kMaxNumberOfName) {
          return lexer_.Error(
              results[i].position,
              absl::StrCat("%", results[i].text, " ends with a number that is too large; at most ", kMaxNumberOfName));
        }
        max_suffix_ = std::max(max_suffix_, suffix);
      }
      graph->values.push_back(std::move(values[i]));
      node.results.push_back(id);
    }
    graph->nodes.push_back(std::move(node));
    return EndOfLine();
  }

  std::unordered_map<std::string, ValueId> values_;
  int64_t max_suffix_ = -1;
};

absl::Status CheckSize(absl::string_view text, const ParseOptions& options) {
  if (static_cast<int64_t>(text.size()) > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file, ": ", text.size(), " bytes of text; the limit is ", kMaxTextBytes));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<absl::string_view> SplitPrograms(absl::string_view text) {
  constexpr absl::string_view kNext = "\ntacc.program ";
  std::vector<absl::string_view> programs;
  while (true) {
    const size_t end = text.find(kNext);
    programs.push_back(text.substr(0, end == absl::string_view::npos ? end : end + 1));
    if (end == absl::string_view::npos) return programs;
    text.remove_prefix(end + 1);
  }
}

absl::StatusOr<Graph> ParseGraph(absl::string_view text, const ParseOptions& options) {
  TACC_RETURN_IF_ERROR(CheckSize(text, options));
  return Parser(text, options).ParseGraphFile();
}

absl::StatusOr<Program> ParseProgram(absl::string_view text, const ParseOptions& options) {
  TACC_RETURN_IF_ERROR(CheckSize(text, options));
  return Parser(text, options).ParseProgramFile();
}

}  // namespace tacc::graph
