#include "worker/checkpoint/identity.h"

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {

CheckpointIdentity ParseIdentity(const nlohmann::json& json) {
  CheckpointIdentity identity;
  const auto take = [&](const char* key, std::string* text) {
    const auto it = json.find(key);
    if (it != json.end() && it->is_string()) *text = it->get<std::string>();
  };
  take("config_json", &identity.config_json);
  take("architecture", &identity.architecture);
  take("model_path", &identity.model_path);
  take("data_path", &identity.data_path);
  take("weights", &identity.weights);
  take("adapter_config", &identity.adapter_config);
  const auto frozen = json.find("frozen");
  if (frozen == json.end() || !frozen->is_array()) return identity;
  for (const nlohmann::json& name : *frozen) {
    if (name.is_string()) identity.frozen.push_back(name.get<std::string>());
  }
  return identity;
}

CheckpointIdentity ParseIdentity(const std::string& json) { return ParseIdentity(ParseJson(json)); }

std::string BaseFingerprint(const std::string& weights) {
  absl::string_view text = weights;
  if (!absl::ConsumePrefix(&text, "pretrained, ")) return "";
  return std::string(text.substr(0, text.find(", adapter ")));
}

}  // namespace tacc::worker
