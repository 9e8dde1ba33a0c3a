#include "worker/rank/state/model_check.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {

std::string EosMismatch(const std::string& model_dir, const std::string& data_path, int64_t data_eos_token_id) {
  constexpr int64_t kMaxConfigBytes = 16 << 20;
  const std::string path = absl::StrCat(model_dir, "/config.json");
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxConfigBytes);
  if (!text.ok()) return "";
  const nlohmann::json config = ParseJson(*text);
  if (!config.is_object() || !config.contains("eos_token_id") || config["eos_token_id"].is_null()) return "";
  const nlohmann::json& eos = config["eos_token_id"];  // A number, or a list of them.
  for (const nlohmann::json& id : eos.is_array() ? eos : nlohmann::json::array({eos})) {
    if (id == data_eos_token_id) return "";
  }
  return absl::StrCat(
      path, " has eos_token_id ", eos.dump(), ", but texts in ", data_path, " end with ", data_eos_token_id,
      ": the exported model would not stop where the data's texts do; set eos_token_id to ", data_eos_token_id,
      " there and submit the job again, or prepare the data with the model's tokenizer");
}

}  // namespace tacc::worker
