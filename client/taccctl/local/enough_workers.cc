#include "client/taccctl/local/enough_workers.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/taccctl/local/devices.h"
#include "client/taccctl/session/up_state.h"
#include "machine/tacc_python.h"
#include "machine/unix_socket.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

// Whether a job in this phase may be waiting for workers.
bool MayWait(v1::Phase phase) {
  return phase == v1::PHASE_UNSPECIFIED || phase == v1::PHASE_SUBMITTED || phase == v1::PHASE_COMPILING ||
         phase == v1::PHASE_WAITING;
}

// Those that a job can get: all of one kind, of the kind that there are most of, GPUs first.
struct Usable {
  std::string kind = kCpuDevice;
  int count = 0;
};
Usable MostOfOneKind(const std::vector<v1::WorkerView>& workers) {
  std::map<std::string, int> counts;
  for (const v1::WorkerView& worker : workers) {
    if (worker.state() == "idle" || worker.state() == "busy") ++counts[worker.device().kind()];
  }
  Usable most;
  for (const auto& [kind, count] : counts) {
    if (count > most.count || (count == most.count && kind == kCudaDevice)) most = {kind, count};
  }
  return most;
}

// Of a worker: what it sends the coordinator is not encrypted, or what its ranks send those of other machines.
bool NeedsInsecure(const Endpoint& coordinator) {
  if (IsUnixAddress(coordinator.address)) return false;
  const std::string host = coordinator.address.substr(0, coordinator.address.rfind(':'));
  const bool is_loopback = host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
  return coordinator.tls.folder.empty() || !is_loopback;
}

std::string OneMoreWorker(const Endpoint& coordinator, const std::string& kind, const Context& context) {
  const bool on_gpu = kind == kCudaDevice;
  return absl::StrCat(
      ShellWord(context.binary_dir + "/tacc-worker"), " --coordinator ", ShellWord(coordinator.address),
      coordinator.tls.folder.empty() ? "" : " --tls-dir FOLDER_OF_A_WORKER",
      coordinator.tls.server_name.empty() ? ""
                                          : absl::StrCat(" --tls-server-name ", ShellWord(coordinator.tls.server_name)),
      NeedsInsecure(coordinator) ? " --insecure" : "", on_gpu ? " --device cuda:N" : "",
      coordinator.tls.folder.empty() ? " --name extra-1" : "", ": starts one more",
      on_gpu ? ", on GPU N of this machine" : "", coordinator.tls.folder.empty() ? "; the next as extra-2" : "");
}

}  // namespace

std::string HowToHaveEnoughWorkers(const v1::Job& job, const GlobalOptions& global, CoordinatorClient* client,
                                   const Context& context) {
  if (!MayWait(job.phase())) return "";
  const absl::StatusOr<std::vector<v1::WorkerView>> workers = client->ListWorkers();
  if (!workers.ok()) return "";
  const Usable usable = MostOfOneKind(*workers);
  const int wanted = job.plan().world() > 0 ? job.plan().world() : std::max(1, RequestedWorld(job.spec()));
  if (usable.count >= wanted) return "";
  const std::string program = ShellWord(context.program);
  const absl::StatusOr<UpState> up = ReadUpState(UpDirectory(context));
  const bool is_up = up.ok() && up->address == client->endpoint().address;
  std::string text =
      absl::StrCat(job.id(), " wants ", wanted, wanted == 1 ? " worker, " : " workers of one kind, ", usable.count,
                   usable.count == 1 ? " is" : " are", " there, so it waits. To have as many:\n");
  if (is_up && !EndedProcesses(*up).empty())
    absl::StrAppend(&text, "  ", program, " up: starts again those of its that have ended\n");
  absl::StrAppend(&text, "  ", OneMoreWorker(client->endpoint(), usable.kind, context),
                  "\nOr cancel it and do without:\n  ", program,
                  " submit --local JOB.YAML: trains here, with as many as it wants\n");
  if (is_up) {
    absl::StrAppend(&text, "  ", program, " down; ", program, " up --workers ", wanted,
                    ": a service that has as many; then submit again\n");
  }
  if (usable.count > 0) {
    absl::StrAppend(&text, "  ", CommandStart(global, context),
                    " submit JOB.YAML --set resources.workers=", usable.count,
                    ": with sizes under dist that multiply to ", usable.count, "\n");
  }
  return text;
}

}  // namespace tacc::client
