// Words, numbers and marks of the text form.
#ifndef TACC_GRAPH_IR_TEXT_LEXER_H_
#define TACC_GRAPH_IR_TEXT_LEXER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tacc::graph {

// A piece of the text form.
struct Token {
  enum Kind { kWord, kValue, kModule, kString, kInt, kFloat, kPunct, kNewline, kEnd } kind = kEnd;
  std::string text;  // without %, @ or quotes
  int64_t integer = 0;
  double number = 0;
  size_t position = 0;  // byte offset in the text
};

// Splits the text form into tokens on demand; keeps the place for messages. The text is borrowed.
class Lexer {
 public:
  Lexer(absl::string_view text, std::string file) : text_(text), file_(std::move(file)) {}
  // Takes the next token; of kind kEnd behind the last. Errors: InvalidArgument, as Error.
  absl::Status Next(Token* token);

  // "file:line:col".
  std::string Place(size_t position) const;
  // "file:line:col: what", the line, a caret.
  absl::Status Error(size_t position, absl::string_view what) const;

 private:
  size_t LineBegin(size_t position) const;
  std::string TakeName();
  absl::Status TakeString(Token* token);
  absl::Status TakeNumber(Token* token);

  absl::string_view text_;
  std::string file_;
  size_t at_ = 0;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TEXT_LEXER_H_
