#ifndef TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_
#define TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_

#include <string>

namespace tacc::worker {

// Where a server of this attempt listens.
struct Endpoint {
  std::string host;
  int port = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_ENDPOINT_H_
