// Which tensors a folder's safetensors files hold, and whether they are those that a model wants.
#ifndef TACC_GRAPH_IMPORT_WEIGHTS_H_
#define TACC_GRAPH_IMPORT_WEIGHTS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// Types of safetensors that weights may have, and their names for messages.
bool IsOfWeights(const std::string& dtype);
inline constexpr char kWeightTypes[] = "F32, BF16, F16 or F64";

struct StoredTensor {
  std::string file;   // name of the file in the folder
  std::string dtype;  // as in safetensors: "F32", "BF16", ...
  Dims dims;
  int64_t offset = 0;  // bytes from the begin of the file
  int64_t bytes = 0;
};

// What the headers of a model folder's weight files say.
struct StoredWeights {
  enum Kind { kNone, kSafetensors, kPickledOnly } kind = kNone;
  std::map<std::string, StoredTensor> tensors;  // by name
};

// Reads the headers of model.safetensors, or of the files that model.safetensors.index.json names. Reads no weights.
// Errors: InvalidArgument naming the file: truncated, not safetensors, a tensor twice, the index and the files differ.
absl::StatusOr<StoredWeights> ReadStoredWeights(const std::string& dir);

// The same of one file of the folder.
absl::StatusOr<StoredWeights> ReadStoredFile(const std::string& dir, const std::string& file);

// Whether two tensors of the folder have the same shape and values, whatever their dtypes; of dtypes that are not
// floating point, whether they have the same bytes. Reads both up to the first difference. Errors: InvalidArgument: a
// file cannot be read.
absl::StatusOr<bool> AreEqual(const std::string& dir, const StoredTensor& a, const StoredTensor& b);

struct WantedTensor {
  std::string name;
  Dims dims;                // as stored
  bool may_be_f32 = false;  // whatever dtype the others have
};

// The tensors of the files in which those params of the graph lie that are wanted; those named NAME[BEGIN:END] are rows
// of one, those with a * a stack.
std::vector<WantedTensor> WantedTensors(const Graph& graph, const std::function<bool(const Node& param)>& is_wanted);

struct WeightsCheck {
  std::vector<WantedTensor> wanted;
  std::function<bool(const std::string&)> ignorable;  // names that may be there, unused
  std::string dtype;                                  // of config.json, or empty
};

// Compares names, shapes and dtypes. Errors: InvalidArgument with every problem, one a line.
absl::Status CheckWeights(const StoredWeights& stored, const WeightsCheck& check);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_WEIGHTS_H_
