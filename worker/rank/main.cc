// tacc-rank: one rank of one attempt of a job, or the probe of this machine.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "confinement/flags.h"
#include "failpoint/failpoint.h"
#include "graph/ops/op.h"
#include "graph/verify/verify.h"
#include "machine/clock.h"
#include "machine/device_name.h"
#include "machine/exit_code.h"
#include "nlohmann/json.hpp"
#include "worker/rank/device/host_device.h"
#include "worker/rank/gpu/gpu_module.h"
#include "worker/rank/program/cpu_kernels.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/protocol/start_file.h"
#include "worker/rank/reference/reference_kernels.h"
#include "worker/rank/run/run.h"
#include "worker/rank/torch/c10_allocator.h"
#include "worker/rank/torch/op_libraries.h"
#include "worker/rank/torch/runtime.h"

namespace {

constexpr char kVersion[] = TACC_VERSION;

std::string CheckDevice(const std::string& device) {
  return tacc::IsDevice(device) ? "" : device + ": not a device; write " + tacc::kDeviceNames;
}

// A JSON list: the CPU, then the GPUs.
std::string ListAllDevices() {
  const std::string cpu = tacc::worker::ListDevices();
  if (!tacc::worker::HasGpuDriver()) return cpu;
  absl::StatusOr<tacc::worker::GpuModule*> module = tacc::worker::LoadGpuModule();
  const std::string gpus = module.ok() ? (*module)->List() : "[]";
  return gpus == "[]" ? cpu : cpu.substr(0, cpu.size() - 1) + "," + gpus.substr(1);
}

// --look, --probe of a GPU.
absl::StatusOr<std::string> AskGpu(const std::string& question, int ordinal) {
  absl::StatusOr<tacc::worker::GpuModule*> module = tacc::worker::LoadGpuModule();
  if (!module.ok()) return module.status();
  return question == "--look" ? (*module)->Look(ordinal) : (*module)->Probe(ordinal);
}

// --devices, --look, --probe: prints what they ask for and returns the exit code.
int AnswerAboutDevices(const std::string& question, const std::string& device, int threads) {
  if (question == "--devices") {
    std::cout << ListAllDevices() << std::endl;
    return tacc::kExitOk;
  }
  if (tacc::IsGpu(device)) {
    const absl::StatusOr<std::string> answer = AskGpu(question, tacc::GpuOrdinal(device));
    if (answer.ok()) {
      std::cout << *answer << std::endl;
      return tacc::kExitOk;
    }
    std::cerr << "error: " << answer.status().message() << "\n";
    const bool cannot_be = absl::IsNotFound(answer.status()) || absl::IsFailedPrecondition(answer.status());
    return cannot_be ? tacc::kExitBadInput : tacc::kExitError;
  }
  if (question == "--look") {
    std::cerr << "error: --look is of GPUs; give --device cuda:N\n";
    return tacc::kExitBadInput;
  }
  const std::string cpu = tacc::worker::ProbeDevice(threads, &tacc::SteadySeconds);
  std::cout << (device == "reference" ? tacc::worker::ProbeReference(cpu, &tacc::SteadySeconds) : cpu) << std::endl;
  return tacc::kExitOk;
}

// --operators: as the above.
int AnswerAboutOperators(const std::vector<std::string>& op_libraries) {
  const absl::StatusOr<std::vector<std::string>> operators = tacc::worker::OperatorsOf(op_libraries);
  if (!operators.ok()) {
    std::cerr << "error: " << operators.status().message() << "\n";
    return tacc::kExitBadInput;
  }
  std::cout << nlohmann::json(*operators).dump() << std::endl;
  return tacc::kExitOk;
}

struct CommandLine {
  bool probe = false, look = false, devices = false, operators = false;
  std::string device = "cpu";  // to probe or to look at
  int threads = 1;
  bool no_gap_trace = false;
  tacc::ConfinementFlags confinement;
  tacc::worker::RunOptions run;
};

// The options, which write to `line` when `app` parses.
void AddOptions(CLI::App& app, CommandLine& line) {
  app.set_version_flag("--version", std::string("tacc-rank ") + kVersion);
  CLI::Option* start = app.add_option("--start", line.run.start_file, "Start file of the rank (docs/contracts.md)");
  CLI::Option* probe_flag =
      app.add_flag("--probe", line.probe, "Measure a device, print one JSON object and end")->excludes(start);
  CLI::Option* look_flag =
      app.add_flag("--look", line.look, "Look at a GPU without measuring, print one JSON object and end")
          ->excludes(start)
          ->excludes(probe_flag);
  app.add_flag("--devices", line.devices, "List this machine's devices, print one JSON list and end")
      ->excludes(start)
      ->excludes(probe_flag)
      ->excludes(look_flag);
  app.add_flag("--operators", line.operators,
               "Load the libraries of --op-library, print the operators that they add as one JSON list and end")
      ->excludes(start)
      ->excludes(probe_flag)
      ->excludes(look_flag);
  app.add_option("--op-library", line.run.op_libraries,
                 "Library with operators for LibTorch, which a program that has such is computed with; or several")
      ->allow_extra_args(false);
  app.add_option("--device", line.device, std::string("Device to probe or to look at: ") + tacc::kDeviceNames)
      ->check(CheckDevice)
      ->excludes(start);
  app.add_option("--threads", line.threads, "Threads to probe with")->check(CLI::Range(1, 4096))->excludes(start);
  app.add_option("--status-shm", line.run.status_shm, "Name of the shared memory that shows where the rank is")
      ->needs(start);
  app.add_option("--profile", line.run.profile_path, "Write the seconds spent by op and module to this file at the end")
      ->needs(start);
  app.add_option("--trace", line.run.trace_path,
                 "Write a trace of the third step of this start, of all ranks, to this file (docs/tracing.md)")
      ->needs(start);
  app.add_flag("--no-gap-trace", line.no_gap_trace,
               "Do not trace when a GPU works, and leave device_idle_share out: CUPTI, which traces, may stand in the "
               "way of tools that profile or check the process")
      ->needs(start);
  line.confinement.AddTo(&app);
  app.add_option("--attention", line.run.attention,
                 "Compute attention by this backend where it works, on a GPU: to measure it (all ranks alike)")
      ->check(CLI::IsMember({"tiles", "tensor", "flash", "cudnn"}))
      ->needs(start);
}

// The module's GPU with what the job asks of it.
absl::StatusOr<std::unique_ptr<tacc::worker::Device>> OpenGpu(int ordinal, const tacc::worker::StartFile& start) {
  absl::StatusOr<tacc::worker::GpuModule*> module = tacc::worker::LoadGpuModule();
  if (!module.ok()) return module.status();
  using Gpu = tacc::worker::GpuOptions;
  return (*module)->Open(ordinal,
                         {start.tf32 ? Gpu::Tf32::kOn : Gpu::Tf32::kOff,
                          start.deterministic ? Gpu::Determinism::kRequired : Gpu::Determinism::kAny, start.products});
}

absl::StatusOr<tacc::worker::RankTalk> ChooseTalk(const tacc::worker::RankTalkOptions& talk) {
  absl::StatusOr<tacc::worker::GpuModule*> module = tacc::worker::LoadGpuModule();
  if (!module.ok()) return module.status();
  return (*module)->ChooseTalk(talk);
}

// Before a thread starts. The start file, and the program beside it, can be read all the same.
absl::Status Confine(CommandLine& line) {
  absl::StatusOr<tacc::Confinement> confinement = line.confinement.Read();
  if (!confinement.ok()) return confinement.status();
  const tacc::AllowedPaths& given = confinement->paths;
  if (given.IsLimited()) {
    std::vector<std::string> readable = given.read_roots();
    if (!line.run.start_file.empty())
      readable.push_back(std::filesystem::absolute(line.run.start_file).parent_path().string());
    confinement->paths = tacc::AllowedPaths(given.roots(), std::move(readable));
  }
  line.run.paths = confinement->paths;
  confinement->libraries = line.run.op_libraries;
  return tacc::ConfineProcess(*confinement);
}

// Runs the rank of the start file, and ends the process with its exit code; returns the code of an error before that.
// `options` hold what the command line says.
int Run(tacc::worker::RunOptions options, tacc::worker::WorkspaceAllocator& allocator) {
  const absl::StatusOr<std::unique_ptr<tacc::Failpoints>> failpoints = tacc::Failpoints::FromEnvironment();
  if (!failpoints.ok()) {
    std::cerr << "error: " << failpoints.status().message() << "\n";
    return tacc::kExitBadInput;
  }
  const tacc::graph::OpTable ops;
  options.version = kVersion;
  options.ops = &ops;
  options.aliases = [&ops](const tacc::graph::Graph& graph, const tacc::graph::Node& node) {
    const tacc::graph::OpDef* op = ops.Find(node.op);
    return op != nullptr && op->aliases ? op->aliases(tacc::graph::CallOf(graph, node)) : std::vector<int>();
  };
  options.verify = [&ops](const tacc::graph::Program& program) { return tacc::graph::Verify(program, ops); };
  options.workspace = &allocator;
  options.failpoints = failpoints->get();
  const tacc::worker::CpuKernelTable kernels;
  tacc::worker::HostDevice host(&kernels,
                                [&allocator](absl::Span<char> workspace) { allocator.SetWorkspace(workspace); });
  const tacc::worker::ReferenceKernels reference_kernels;
  tacc::worker::HostDevice reference(&reference_kernels);
  std::unique_ptr<tacc::worker::Device> gpu;
  options.open_device = [&](const tacc::worker::StartFile& start) -> absl::StatusOr<tacc::worker::Device*> {
    const int ordinal = tacc::GpuOrdinal(start.device);
    if (ordinal < 0) return start.device == "reference" ? &reference : &host;
    absl::StatusOr<std::unique_ptr<tacc::worker::Device>> opened = OpenGpu(ordinal, start);
    if (!opened.ok()) return opened.status();
    gpu = *std::move(opened);
    return gpu.get();
  };
  options.choose_talk = ChooseTalk;
  const int code = tacc::worker::RunRank(options);
  std::fflush(nullptr);
  // Threads of libraries and the command reader are still there: no destructors.
  _exit(code);
}

}  // namespace

int main(int argc, char** argv) {
  // Before LibTorch allocates anything; lives until the process ends.
  static tacc::worker::WorkspaceAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file over its size limit is an error of write, as a full disk.

  CLI::App app("Runs one rank of a tacc job. Started by tacc-worker.", "tacc-rank");
  CommandLine line;
  AddOptions(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? tacc::kExitOk : tacc::kExitBadInput;
  }
  if (const absl::Status status = Confine(line); !status.ok()) {
    std::cerr << "error: " << status.message() << "\n";
    return tacc::kExitError;
  }
  if (line.probe || line.look || line.devices) {
    return AnswerAboutDevices(line.probe ? "--probe" : line.look ? "--look" : "--devices", line.device, line.threads);
  }
  if (line.operators) return AnswerAboutOperators(line.run.op_libraries);
  if (line.run.start_file.empty()) {
    std::cerr << "error: tacc-rank needs --start FILE, --probe, --look, --devices or --operators\n";
    return tacc::kExitBadInput;
  }
  line.run.traces_gaps = !line.no_gap_trace;
  return Run(std::move(line.run), allocator);
}
