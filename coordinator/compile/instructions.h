// Names of a program's instructions, for people.
#ifndef TACC_COORDINATOR_COMPILE_INSTRUCTIONS_H_
#define TACC_COORDINATOR_COMPILE_INSTRUCTIONS_H_

#include <string>

namespace tacc::coordinator {

// "all_gather %w.3 in forward (layers.0.mlp)": node `node` of the graph that call `call` of the step runs; calls from
// the number of the step's calls on are those of an evaluation. When the program does not parse or has no such node,
// "call 1 node 7".
std::string DescribeNode(const std::string& program_text, int call, int node);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_COMPILE_INSTRUCTIONS_H_
