// What tacc-worker is told on its command line.
#ifndef TACC_WORKER_DAEMON_FLAGS_H_
#define TACC_WORKER_DAEMON_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "confinement/cgroup.h"
#include "identity/credentials.h"
#include "machine/machine.h"

namespace tacc::worker {

struct Flags {
  std::string coordinator = "127.0.0.1:7070";
  std::string device = "cpu";
  int threads = 0;
  std::string memory;
  std::string memory_reserve;
  std::string max_uploads;
  int64_t gpu_reserve_bytes = kGpuReserveBytes;
  std::string advertise;
  std::string state_dir;
  std::string metrics_listen;
  std::string name;
  std::vector<std::string> allow_paths;
  std::string rank_user;
  std::vector<std::string> op_libraries;
  std::string rank_memory;
  CgroupLimits rank_limits;  // With what rank_memory says, once it was read.
  identity::Tls tls;
  bool insecure = false;
  int parent_fd = -1;
  int take_over_fd = -1;
  bool checks_take_over = false;
};

// Has `app` read them into `flags`, which must outlive it.
void AddFlags(CLI::App* app, Flags* flags);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_FLAGS_H_
