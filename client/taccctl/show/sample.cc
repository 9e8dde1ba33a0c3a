#include "client/taccctl/show/sample.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/taccctl/local/process.h"
#include "client/taccctl/show/table.h"
#include "machine/tacc_python.h"

namespace tacc::client {
namespace {

constexpr double kSampleSeconds = 60;
constexpr size_t kMaxSampleBytes = 1 << 16;

bool Exists(const std::string& path) {
  std::error_code unseen;
  return std::filesystem::exists(path, unseen);
}

std::string Python(const Context& context) {
  if (const std::string named = context.Variable("TACC_PYTHON"); !named.empty()) return named;
  const std::string found = FindTaccPython(context.binary_dir);
  return found.empty() ? "python3" : found;
}

}  // namespace

void ShowSample(const v1::Job& job, Context* context) {
  const std::string page = job.checkpoint_dir() + "/report.html";
  const std::string& model = job.exported_path();
  if (!context->err_is_terminal || model.empty() || !Exists(page) || !Exists(model + "/tokenizer.json")) return;
  context->err << "a sample of its text is being made (at most a minute)" << std::endl;
  // `nice` looks for the program on PATH.
  const absl::StatusOr<ProgramResult> sample =
      RunProgram("/usr/bin/nice", {"-n", "19", Python(*context), "-m", "tacc", "sample", model, "--report", page},
                 kSampleSeconds, kMaxSampleBytes, &context->interrupt);
  if (!sample.ok() || sample->end.exit_code != 0) {
    context->err << "no sample; the page says how to make one" << std::endl;
    return;
  }
  context->err << "\n" << Printable(sample->out) << std::endl;
}

}  // namespace tacc::client
