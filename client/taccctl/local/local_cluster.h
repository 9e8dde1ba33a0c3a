// The coordinator and workers of `taccctl submit --local`: children of this process, gone when it is.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_LOCAL_CLUSTER_H_
#define TACC_CLIENT_TACCCTL_LOCAL_LOCAL_CLUSTER_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/local/launch.h"
#include "client/taccctl/session/interrupt.h"

namespace tacc::client {

class LocalCluster {
 public:
  // Starts a coordinator at a Unix socket of this user and a worker on each of the devices, which attach by and by.
  // Children that end are started again; when one ends three times within seconds, or says that its input is bad,
  // `interrupt` is aborted with the reason. Cancelled when it is raised before the coordinator serves. `interrupt` must
  // outlive the cluster.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const LaunchOptions& options, Interrupt* interrupt);

  // Stops and reaps all children: SIGTERM, after ten seconds SIGKILL.
  ~LocalCluster();

  const std::string& address() const { return address_; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Member {
    std::unique_ptr<ChildProcess> process;
    Clock::time_point started;
    int quick_ends = 0;
  };

  LocalCluster(const LaunchOptions& options, Interrupt* interrupt) : options_(options), interrupt_(interrupt) {}
  void Supervise();
  // Member 0 is the coordinator, member i + 1 is worker i.
  absl::Status StartMember(size_t i);
  std::string Name(size_t i) const;
  std::string Log(size_t i) const;
  void Stop(Member* member);

  LaunchOptions options_;
  Interrupt* interrupt_;
  std::string address_;
  std::vector<Member> members_;
  std::atomic<bool> stopping_{false};
  std::thread supervisor_;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_LOCAL_CLUSTER_H_
