#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;
constexpr int kMaxDims = 16;

struct Token {
  enum Kind { kWord, kValue, kModule, kString, kInt, kFloat, kPunct, kNewline, kEnd } kind;
  std::string text;  // without %, @ or quotes
  int64_t integer = 0;
  double number = 0;
  size_t position = 0;  // byte offset in the text
};

// Splits the text into tokens on demand; keeps the place for messages.
class Lexer {
 public:
  Lexer(absl::string_view text, std::string file) : text_(text), file_(std::move(file)) {}

  absl::Status Next(Token* token) {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r')) ++at_;
    if (at_ < text_.size() && text_[at_] == '#') {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    }
    token->position = at_;
    token->text.clear();
    if (at_ >= text_.size()) {
      token->kind = Token::kEnd;
      return absl::OkStatus();
    }
    const char c = text_[at_];
    if (c == '\n') {
      ++at_;
      token->kind = Token::kNewline;
      return absl::OkStatus();
    }
    if (c == '%' || c == '@') {
      ++at_;
      token->kind = c == '%' ? Token::kValue : Token::kModule;
      token->text = TakeName();
      if (token->text.empty())
        return Error(token->position, absl::StrCat("a name must follow '", std::string(1, c), "'"));
      return absl::OkStatus();
    }
    if (c == '"') return TakeString(token);
    if (absl::ascii_isdigit(c) || c == '-' || c == '+') {
      if (c == '-' && (at_ + 1 >= text_.size() || !(absl::ascii_isdigit(text_[at_ + 1]) || text_[at_ + 1] == 'i'))) {
        ++at_;
        token->kind = Token::kPunct;
        token->text = "-";
        return absl::OkStatus();
      }
      if (c != '+') return TakeNumber(token);
    }
    if (absl::ascii_isalpha(c) || c == '_') {
      token->kind = Token::kWord;
      token->text = TakeName();
      if (token->text == "inf" || token->text == "nan") {
        token->kind = Token::kFloat;
        token->number = token->text == "inf" ? std::numeric_limits<double>::infinity() : std::nan("");
      }
      return absl::OkStatus();
    }
    if (absl::string_view("=,:[]{}+").find(c) != absl::string_view::npos) {
      ++at_;
      token->kind = Token::kPunct;
      token->text = std::string(1, c);
      return absl::OkStatus();
    }
    return Error(at_, absl::StrCat("unexpected character '", std::string(1, c), "'"));
  }

  // "file:line:col: what", the line, a caret.
  absl::Status Error(size_t position, absl::string_view what) const {
    position = std::min(position, text_.size());
    size_t begin = text_.substr(0, position).rfind('\n');
    begin = begin == absl::string_view::npos ? 0 : begin + 1;
    size_t end = text_.find('\n', position);
    if (end == absl::string_view::npos) end = text_.size();
    int line = 1;
    for (char c : text_.substr(0, begin)) line += c == '\n';
    std::string source(text_.substr(begin, std::min<size_t>(end - begin, 200)));
    for (char& c : source) {
      if (c == '\t') c = ' ';
    }
    const size_t column = position - begin;
    std::string caret = column < 200 ? absl::StrCat("\n", std::string(column, ' '), "^") : "";
    return absl::InvalidArgumentError(absl::StrCat(file_, ":", line, ":", column + 1, ": ", what, "\n", source, caret));
  }

