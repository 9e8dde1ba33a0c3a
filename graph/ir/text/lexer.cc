#include "graph/ir/text/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {

absl::Status Lexer::Next(Token* token) {
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
  if (absl::string_view("=,:[]{}+*").find(c) != absl::string_view::npos) {
    ++at_;
    token->kind = Token::kPunct;
    token->text = std::string(1, c);
    return absl::OkStatus();
  }
  size_t end = at_ + 1;  // of the character, which may take several bytes
  while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xC0) == 0x80) ++end;
  return Error(at_, absl::StrCat("unexpected character '", text_.substr(at_, end - at_), "'"));
}

size_t Lexer::LineBegin(size_t position) const {
  const size_t newline = text_.substr(0, position).rfind('\n');
  return newline == absl::string_view::npos ? 0 : newline + 1;
}

std::string Lexer::Place(size_t position) const {
  position = std::min(position, text_.size());
  const size_t begin = LineBegin(position);
  const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(begin), '\n');
  return absl::StrCat(file_, ":", line, ":", position - begin + 1);
}

absl::Status Lexer::Error(size_t position, absl::string_view what) const {
  position = std::min(position, text_.size());
  const size_t begin = LineBegin(position);
  size_t end = text_.find('\n', position);
  if (end == absl::string_view::npos) end = text_.size();
  std::string source(text_.substr(begin, std::min<size_t>(end - begin, 200)));
  for (char& c : source) {
    if (c == '\t') c = ' ';
  }
  const size_t column = position - begin;
  std::string caret = column < 200 ? absl::StrCat("\n", std::string(column, ' '), "^") : "";
  return absl::InvalidArgumentError(absl::StrCat(Place(position), ": ", what, "\n", source, caret));
}

std::string Lexer::TakeName() {
  const size_t begin = at_;
  while (at_ < text_.size() && (absl::ascii_isalnum(text_[at_]) || text_[at_] == '_' || text_[at_] == '.')) {
    ++at_;
  }
  return std::string(text_.substr(begin, at_ - begin));
}

absl::Status Lexer::TakeString(Token* token) {
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

absl::Status Lexer::TakeNumber(Token* token) {
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
  if (at_ < text_.size() && (absl::ascii_isalnum(text_[at_]) || text_[at_] == '_'))
    return Error(at_, absl::StrCat("a blank is missing behind the number ", token->text));
  return absl::OkStatus();
}

}  // namespace tacc::graph
