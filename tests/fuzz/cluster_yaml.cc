// A cluster file, and its fields as the planner takes them.
#include "graph/planner/cost/cluster.h"
#include "jobfile/cluster_file.h"
#include "tests/fuzz/input.h"

namespace {

tacc::jobfile::KnownMachines Known() {
  tacc::jobfile::KnownMachines known{tacc::graph::MachineNames(), {}};
  for (const tacc::graph::MachineConstant& constant : tacc::graph::MachineConstants())
    known.fields.emplace_back(constant.name);
  return known;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tacc::jobfile::KnownMachines known = Known();
  const auto file = tacc::jobfile::ParseClusterFile(std::string(tacc::fuzz::TextOf(data, size)), "cluster.yaml", known);
  if (!file.ok()) return 0;
  const auto cluster = tacc::graph::ParseCluster(file->cluster.dump());
  if (!cluster.ok()) (void)file->Locate(std::string(cluster.status().message()));
  return 0;
}
