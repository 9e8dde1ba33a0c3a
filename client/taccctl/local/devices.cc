#include "client/taccctl/local/devices.h"

#include <filesystem>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/taccctl/local/process.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

// CUDA starts on each GPU.
constexpr double kListSeconds = 60;
constexpr size_t kMaxListBytes = 1 << 20;

std::string HasGpus(const std::vector<std::string>& gpus) {
  if (gpus.empty()) return "this machine has no GPU that tacc can use";
  return absl::StrCat("this machine has ", gpus.size(), gpus.size() == 1 ? " GPU (" : " GPUs (",
                      absl::StrJoin(gpus, ", "), ")");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListGpus(const Context& context) {
  std::error_code ignored;
  if (!std::filesystem::exists(context.binary_dir + "/libtacc_cuda.so", ignored)) return std::vector<std::string>();
  const absl::StatusOr<ProgramResult> output =
      RunProgram(context.binary_dir + "/tacc-rank", {"--devices"}, kListSeconds, kMaxListBytes, &context.interrupt);
  if (!output.ok()) return output.status();
  const nlohmann::json listed = ParseJson(output->out);
  if (output->end.exit_code != 0 || !listed.is_array()) {
    return absl::InternalError(absl::StrCat("tacc-rank --devices ", output->end.Text(),
                                            " and listed no devices: ", absl::StripAsciiWhitespace(output->err)));
  }
  std::vector<std::string> gpus;
  for (const nlohmann::json& device : listed) {
    if (!device.is_object() || device.value("kind", nlohmann::json()) != kCudaDevice) continue;
    if (device.contains("name") && device["name"].is_string()) gpus.push_back(device["name"].get<std::string>());
  }
  return gpus;
}

absl::StatusOr<std::vector<std::string>> ChooseDevices(const std::string& device, int num_workers, int num_cpu_workers,
                                                       const Context& context) {
  const std::vector<std::string> cpus(num_workers > 0 ? num_workers : num_cpu_workers, kCpuDevice);
  if (device == kCpuDevice) return cpus;
  absl::StatusOr<std::vector<std::string>> gpus = ListGpus(context);
  if (!gpus.ok()) {
    if (device == kCudaDevice || absl::IsCancelled(gpus.status())) return gpus.status();
    context.err << "warning: " << std::string(gpus.status().message()) << "; going on with CPUs" << std::endl;
    return cpus;
  }
  const size_t wanted = num_workers > 0 ? num_workers : gpus->size();
  if (!gpus->empty() && wanted <= gpus->size()) {
    gpus->resize(wanted);
    return gpus;
  }
  if (device == kCudaDevice) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--device cuda: ", HasGpus(*gpus), ", and ", wanted == 0 ? "at least 1 is" : absl::StrCat(wanted, " are"),
        " wanted; `tacc-rank --devices` lists what there is; use --device cpu",
        gpus->empty() ? "" : absl::StrCat(", or ask for at most ", gpus->size())));
  }
  if (!gpus->empty()) {
    context.err << "warning: " << HasGpus(*gpus) << ", and " << wanted
                << " workers are wanted; they run on CPUs: ask for at most " << gpus->size() << " to use GPUs"
                << std::endl;
  }
  return cpus;
}

}  // namespace tacc::client
