// The workers: who is attached, whose lease runs, and what each holds.
#ifndef TACC_COORDINATOR_CORE_MEMBERSHIP_H_
#define TACC_COORDINATOR_CORE_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// (job, attempt, rank), ordered.
using RankKey = std::tuple<std::string, int, int>;
RankKey KeyOf(const v1::RankId& id);
v1::RankId IdOf(const std::string& job, int attempt, int rank);

struct Worker {
  std::string name;
  std::string instance;  // Empty: known from the log only, not seen since the coordinator started.
  v1::DeviceProfile device;
  std::string trouble;  // Why no rank can run on the device now; empty: ranks can.
  std::string version;
  std::string outdated;  // Why no rank is started here: it is of another release than the coordinator.
  std::string advertise;
  uint64_t session = 0;           // 0: no stream now.
  double last_heard = 0;          // As all times here: seconds of the core's clock.
  std::set<RankKey> held;         // Ranks whose processes it has not reaped.
  std::set<std::string> fetches;  // Jobs whose upload it was told to fetch; some may have ended.
  std::string reserved;           // Job whose paths it checks, or whose attempt has a rank here.

  bool Attached() const { return session != 0; }
  bool Usable() const { return Attached() && trouble.empty() && outdated.empty(); }
  bool Free() const { return Usable() && reserved.empty() && held.empty(); }
};

class Membership {
 public:
  Membership(double lease_seconds, std::string version) : lease_seconds_(lease_seconds), version_(std::move(version)) {}

  struct Attached {
    Worker* worker = nullptr;
    uint64_t replaced_session = 0;  // A stream of the same daemon that this one replaces; 0: none.
    bool new_instance = false;      // Another process than before, or the first.
    int protocol = 0;               // That both speak.
  };
  // InvalidArgument: a bad registration. FailedPrecondition: no protocol in common. AlreadyExists: another live daemon
  // has the name.
  absl::StatusOr<Attached> Attach(double now, uint64_t session, const v1::Register& registration);
  void Detach(uint64_t session);
  // A worker that the log names; it gets one full lease from `now`.
  Worker* Expect(double now, const std::string& name);

  Worker* BySession(uint64_t session);
  Worker* ByName(const std::string& name);
  // Removes those whose lease is over and returns them.
  std::vector<Worker> Expire(double now);
  // Forgets the worker.
  void Remove(const std::string& name) { workers_.erase(name); }

  // Of this coordinator.
  const std::string& version() const { return version_; }

  // By name.
  std::map<std::string, Worker>& workers() { return workers_; }
  const std::map<std::string, Worker>& workers() const { return workers_; }

 private:
  const double lease_seconds_;
  const std::string version_;
  std::map<std::string, Worker> workers_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_MEMBERSHIP_H_
