#ifndef TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_
#define TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_

#include <string>

namespace tacc::worker {

// Where the ranks of this attempt find one another.
struct Endpoint {
  std::string host;
  int port = 0;
  std::string file;    // In place of host and port, for ranks of one machine.
  std::string secret;  // In the names of what they put there.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_