 private:
  std::string TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && (absl::ascii_isalnum(text_[at_]) || text_[at_] == '_' || text_[at_] == '.')) {
      ++at_;
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  absl::Status TakeString(Token* token) {
    token->kind = Token::kString;
    const size_t begin = at_++;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        token->text += text_[at_] == 'n' ? '\n' : text_[at_];
      } else {
        token->text += text_[at_];
      }
      ++at_;
    }
    if (at_ >= text_.size() || text_[at_] != '"') return Error(begin, "this string has no closing quote");
    ++at_;
    return absl::OkStatus();
  }

  absl::Status TakeNumber(Token* token) {
    const size_t begin = at_;
    if (text_[at_] == '-') ++at_;
    if (text_.substr(at_, 3) == "inf") {
      at_ += 3;
      token->kind = Token::kFloat;
      token->number = -std::numeric_limits<double>::infinity();
      return absl::OkStatus();
    }
    bool is_float = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (absl::ascii_isdigit(c)) {
        ++at_;
      } else if (c == '.' || c == 'e' || c == 'E') {
        is_float = true;
        ++at_;
        if (c != '.' && at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) ++at_;
      } else {
        break;
      }
    }
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    token->text = std::string(first, last);
    std::from_chars_result result;
    if (is_float) {
      token->kind = Token::kFloat;
      result = std::from_chars(first, last, token->number);
    } else {
      token->kind = Token::kInt;
      result = std::from_chars(first, last, token->integer);
    }
    if (result.ec != std::errc() || result.ptr != last) {
      return Error(begin, absl::StrCat("'", token->text, "' is not a number that fits"));
    }
    return absl::OkStatus();
  }

  absl::string_view text_;
  std::string file_;
  size_t at_ = 0;
};

