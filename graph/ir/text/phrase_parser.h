#ifndef TACC_GRAPH_IR_TEXT_PHRASE_PARSER_H_
#define TACC_GRAPH_IR_TEXT_PHRASE_PARSER_H_

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/ir/attr.h"
#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ir/text.h"
#include "graph/ir/text/lexer.h"

namespace tacc::graph {

// Parses what lines of the text form consist of: types, placements, attributes, words. The text and the options are
// borrowed. Each function starts at the current token, and leaves the one behind what it has parsed; errors are
// InvalidArgument with the place.
class PhraseParser {
 protected:
  PhraseParser(absl::string_view text, const ParseOptions& options) : lexer_(text, options.file), options_(options) {}

  // type [of type shard=[..] [pending=[..]]] [at=N]
  absl::Status ParseTyped(Value* value);
  absl::Status ParseType(TensorType* type);
  absl::Status ParseShard(Sharding* sharding);
  // [item,item,...] or []; `what` names it in errors.
  absl::Status ParseList(absl::string_view what, absl::FunctionRef<absl::Status()> parse_item);
  absl::Status ParseAxis(int* axis);
  absl::Status ParseAttrs(Attrs* attrs);
  absl::Status ParseAttr(Attr* attr);
  absl::Status ParseScalarAttr(Attr* attr);
  // A sum of products of whole numbers and bound names: 12*B, S+1, B*S-1.
  absl::Status ParseExtent(int64_t* out);
  absl::Status ParseProduct(int64_t* out);
  absl::Status ParseInt(int64_t* out);
  absl::Status ParseInt(int* out);
  absl::Status ParseWord(std::string* out);
  absl::Status ExpectWord(absl::string_view word);
  absl::Status ExpectKey(absl::string_view key);
  bool IsPunct(absl::string_view text) const { return token_.kind == Token::kPunct && text == token_.text.c_str(); }
  absl::Status Expect(absl::string_view punct);
  absl::Status EndOfLine();
  absl::Status SkipNewlines();
  absl::Status Advance() { return lexer_.Next(&token_); }
  absl::Status Error(absl::string_view what) const { return lexer_.Error(token_.position, what); }

  Lexer lexer_;
  const ParseOptions& options_;
  Token token_;
  const Mesh* mesh_ = nullptr;  // Whose axes shards may name.
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TEXT_PHRASE_PARSER_H_
