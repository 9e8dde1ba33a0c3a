#include "client/taccctl/local/tool.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/taccctl/local/process.h"

namespace tacc::client {
namespace {

constexpr size_t kMaxOutputBytes = size_t{1} << 30;

}  // namespace

absl::StatusOr<std::string> RunTool(const std::string& name, const std::vector<std::string>& arguments, double seconds,
                                    const Context& context) {
  absl::StatusOr<ProgramResult> output =
      RunProgram(context.binary_dir + "/" + name, arguments, seconds, kMaxOutputBytes, &context.interrupt);
  if (!output.ok()) return output.status();
  if (output->end.exit_code == 0) return std::move(output->out);
  // Each `error: ` line with the lines that go on with it.
  std::vector<std::string> errors;
  for (absl::string_view line : absl::StrSplit(output->err, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "error: ") || !errors.empty()) errors.push_back(std::string(line));
  }
  const std::string text =
      errors.empty() ? absl::StrCat(name, " ", output->end.Text(), ": ", absl::StripAsciiWhitespace(output->err))
                     : absl::StrJoin(errors, "\n");
  return output->end.exit_code == 2 ? absl::InvalidArgumentError(text) : absl::InternalError(text);
}

bool LooksLikeFile(const std::string& argument) {
  std::error_code ignored;
  return absl::StrContains(argument, "/") || absl::EndsWith(argument, ".yaml") || absl::EndsWith(argument, ".yml") ||
         std::filesystem::exists(argument, ignored);
}

}  // namespace tacc::client