class Parser {
 public:
  Parser(absl::string_view text, const ParseOptions& options) : lexer_(text, options.file), options_(options) {}

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
    TACC_RETURN_IF_ERROR(Advance());
    TACC_RETURN_IF_ERROR(SkipNewlines());
    if (token_.kind != Token::kWord || header != token_.text.c_str()) {
      return Error(absl::StrCat("the text must start with '", header, " 1'"));
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
    if (token_.kind != Token::kWord) return Error("wanted mesh, stage, arena, state, graph, step or eval");
    const std::string word = token_.text;
    const Token place = token_;
    TACC_RETURN_IF_ERROR(Advance());
    if (word == "mesh") return ParseMesh(program);
    if (word == "stage") {
      int64_t stage = 0, num_stages = 0;
      TACC_RETURN_IF_ERROR(ParseInt(&stage));
      TACC_RETURN_IF_ERROR(ExpectWord("of"));
      TACC_RETURN_IF_ERROR(ParseInt(&num_stages));
      program->stage = static_cast<int>(stage);
      program->num_stages = static_cast<int>(num_stages);
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
    return lexer_.Error(place.position, absl::StrCat("unknown section '", word,
                                                     "'; wanted mesh, stage, arena, state, graph, step or eval"));
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
        for (StateKind k : {StateKind::kWeight, StateKind::kCopy, StateKind::kOptimizer, StateKind::kLossScale,
                            StateKind::kGradient, StateKind::kCounter, StateKind::kStash}) {
          if (Name(k) == std::get<std::string>(attr).c_str()) {
            state.kind = k;
            found = true;
          }
        }
        if (!found) {
          return lexer_.Error(
              place, absl::StrCat("unknown kind '", std::get<std::string>(attr),
                                  "'; wanted weight, copy, optimizer, loss_scale, gradient, counter or stash"));
        }
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
        return lexer_.Error(
            place,
            absl::StrCat("attribute '", key,
                         "' of a state is unknown or of a wrong type; wanted kind, init, stored, merged_from, axes, "
                         "slots, owner, at"));
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
      int64_t recompute = 0;
      TACC_RETURN_IF_ERROR(ParseInt(&recompute));
      node.recompute = static_cast<int>(recompute);
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
        max_suffix_ = std::max(max_suffix_, suffix);
      }
      graph->values.push_back(std::move(values[i]));
      node.results.push_back(id);
    }
    graph->nodes.push_back(std::move(node));
    return EndOfLine();
  }

  // type [of type shard=[..] [pending=[..]]] [at=N]
  absl::Status ParseTyped(Value* value) {
    TACC_RETURN_IF_ERROR(ParseType(&value->type));
    if (token_.kind == Token::kWord && token_.text == "of") {
      TACC_RETURN_IF_ERROR(Advance());
      Placement placement;
      TACC_RETURN_IF_ERROR(ParseType(&placement.global));
      TACC_RETURN_IF_ERROR(ExpectKey("shard"));
      TACC_RETURN_IF_ERROR(ParseShard(&placement.sharding));
      if (static_cast<int>(placement.sharding.dims.size()) != placement.global.rank()) {
        return Error(absl::StrCat("shard= names ", placement.sharding.dims.size(), " dims of a tensor of rank ",
                                  placement.global.rank()));
      }
      if (token_.kind == Token::kWord && token_.text == "pending") {
        TACC_RETURN_IF_ERROR(ExpectKey("pending"));
        TACC_RETURN_IF_ERROR(Expect("["));
        while (!IsPunct("]")) {
          int axis = 0;
          TACC_RETURN_IF_ERROR(ParseAxis(&axis));
          placement.sharding.pending.push_back(axis);
          if (IsPunct(",")) TACC_RETURN_IF_ERROR(Advance());
        }
        TACC_RETURN_IF_ERROR(Advance());
      }
      value->placement = std::move(placement);
    }
    if (token_.kind == Token::kWord && token_.text == "at") {
      TACC_RETURN_IF_ERROR(ExpectKey("at"));
      TACC_RETURN_IF_ERROR(ParseInt(&value->offset));
    }
    return absl::OkStatus();
  }

  absl::Status ParseType(TensorType* type) {
    if (token_.kind != Token::kWord) return Error("wanted a type such as f32[4,8]");
    auto dtype = ParseDType(token_.text);
    if (!dtype.ok()) return Error(std::string(dtype.status().message()));
    type->dtype = *dtype;
    TACC_RETURN_IF_ERROR(Advance());
    TACC_RETURN_IF_ERROR(Expect("["));
    int64_t elements = 1;
    while (!IsPunct("]")) {
      int64_t dim = 0;
      if (token_.kind == Token::kWord) {
        auto it = options_.symbols.find(token_.text);
        if (it == options_.symbols.end()) {
          std::vector<std::string> known;
          for (const auto& [name, size] : options_.symbols) known.push_back(name);
          return Error(absl::StrCat("the dim '", token_.text, "' has no value here; known names: ",
                                    known.empty() ? "none" : absl::StrJoin(known, ", ")));
        }
        dim = it->second;
        TACC_RETURN_IF_ERROR(Advance());
      } else {
        TACC_RETURN_IF_ERROR(ParseInt(&dim));
      }
      if (dim < 0) return Error(absl::StrCat("a dim of ", dim, "; wanted 0 or more"));
      if (dim > 0 && elements > (int64_t{1} << 50) / dim) return Error("this tensor has more than 2^50 elements");
      elements *= dim;
      type->dims.push_back(dim);
      if (type->rank() > kMaxDims) return Error(absl::StrCat("more than ", kMaxDims, " dims"));
      if (IsPunct(",")) {
        TACC_RETURN_IF_ERROR(Advance());
      } else if (!IsPunct("]")) {
        return Error("wanted ',' or ']' in a type");
      }
    }
    return Advance();
  }

  absl::Status ParseShard(Sharding* sharding) {
    TACC_RETURN_IF_ERROR(Expect("["));
    while (!IsPunct("]")) {
      AxisList axes;
      if (IsPunct("-")) {
        TACC_RETURN_IF_ERROR(Advance());
      } else {
        while (true) {
          int axis = 0;
          TACC_RETURN_IF_ERROR(ParseAxis(&axis));
          axes.push_back(axis);
          if (!IsPunct("+")) break;
          TACC_RETURN_IF_ERROR(Advance());
        }
      }
      sharding->dims.push_back(std::move(axes));
      if (IsPunct(",")) {
        TACC_RETURN_IF_ERROR(Advance());
      } else if (!IsPunct("]")) {
        return Error("wanted ',' or ']' in shard=[...]");
      }
    }
    return Advance();
  }

  absl::Status ParseAxis(int* axis) {
    if (token_.kind != Token::kWord) return Error("wanted the name of a mesh axis");
    *axis = mesh_ == nullptr ? -1 : mesh_->Find(token_.text);
    if (*axis < 0) {
      return Error(
          absl::StrCat("'", token_.text, "' is no axis of the mesh (", mesh_ == nullptr ? "" : mesh_->ToString(), ")"));
    }
    return Advance();
  }

  absl::Status ParseAttrs(Attrs* attrs) {
    while (token_.kind == Token::kWord && token_.text != "recompute") {
      const Token key = token_;
      TACC_RETURN_IF_ERROR(Advance());
      if (!IsPunct("=")) return lexer_.Error(key.position, absl::StrCat("wanted key=value, got '", key.text, "'"));
      TACC_RETURN_IF_ERROR(Advance());
      Attr attr;
      TACC_RETURN_IF_ERROR(ParseAttr(&attr));
      if (!attrs->emplace(key.text, std::move(attr)).second) {
        return lexer_.Error(key.position, absl::StrCat("attribute ", key.text, " is given twice"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseAttr(Attr* attr) {
    if (!IsPunct("[")) return ParseScalarAttr(attr);
    TACC_RETURN_IF_ERROR(Advance());
    std::vector<Attr> items;
    while (!IsPunct("]")) {
      Attr item;
      TACC_RETURN_IF_ERROR(ParseScalarAttr(&item));
      items.push_back(std::move(item));
      if (IsPunct(",")) {
        TACC_RETURN_IF_ERROR(Advance());
      } else if (!IsPunct("]")) {
        return Error("wanted ',' or ']' in a list");
      }
    }
    auto all = [&](auto tag) {
      using T = decltype(tag);
      for (const Attr& item : items) {
        if (!std::holds_alternative<T>(item)) return false;
      }
      std::vector<T> list;
      for (const Attr& item : items) list.push_back(std::get<T>(item));
      *attr = std::move(list);
      return true;
    };
    if (!all(int64_t{}) && !all(std::string{}) && !all(double{}))
      return Error("the items of a list must be of one kind");
    return Advance();
  }

  absl::Status ParseScalarAttr(Attr* attr) {
    switch (token_.kind) {
      case Token::kInt:
        *attr = token_.integer;
        break;
      case Token::kFloat:
        *attr = token_.number;
        break;
      case Token::kString:
        *attr = token_.text;
        break;
      case Token::kWord:
        if (token_.text == "true" || token_.text == "false") {
          *attr = token_.text == "true";
        } else {
          *attr = token_.text;
        }
        break;
      default:
        return Error("wanted a value: a number, true, false, a word or a quoted string");
    }
    return Advance();
  }

  absl::Status ParseInt(int64_t* out) {
    if (token_.kind != Token::kInt) return Error("wanted a whole number");
    *out = token_.integer;
    return Advance();
  }
  absl::Status ParseWord(std::string* out) {
    if (token_.kind != Token::kWord) return Error("wanted a name");
    *out = token_.text;
    return Advance();
  }
  absl::Status ExpectWord(absl::string_view word) {
    if (token_.kind != Token::kWord || word != token_.text.c_str()) return Error(absl::StrCat("wanted '", word, "'"));
    return Advance();
  }
  absl::Status ExpectKey(absl::string_view key) {
    TACC_RETURN_IF_ERROR(ExpectWord(key));
    return Expect("=");
  }
  bool IsPunct(absl::string_view text) const { return token_.kind == Token::kPunct && text == token_.text.c_str(); }
  absl::Status Expect(absl::string_view punct) {
    if (!IsPunct(punct)) return Error(absl::StrCat("wanted '", punct, "'"));
    return Advance();
  }
  absl::Status EndOfLine() {
    if (token_.kind != Token::kNewline && token_.kind != Token::kEnd)
      return Error("unexpected text at the end of the line");
    return SkipNewlines();
  }
  absl::Status SkipNewlines() {
    while (token_.kind == Token::kNewline) TACC_RETURN_IF_ERROR(Advance());
    return absl::OkStatus();
  }
  absl::Status Advance() { return lexer_.Next(&token_); }
  absl::Status Error(absl::string_view what) const { return lexer_.Error(token_.position, what); }

  Lexer lexer_;
  const ParseOptions& options_;
  Token token_;
  const Mesh* mesh_ = nullptr;
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

absl::StatusOr<Graph> ParseGraph(absl::string_view text, const ParseOptions& options) {
  TACC_RETURN_IF_ERROR(CheckSize(text, options));
  return Parser(text, options).ParseGraphFile();
}

absl::StatusOr<Program> ParseProgram(absl::string_view text, const ParseOptions& options) {
  TACC_RETURN_IF_ERROR(CheckSize(text, options));
  return Parser(text, options).ParseProgramFile();
}

}  // namespace tacc::graph
