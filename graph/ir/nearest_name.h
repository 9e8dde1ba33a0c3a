#ifndef TACC_GRAPH_IR_NEAREST_NAME_H_
#define TACC_GRAPH_IR_NEAREST_NAME_H_

#include <string>
#include <vector>

namespace tacc::graph {

// The name nearest to `text` by changed letters, for error messages; "" when `names` is empty.
std::string NearestName(const std::string& text, const std::vector<std::string>& names);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_NEAREST_NAME_H_
