#include "worker/rank/protocol/start_file.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "machine/device_name.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxStartFileBytes = 16 << 20;
static_assert(protocol::kMaxAttempt == kMaxAttempt);

// What the declarations of the fields do not say.
absl::Status Check(const StartFile& start, const std::string& where) {
  const auto wrong = [&where](const char* name, const nlohmann::json& got, const std::string& wanted) {
    return absl::InvalidArgumentError(absl::StrCat(where, name, " is ", got.dump().substr(0, 80), "; wanted ", wanted));
  };
  if (start.rank >= start.world) return wrong("rank", start.rank, absl::StrCat("less than world = ", start.world));
  if (!IsDevice(start.device)) return wrong("device", start.device, kDeviceNames);
  if (!IsGpu(start.device) && start.tf32) return wrong("compute.tf32", true, "false on a CPU, which has no TF32");
  // What this program itself reads of what it passes on.
  if (const auto config = start.identity.find("config_json"); config != start.identity.end() && !config->is_string())
    return wrong("identity.config_json", *config, "a string");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StartFile> ReadStartFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxStartFileBytes, Pipes::kRead);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("start file: ", text.status().message()));
  const nlohmann::json root = ParseJson(*text);
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat("start file ", path, ": not a JSON object"));
  const std::string where = absl::StrCat("start file ", path, ": ");
  absl::StatusOr<StartFile> start = protocol::ReadStartFile(root, where);
  if (!start.ok()) return start;
  if (absl::Status status = Check(*start, where); !status.ok()) return status;
  return start;
}

}  // namespace tacc::worker
