#include "worker/checkpoint/tensors/tensor_rows.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tacc::worker {

absl::optional<TensorRows> ParseTensorRows(const std::string& name) {
  const size_t bracket = name.rfind('[');
  if (bracket == std::string::npos || bracket == 0) return absl::nullopt;
  absl::string_view range = absl::string_view(name).substr(bracket + 1);
  if (!absl::ConsumeSuffix(&range, "]")) return absl::nullopt;
  TensorRows rows;
  if (absl::ConsumePrefix(&range, ":,")) rows.dim = 1;
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits(':', 1));
  rows.tensor = name.substr(0, bracket);
  if (!absl::SimpleAtoi(ends.first, &rows.begin) || !absl::SimpleAtoi(ends.second, &rows.end)) return absl::nullopt;
  if (rows.begin < 0 || rows.end <= rows.begin) return absl::nullopt;
  return rows;
}

}  // namespace tacc::worker
