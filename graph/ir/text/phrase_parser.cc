#include "graph/ir/text/phrase_parser.h"

#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

constexpr int kMaxDims = 16;

}  // namespace

absl::Status PhraseParser::ParseTyped(Value* value) {
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
      TACC_RETURN_IF_ERROR(ParseList("pending=[...]", [&] {
        int axis = 0;
        TACC_RETURN_IF_ERROR(ParseAxis(&axis));
        placement.sharding.pending.push_back(axis);
        return absl::OkStatus();
      }));
    }
    value->placement = std::move(placement);
  }
  if (token_.kind == Token::kWord && token_.text == "at") {
    TACC_RETURN_IF_ERROR(ExpectKey("at"));
    TACC_RETURN_IF_ERROR(ParseInt(&value->offset));
  }
  return absl::OkStatus();
}

absl::Status PhraseParser::ParseType(TensorType* type) {
  if (token_.kind != Token::kWord) return Error("wanted a type such as f32[4,8]");
  auto dtype = ParseDType(token_.text);
  if (!dtype.ok()) return Error(std::string(dtype.status().message()));
  type->dtype = *dtype;
  TACC_RETURN_IF_ERROR(Advance());
  int64_t elements = 1;
  return ParseList("a type", [&]() -> absl::Status {
    int64_t dim = 0;
    TACC_RETURN_IF_ERROR(ParseExtent(&dim));
    if (dim < 0) return Error(absl::StrCat("a dim of ", dim, "; wanted 0 or more"));
    if (dim > 0 && elements > (int64_t{1} << 50) / dim) return Error("this tensor has more than 2^50 elements");
    elements *= dim;
    type->dims.push_back(dim);
    if (type->rank() > kMaxDims) return Error(absl::StrCat("more than ", kMaxDims, " dims"));
    return absl::OkStatus();
  });
}

absl::Status PhraseParser::ParseShard(Sharding* sharding) {
  return ParseList("shard=[...]", [&]() -> absl::Status {
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
    return absl::OkStatus();
  });
}

absl::Status PhraseParser::ParseList(absl::string_view what, absl::FunctionRef<absl::Status()> parse_item) {
  TACC_RETURN_IF_ERROR(Expect("["));
  if (IsPunct("]")) return Advance();
  while (true) {
    TACC_RETURN_IF_ERROR(parse_item());
    if (IsPunct("]")) return Advance();
    if (!IsPunct(",")) return Error(absl::StrCat("wanted ',' or ']' in ", what));
    TACC_RETURN_IF_ERROR(Advance());
  }
}

absl::Status PhraseParser::ParseAxis(int* axis) {
  if (token_.kind != Token::kWord) return Error("wanted the name of a mesh axis");
  *axis = mesh_ == nullptr ? -1 : mesh_->Find(token_.text);
  if (*axis < 0) {
    return Error(
        absl::StrCat("'", token_.text, "' is no axis of the mesh (", mesh_ == nullptr ? "" : mesh_->ToString(), ")"));
  }
  return Advance();
}

absl::Status PhraseParser::ParseAttrs(Attrs* attrs) {
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

absl::Status PhraseParser::ParseAttr(Attr* attr) {
  if (!IsPunct("[")) return ParseScalarAttr(attr);
  const size_t position = token_.position;
  std::vector<Attr> items;
  TACC_RETURN_IF_ERROR(ParseList("a list", [&] { return ParseScalarAttr(&items.emplace_back()); }));
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
  if (all(int64_t{}) || all(std::string{}) || all(double{})) return absl::OkStatus();
  return lexer_.Error(position, "the items of a list must be of one kind");
}

absl::Status PhraseParser::ParseScalarAttr(Attr* attr) {
  if (token_.kind == Token::kInt || (token_.kind == Token::kWord && options_.symbols.count(token_.text) > 0)) {
    int64_t extent = 0;
    TACC_RETURN_IF_ERROR(ParseExtent(&extent));
    *attr = extent;
    return absl::OkStatus();
  }
  switch (token_.kind) {
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

absl::Status PhraseParser::ParseExtent(int64_t* out) {
  const size_t position = token_.position;
  TACC_RETURN_IF_ERROR(ParseProduct(out));
  while (true) {
    const bool is_minus = IsPunct("-");
    if (is_minus || IsPunct("+")) {
      TACC_RETURN_IF_ERROR(Advance());
    } else if (token_.kind != Token::kInt || token_.integer >= 0) {
      return absl::OkStatus();  // else `S-1`, whose second token is -1
    }
    int64_t summand = 0;
    TACC_RETURN_IF_ERROR(ParseProduct(&summand));
    if (is_minus ? __builtin_sub_overflow(*out, summand, out) : __builtin_add_overflow(*out, summand, out))
      return lexer_.Error(position, "this sum does not fit in 64 bits");
  }
}

absl::Status PhraseParser::ParseProduct(int64_t* out) {
  const size_t position = token_.position;
  *out = 1;
  while (true) {
    int64_t factor = 0;
    if (token_.kind == Token::kWord) {
      const auto it = options_.symbols.find(token_.text);
      if (it == options_.symbols.end()) {
        std::vector<std::string> known;
        for (const auto& [name, size] : options_.symbols) known.push_back(name);
        return Error(absl::StrCat("the dim '", token_.text, "' has no value here; known names: ",
                                  known.empty() ? "none" : absl::StrJoin(known, ", ")));
      }
      factor = it->second;
      TACC_RETURN_IF_ERROR(Advance());
    } else {
      TACC_RETURN_IF_ERROR(ParseInt(&factor));
    }
    if (__builtin_mul_overflow(*out, factor, out))
      return lexer_.Error(position, "this product does not fit in 64 bits");
    if (!IsPunct("*")) return absl::OkStatus();
    TACC_RETURN_IF_ERROR(Advance());
  }
}

absl::Status PhraseParser::ParseInt(int64_t* out) {
  if (token_.kind != Token::kInt) return Error("wanted a whole number");
  *out = token_.integer;
  return Advance();
}

absl::Status PhraseParser::ParseInt(int* out) {
  if (token_.kind != Token::kInt) return Error("wanted a whole number");
  if (token_.integer < std::numeric_limits<int>::min() || token_.integer > std::numeric_limits<int>::max())
    return Error(absl::StrCat(token_.integer, " is too large here"));
  *out = static_cast<int>(token_.integer);
  return Advance();
}

absl::Status PhraseParser::ParseWord(std::string* out) {
  if (token_.kind != Token::kWord) return Error("wanted a name");
  *out = token_.text;
  return Advance();
}

absl::Status PhraseParser::ExpectWord(absl::string_view word) {
  if (token_.kind != Token::kWord || word != token_.text.c_str()) return Error(absl::StrCat("wanted '", word, "'"));
  return Advance();
}

absl::Status PhraseParser::ExpectKey(absl::string_view key) {
  TACC_RETURN_IF_ERROR(ExpectWord(key));
  return Expect("=");
}

absl::Status PhraseParser::Expect(absl::string_view punct) {
  if (!IsPunct(punct)) return Error(absl::StrCat("wanted '", punct, "'"));
  return Advance();
}

absl::Status PhraseParser::EndOfLine() {
  if (token_.kind != Token::kNewline && token_.kind != Token::kEnd)
    return Error("unexpected text at the end of the line");
  return SkipNewlines();
}

absl::Status PhraseParser::SkipNewlines() {
  while (token_.kind == Token::kNewline) TACC_RETURN_IF_ERROR(Advance());
  return absl::OkStatus();
}

}  // namespace tacc::graph
