// tacc-gpu-collectives: one rank of a check of the talk between GPUs, for scripts/gpu_check. It takes part as a rank of
// a job does: its GPU and the talk are those of libtacc_cuda.so. On a CPU it checks the talk between ranks on CPUs.
//
// Rank 0 of several writes the event `listening`, the others wait for the command `rendezvous`, as tacc-rank's
// (docs/contracts.md). Rank 0 writes an event `check` for each kind of call, with "sums" and, where it is wrong on any
// rank, "error"; then `finished`. What is wrong on a rank is on its stderr too.
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "graph/ir/status_macros.h"
#include "machine/device_name.h"
#include "worker/rank/collectives/agreement.h"
#include "worker/rank/cuda/collectives/check_collectives.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/gpu/gpu_module.h"
#include "worker/rank/protocol/commands.h"
#include "worker/rank/protocol/events.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/protocol/start_file.h"
#include "worker/rank/torch/gloo_transport.h"

namespace tacc::worker {
namespace {

constexpr char kAddress[] = "127.0.0.1";

struct Options {
  int rank = 0, world = 1;
  std::string device = "cuda:0";
  int timeout_seconds = 60;
  bool one_gpu = false;
};

class NoKernels : public KernelTable {
  absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override { return absl::UnimplementedError("no kernels"); }
};

absl::StatusOr<std::unique_ptr<Transport>> Meet(const Options& options, EventWriter& events,
                                                std::unique_ptr<RendezvousServer>& server) {
  CommandReader commands(STDIN_FILENO, &events, [] { _exit(tacc::kExitError); });
  GlooOptions gloo;
  gloo.rank = options.rank;
  gloo.world = options.world;
  gloo.advertise = kAddress;
  gloo.timeout = absl::Seconds(options.timeout_seconds);
  if (options.rank == 0) {
    TACC_ASSIGN_OR_RETURN(server, RendezvousServer::Start({kAddress, "", options.world, gloo.timeout}));
    gloo.store = server->endpoint();
    events.Write(protocol::ListeningEvent{.port = gloo.store.port, .secret = gloo.store.secret});
  } else {
    gloo.store = commands.WaitForRendezvous();
  }
  return ConnectGloo(gloo);
}

absl::Status Check(const Options& options, const std::string& sums, Device& device, CollectiveQueue& queue,
                   Collectives& host, EventWriter& events) {
  TACC_ASSIGN_OR_RETURN(std::vector<CollectiveOutcome> mine,
                        CheckCollectives({&device, &queue, options.rank, options.world}));
  TACC_ASSIGN_OR_RETURN(const std::vector<CollectiveOutcome> outcomes, AgreeOnOutcomes(host, std::move(mine)));
  for (const CollectiveOutcome& outcome : outcomes) {
    if (!outcome.error.empty()) std::cerr << outcome.name << ": " << outcome.error << std::endl;
    nlohmann::json fields = {{"check", outcome.name}, {"sums", sums}};
    if (!outcome.error.empty()) fields["error"] = outcome.error;
    if (options.rank == 0) events.Write("check", std::move(fields));
  }
  return absl::OkStatus();
}

absl::Status CheckGpu(const Options& options, Collectives& host, EventWriter& events) {
  TACC_ASSIGN_OR_RETURN(GpuModule* const module, LoadGpuModule());
  absl::StatusOr<std::unique_ptr<Device>> device = module->Open(GpuOrdinal(options.device), {});
  TACC_RETURN_IF_ERROR(AgreeOnStatus(host, device.status()));
  for (const bool is_in_order : {false, true}) {
    RankTalkOptions talk_options;
    talk_options.host = &host;
    talk_options.timeout = absl::Seconds(options.timeout_seconds);
    talk_options.deterministic = is_in_order;
    talk_options.may_share_gpu = options.one_gpu;
    TACC_ASSIGN_OR_RETURN(const RankTalk talk, module->ChooseTalk(talk_options));
    if (!talk.detour.empty()) return absl::FailedPreconditionError(talk.detour);
    TACC_RETURN_IF_ERROR(Check(options, is_in_order ? "in order" : "by NCCL", **device, *talk.queue, host, events));
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options, EventWriter& events) {
  std::unique_ptr<RendezvousServer> server;
  std::unique_ptr<Transport> transport;
  Collectives host(options.rank, options.world);
  if (options.world > 1) {
    TACC_ASSIGN_OR_RETURN(transport, Meet(options, events, server));
    host.Connect(transport.get());
  }
  if (GpuOrdinal(options.device) >= 0) {
    TACC_RETURN_IF_ERROR(CheckGpu(options, host, events));
  } else {
    const NoKernels kernels;
    HostDevice cpu(&kernels);
    TACC_RETURN_IF_ERROR(Check(options, "on the host", cpu, host, host, events));
  }
  // Rank 0's server serves the others to their end.
  return host.Barrier();
}

std::string CheckDevice(const std::string& device) {
  return IsDevice(device) ? "" : device + ": not a device; write " + kDeviceNames;
}

}  // namespace
}  // namespace tacc::worker

int main(int argc, char** argv) {
  using namespace tacc::worker;  // NOLINT
  signal(SIGPIPE, SIG_IGN);
  CLI::App app("One rank of a check of the talk between GPUs, for scripts/gpu_check.", "tacc-gpu-collectives");
  Options options;
  app.add_option("--rank", options.rank, "Of --world")->check(CLI::NonNegativeNumber);
  app.add_option("--world", options.world, "Ranks; each has a GPU of its own")->check(CLI::Range(1, 64));
  app.add_flag("--one-gpu", options.one_gpu, "Ranks may share a GPU, each with a NCCL_HOSTID of its own");
  app.add_option("--device", options.device, "cuda:N or cpu")->check(CheckDevice);
  app.add_option("--timeout", options.timeout_seconds, "Seconds in which ranks must answer")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (options.rank >= options.world) {
    std::cerr << "error: --rank " << options.rank << ": from 0 to " << options.world - 1 << ", less than --world\n";
    return tacc::kExitBadInput;
  }
  EventWriter events(STDOUT_FILENO);
  const absl::Status status = Run(options, events);
  if (!status.ok()) {
    events.Failed("collectives", std::string(status.message()));
    std::cerr << "error: " << status.message() << std::endl;
  } else if (options.rank == 0) {
    events.Write(tacc::protocol::FinishedEvent());
  }
  // The command reader's thread and NCCL's are still there: no destructors.
  _exit(status.ok() ? tacc::kExitOk : tacc::kExitError);
}
