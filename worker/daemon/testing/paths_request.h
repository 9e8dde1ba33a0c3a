// For tests: questions about the folder of a job, and what the answers complain of.
#ifndef TACC_WORKER_DAEMON_TESTING_PATHS_REQUEST_H_
#define TACC_WORKER_DAEMON_TESTING_PATHS_REQUEST_H_

#include <string>
#include <vector>

#include "tacc/v1/worker.pb.h"

namespace tacc::worker {

inline constexpr char kOwner[] = R"({"job":"quickstart-2","name":"quickstart"})";

// The question, numbered 5, that a job of owner kOwner asks of its checkpoint.dir.
inline v1::CheckPaths PathsRequest(const std::string& directory, v1::CheckPathsMode mode) {
  v1::CheckPaths request;
  request.set_request(5);
  request.set_checkpoint_dir(directory);
  request.set_owner(kOwner);
  request.set_mode(mode);
  return request;
}

inline std::vector<std::string> ProblemMessages(const v1::CheckPathsResult& result) {
  std::vector<std::string> messages;
  for (const v1::PathProblem& problem : result.problems()) messages.push_back(problem.message());
  return messages;
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_TESTING_PATHS_REQUEST_H_
