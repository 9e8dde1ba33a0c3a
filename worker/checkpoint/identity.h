// What of a manifest's `identity` (docs/contracts.md) is read here: the rest is the coordinator's.
#ifndef TACC_WORKER_CHECKPOINT_IDENTITY_H_
#define TACC_WORKER_CHECKPOINT_IDENTITY_H_

#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace tacc::worker {

struct CheckpointIdentity {
  std::string config_json, architecture, model_path, data_path;
  std::string weights;              // "pretrained, FINGERPRINT" or "pretrained, FINGERPRINT, adapter FINGERPRINT"
  std::string adapter_config;       // of a training of adapters: their adapter_config.json, without the base
  std::vector<std::string> frozen;  // weights that the checkpoint does not hold: those of the model's files

  bool has_adapters() const { return !adapter_config.empty(); }
};

// What is missing, or of another type, stays empty.
CheckpointIdentity ParseIdentity(const std::string& json);
CheckpointIdentity ParseIdentity(const nlohmann::json& json);

// The fingerprint of the model's files in CheckpointIdentity::weights; empty where these were random.
std::string BaseFingerprint(const std::string& weights);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_IDENTITY_H_
