#ifndef TACC_GRAPH_IR_TEXT_H_
#define TACC_GRAPH_IR_TEXT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/program.h"

namespace tacc::graph {

// The one text form: files, golden tests, RPC payload and cache key. Print(Parse(t)) == t for printed t.
//
//   tacc.graph 1                                   a single logical graph: the rest of the file is its nodes
//   %x = input "tokens" : i32[B,64]                dims may be B*S or S+1 of names that ParseOptions binds
//   %w = param "fc.weight" init="normal(0.02)" : f32[256,64]
//   %y = einsum %h, %w spec="bsk,nk->bsn" : f32[B,64,256] @fc
//   output "loss" %l
//
//   tacc.program 1 planned
//   mesh dp=1 fsdp=2
//   stage 0 of 1
//   seq_len 64                                     where a rank has programs for several lengths
//   arena bytes=4096 workspace=0
//   state "weights/fc.weight" : f32[128,64] of f32[256,64] shard=[fsdp,-] kind=weight stored=[256,64] at=0
//   graph forward_backward {
//     %w.1 = read "weights/fc.weight" : f32[128,64] of f32[256,64] shard=[fsdp,-] at=0
//   }
//   step {
//     call forward_backward micro_batch=0
//   }
//   eval {
//     call eval micro_batch=0
//   }
//
// A line is `[%r, ...] = op ["symbol"] [%a, ...] [key=value ...] [: type [of type shard=[..] [pending=[..]]] [at=N],
// ...] [@module] [recompute=N]`. `#` starts a comment. Floats are in shortest round-trip form.
std::string Print(const Graph& graph);
std::string Print(const Program& program);
// A node as Print writes it, without indentation.
std::string Print(const Graph& graph, const Node& node, const Mesh& mesh);
std::string Print(const Attr& attr);

struct ParseOptions {
  std::string file = "<text>";
  // Values of names in dims and, where they are not in quotes, in attributes.
  std::map<std::string, int64_t> symbols;
};

// The texts of several programs, one behind the other, apart: those of one stage for batches of several lengths.
std::vector<absl::string_view> SplitPrograms(absl::string_view text);

// Errors: InvalidArgument "file:line:col: what" followed by the line and a caret. Only the syntax and the names are
// checked here; graph/verify checks the rest.
absl::StatusOr<Graph> ParseGraph(absl::string_view text, const ParseOptions& options);
absl::StatusOr<Program> ParseProgram(absl::string_view text, const ParseOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TEXT_H_
