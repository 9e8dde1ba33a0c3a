// A plan as fields of a job file.
#ifndef TACC_CLIENT_TACCCTL_SHOW_SETTINGS_YAML_H_
#define TACC_CLIENT_TACCCTL_SHOW_SETTINGS_YAML_H_

#include <string>

#include "nlohmann/json.hpp"
#include "tacc/v1/job.pb.h"

namespace tacc::client {

// The sections of `spec` with `settings` (docs/contracts.md, a candidate's) over them, as YAML to put into its job file
// in place of its own: resources, dist, memory, compute whole, of train the fields that settings have.
std::string SettingsYaml(const nlohmann::ordered_json& settings, const v1::JobSpec& spec);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_SETTINGS_YAML_H_
