#include "coordinator/core/membership.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "protocol/attach_protocol.h"

namespace tacc::coordinator {

RankKey KeyOf(const v1::RankId& id) { return {id.job(), id.attempt(), id.rank()}; }

v1::RankId IdOf(const std::string& job, int attempt, int rank) {
  v1::RankId id;
  id.set_job(job);
  id.set_attempt(attempt);
  id.set_rank(rank);
  return id;
}

absl::StatusOr<Membership::Attached> Membership::Attach(double now, uint64_t session,
                                                        const v1::Register& registration) {
  const std::string& name = registration.name();
  if (!protocol::IsWorkerName(name)) {
    return absl::InvalidArgumentError(absl::StrCat("a worker's name has 1 to ", protocol::kMaxWorkerNameBytes,
                                                   " letters, digits, dots, dashes and underscores"));
  }
  const int protocol = std::max(registration.protocol(), 1);
  if (!protocol::CanTalk(protocol, protocol::kAttachProtocol)) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", name, " is version ", registration.version(), " (protocol ", protocol,
                     "), the coordinator is version ", version_, " (protocol ", protocol::kAttachProtocol,
                     "): they have none in common; upgrade by one protocol at a time, or run the same version on all "
                     "machines"));
  }
  if (registration.instance().empty())
    return absl::InvalidArgumentError(absl::StrCat("worker ", name, ": no instance"));
  if (registration.device().kind().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", name, ": no device profile"));
  }
  auto [it, inserted] = workers_.try_emplace(name);
  Worker& worker = it->second;
  Attached attached;
  if (!inserted && worker.Attached()) {
    if (worker.instance != registration.instance()) {
      return absl::AlreadyExistsError(
          absl::StrCat("worker ", name,
                       " is attached already, by another daemon; give this one another --name "
                       "or stop the other"));
    }
    attached.replaced_session = worker.session;
  }
  attached.new_instance = worker.instance != registration.instance();
  worker.name = name;
  worker.instance = registration.instance();
  worker.device = registration.device();
  worker.trouble = registration.device_trouble();
  worker.version = registration.version();
  worker.outdated.clear();
  if (worker.version != version_) {
    worker.outdated = absl::StrCat("of version ", worker.version, ", the coordinator of ", version_,
                                   ": what runs there goes on, nothing is started there before both are the same");
  }
  worker.advertise = registration.advertise();
  worker.session = session;
  worker.last_heard = now;
  worker.held.clear();
  for (const v1::HeldRank& held : registration.ranks()) {
    if (held.running()) worker.held.insert(KeyOf(held.id()));
  }
  attached.worker = &worker;
  attached.protocol = std::min(protocol, protocol::kAttachProtocol);
  return attached;
}

void Membership::Detach(uint64_t session) {
  if (Worker* worker = BySession(session)) worker->session = 0;
}

Worker* Membership::Expect(double now, const std::string& name) {
  auto [it, inserted] = workers_.try_emplace(name);
  if (inserted) {
    it->second.name = name;
    it->second.last_heard = now;
  }
  return &it->second;
}

Worker* Membership::BySession(uint64_t session) {
  if (session == 0) return nullptr;
  for (auto& [name, worker] : workers_) {
    if (worker.session == session) return &worker;
  }
  return nullptr;
}

Worker* Membership::ByName(const std::string& name) {
  auto it = workers_.find(name);
  return it == workers_.end() ? nullptr : &it->second;
}

std::vector<Worker> Membership::Expire(double now) {
  std::vector<Worker> expired;
  for (auto it = workers_.begin(); it != workers_.end();) {
    if (now - it->second.last_heard > lease_seconds_) {
      expired.push_back(it->second);
      it = workers_.erase(it);
    } else {
      ++it;
    }
  }
  return expired;
}

}  // namespace tacc::coordinator
