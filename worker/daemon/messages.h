// Converts between the daemon's own types and the messages of worker.proto.
#ifndef TACC_WORKER_DAEMON_MESSAGES_H_
#define TACC_WORKER_DAEMON_MESSAGES_H_

#include <string>

#include "tacc/v1/worker.pb.h"
#include "worker/daemon/host/rank_host.h"
#include "worker/daemon/supervision/rank_key.h"
#include "worker/daemon/supervision/report_buffer.h"

namespace tacc::worker {

// Of one run of a daemon, another text in each.
std::string NewInstance();
RankKey FromRankId(const v1::RankId& id);
v1::RankId ToRankId(const RankKey& key);
v1::RankReport ToRankReport(const Report& report);
v1::RankSample ToRankSample(const RankKey& key, const RankHost::Sample& sample);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_MESSAGES_H_
