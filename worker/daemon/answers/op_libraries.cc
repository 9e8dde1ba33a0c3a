#include "worker/daemon/answers/op_libraries.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "json/parse_json.h"
#include "machine/exit_code.h"
#include "nlohmann/json.hpp"
#include "process/run_program.h"
#include "worker/daemon/host/rank_environment.h"

namespace tacc::worker {
namespace {

constexpr size_t kMaxErrorBytes = 2000;
constexpr size_t kMaxOutputBytes = 1 << 20;

absl::Status CannotLoad(const OpLibraryRequest& request, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("--op-library ", absl::StrJoin(request.files, " --op-library "), ": ", what));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TryOpLibraries(const OpLibraryRequest& request) {
  ProcessOptions options = {.argv = {request.rank_path, "--operators"},
                            .inherits = RankInherits,
                            .environment = RankEnvironment(/*num_threads=*/1)};
  for (std::string& argument : ConfinementArguments(request.confinement)) options.argv.push_back(std::move(argument));
  for (const std::string& file : request.files) options.argv.insert(options.argv.end(), {"--op-library", file});
  const auto is_asked_to_end = [&request] {
    std::vector<pollfd> polled;
    for (const int fd : request.end_descriptors) polled.push_back({fd, POLLIN, 0});
    return poll(polled.data(), polled.size(), 0) > 0;
  };
  const absl::StatusOr<ProgramResult> result =
      RunProgram(options, {.seconds = request.timeout_seconds, .output_bytes = kMaxOutputBytes}, is_asked_to_end);
  if (!result.ok()) return absl::FailedPreconditionError(result.status().message());
  if (result->cancelled) return absl::CancelledError("asked to end while libraries of operators were tried");
  if (result->timed_out) {
    return CannotLoad(request,
                      absl::StrCat("loading takes longer than ", static_cast<int>(request.timeout_seconds), " s"));
  }
  absl::string_view said = absl::StripAsciiWhitespace(result->err);
  said = said.substr(0, std::min(kMaxErrorBytes, said.find("\nException raised from ")));  // The stack behind it.
  if (result->end.exit_code == kExitBadInput && absl::ConsumePrefix(&said, "error: "))
    return absl::InvalidArgumentError(said);
  if (result->end.exit_code != kExitOk)
    return CannotLoad(
        request,
        absl::StrCat(result->end.Text(), " while it was loaded, and said: ", absl::StrReplaceAll(said, {{"\n", " "}})));
  // A library may have printed something before.
  const absl::string_view out = absl::StripAsciiWhitespace(result->out);
  const nlohmann::json operators = ParseJson(std::string(out.substr(out.rfind('\n') + 1)));
  std::vector<std::string> names;
  for (const nlohmann::json& name : operators.is_array() ? operators : nlohmann::json::array()) {
    if (name.is_string()) names.push_back(name.get<std::string>());
  }
  if (names.empty()) {
    return CannotLoad(request,
                      "it adds no operator; wanted a library that registers some with PyTorch (TORCH_LIBRARY)");
  }
  return names;
}

std::string InWords(const std::vector<std::string>& operators) {
  std::map<std::string, int> counts;
  for (const std::string& name : operators) ++counts[name.substr(0, name.find("::"))];
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.first, " (", count.second, count.second == 1 ? " operator)" : " operators)");
  });
}

}  // namespace tacc::worker
