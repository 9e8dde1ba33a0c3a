// taccctl workers: the workers that are attached.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

std::string Speed(const v1::DeviceProfile& device) {
  std::string text;
  for (const char* dtype : {"f32", "bf16", "fp8"}) {
    const auto flops = device.matmul_flops_per_second().find(dtype);
    if (flops == device.matmul_flops_per_second().end()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", dtype, " ", FormatCount(flops->second), "FLOP/s");
  }
  return text;
}

// By the fastest backend.
std::string AttentionSpeed(const v1::DeviceProfile& device) {
  double best = 0;
  for (const auto& [backend, flops] : device.attention_flops_per_second()) best = std::max(best, flops);
  return best > 0 ? absl::StrCat(FormatCount(best), "FLOP/s") : "-";
}

int Workers(const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<std::vector<v1::WorkerView>> workers = client.ListWorkers();
  if (!workers.ok()) return Fail(workers.status(), &context);
  std::vector<std::vector<std::string>> rows;
  for (const v1::WorkerView& worker : *workers) {
    if (global.form == OutputForm::kJson) context.out << JsonLine(MessageJson(worker));
    const v1::DeviceProfile& device = worker.device();
    rows.push_back({worker.name(), worker.state(), device.name(), absl::StrCat(device.threads()),
                    FormatBytes(static_cast<double>(device.memory_bytes())), Speed(device), AttentionSpeed(device),
                    worker.advertise(),
                    worker.job().empty() ? "-" : absl::StrCat(worker.job(), " rank ", worker.rank()), device.model()});
  }
  if (global.form == OutputForm::kTable) {
    PrintTable({"WORKER", "STATE", "DEVICE", "THREADS", "MEMORY", "MATMUL", "ATTENTION", "ADDRESS", "RUNS", "MODEL"},
               rows, context.out);
    for (const v1::WorkerView& worker : *workers) {
      if (!worker.trouble().empty()) context.out << worker.name() << ": " << worker.trouble() << "\n";
    }
  }
  return kExitOk;
}

}  // namespace

void AddWorkers(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("workers", "List the workers");
  command->callback([=] { *action = [=](Context& context) { return Workers(*global, context); }; });
}

}  // namespace tacc::client
