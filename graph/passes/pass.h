#ifndef TACC_GRAPH_PASSES_PASS_H_
#define TACC_GRAPH_PASSES_PASS_H_

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// A line of a pipeline. Every pass is a function of one shape,
//
//   R Name(Scope& scope, const OpTable& ops, OPTIONS...)
//
// that rewrites its scope in place and returns whether it changed anything. R is bool, or absl::StatusOr<bool> where a
// pass can fail. Scope is what it looks at: a Graph, a Program, or std::vector<Program>, the programs of all stages.
// The pass runs on each that there is.
struct Pass {
  // `arguments`: OPTIONS, which the line holds a copy of.
  template <typename R, typename Scope, typename... Options, typename... Arguments>
  Pass(std::string name, std::string summary, bool enabled, R (*function)(Scope&, const OpTable&, Options...),
       Arguments... arguments)
      : name(std::move(name)),
        summary(std::move(summary)),
        enabled(enabled),
        run([=](std::vector<Program>& stages, const OpTable& ops) -> absl::StatusOr<bool> {
          bool changed = false;
          const auto apply = [&](Scope& scope) -> absl::Status {
            TACC_ASSIGN_OR_RETURN(const bool here, absl::StatusOr<bool>(function(scope, ops, arguments...)));
            changed |= here;
            return absl::OkStatus();
          };
          if constexpr (std::is_same_v<Scope, std::vector<Program>>) {
            TACC_RETURN_IF_ERROR(apply(stages));
          } else {
            for (Program& program : stages) {
              if constexpr (std::is_same_v<Scope, Program>) {
                TACC_RETURN_IF_ERROR(apply(program));
              } else {
                for (Graph& graph : program.graphs) TACC_RETURN_IF_ERROR(apply(graph));
              }
            }
          }
          return changed;
        }) {}

  std::string name;     // kebab case, as in tacc-opt --passes
  std::string summary;  // what it does, in one line
  bool enabled;         // whether the options ask for it
  // Returns whether anything changed. After an error the programs are of no use.
  std::function<absl::StatusOr<bool>(std::vector<Program>& stages, const OpTable& ops)> run;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PASS_H_
