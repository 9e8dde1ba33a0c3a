// A cluster file (YAML): the machine and how many of them, for a plan without workers.
#ifndef TACC_JOBFILE_CLUSTER_FILE_H_
#define TACC_JOBFILE_CLUSTER_FILE_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "jobfile/yaml_tree.h"

namespace tacc::jobfile {

// Fields and machines that tacc-plan knows (`tacc-plan machines`).
struct KnownMachines {
  std::vector<std::string> machines;
  std::vector<std::string> fields;
};

struct ClusterFile {
  // `cluster` of tacc-plan's request.
  nlohmann::json cluster;
  std::string file;
  // Of each field's value.
  std::map<std::string, Place> places;

  // What tacc-plan says of the cluster ("cluster: FIELD ..."), with the place of FIELD in the file; other messages as
  // they are.
  std::string Locate(const std::string& message) const;
};

// Errors: InvalidArgument, one line for each thing that is wrong, `FILE:LINE:COLUMN: what, and what to do`. Unknown
// names come with the nearest known one; values are for tacc-plan to check.
absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text, const std::string& file,
                                             const KnownMachines& known);
absl::StatusOr<ClusterFile> LoadClusterFile(const std::string& path, const KnownMachines& known);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_CLUSTER_FILE_H_
