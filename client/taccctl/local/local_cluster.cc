#include "client/taccctl/local/local_cluster.h"

#include <signal.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/taccctl/local/socket_address.h"

namespace tacc::client {
namespace {

constexpr auto kLookPeriod = std::chrono::milliseconds(100);
constexpr auto kQuickEnd = std::chrono::seconds(5);
constexpr int kMaxQuickEnds = 3;
constexpr double kStopSeconds = 10;

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const LaunchOptions& options, Interrupt* interrupt) {
  auto cluster = std::unique_ptr<LocalCluster>(new LocalCluster(options, interrupt));
  cluster->members_.resize(options.devices.size() + 1);
  absl::StatusOr<std::string> address = NewSocketAddress(options.directory);
  if (!address.ok()) return address.status();
  cluster->address_ = *std::move(address);
  cluster->options_.interrupt = interrupt;
  for (size_t i = 0; i < cluster->members_.size(); ++i) {
    const absl::Status started = cluster->StartMember(i);
    if (!started.ok()) return started;
  }
  // One that is started again is waited for: it has the job to stop.
  cluster->options_.interrupt = nullptr;
  cluster->supervisor_ = std::thread([raw = cluster.get()] { raw->Supervise(); });
  return cluster;
}

LocalCluster::~LocalCluster() {
  stopping_ = true;
  if (supervisor_.joinable()) supervisor_.join();
  // Workers first: they end their ranks, and the coordinator hears of it. All at once, then each is waited for.
  for (size_t i = 1; i < members_.size(); ++i) {
    if (members_[i].process != nullptr) members_[i].process->Signal(SIGTERM);
  }
  for (size_t i = members_.size(); i-- > 0;) Stop(&members_[i]);
  RemoveSocketFolder(address_);
}

void LocalCluster::Stop(Member* member) {
  if (member->process == nullptr) return;
  member->process->Signal(SIGTERM);
  if (!member->process->WaitForEnd(kStopSeconds).has_value()) {
    member->process->Signal(SIGKILL);
    member->process->WaitForEnd(kStopSeconds);
  }
}

absl::Status LocalCluster::StartMember(size_t i) {
  members_[i].started = Clock::now();
  if (i > 0) {
    absl::StatusOr<std::unique_ptr<ChildProcess>> worker = LaunchWorker(options_, address_, static_cast<int>(i) - 1);
    if (!worker.ok()) return worker.status();
    members_[i].process = *std::move(worker);
    return absl::OkStatus();
  }
  // Started again, it is where the workers look for it.
  absl::StatusOr<LaunchedCoordinator> coordinator = LaunchCoordinator(options_, address_, /*metrics_listen=*/"");
  if (!coordinator.ok()) return coordinator.status();
  members_[i].process = std::move(coordinator->process);
  return absl::OkStatus();
}

std::string LocalCluster::Name(size_t i) const {
  return i == 0 ? "tacc-coordinator" : absl::StrCat("tacc-worker ", options_.worker_prefix, "-", i - 1);
}

std::string LocalCluster::Log(size_t i) const {
  return i == 0 ? CoordinatorLog(options_) : WorkerLog(options_, static_cast<int>(i) - 1);
}

void LocalCluster::Supervise() {
  while (!stopping_) {
    std::this_thread::sleep_for(kLookPeriod);
    for (size_t i = 0; i < members_.size() && !stopping_; ++i) {
      Member& member = members_[i];
      const auto end = member.process->TryReap();
      if (!end.has_value()) continue;
      member.quick_ends = Clock::now() - member.started < kQuickEnd ? member.quick_ends + 1 : 0;
      absl::Status status;
      if (end->exit_code == 2 || member.quick_ends >= kMaxQuickEnds) {
        status = WhyEnded(options_, Name(i), *end, Log(i));
      } else {
        status = StartMember(i);
      }
      if (!status.ok()) {
        interrupt_->Abort(status);
        return;
      }
    }
  }
}

}  // namespace tacc::client
