#ifndef TACC_GRAPH_IMPORT_JSON_FILE_H_
#define TACC_GRAPH_IMPORT_JSON_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {

// The text of a file of at most `max_bytes`. Errors: NotFound, InvalidArgument, each naming the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes);

// A JSON file of at most `max_bytes`. A syntax error gives "path:line:col: what". A key given twice in one object is an
// error.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes);
absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& path);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_JSON_FILE_H_
