#include "coordinator/core/start_file.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

const char* WeightsOf(const v1::JobSpec& spec) {
  if (spec.model().has_weights()) return spec.model().weights() == v1::WEIGHTS_RANDOM ? "random" : "pretrained";
  // Unset: the planner has refused a model folder without safetensors; a graph by hand has none.
  return spec.model().has_graph() ? "random" : "pretrained";
}

}  // namespace

std::string StartFile(const JobState& job, int rank, const std::string& version, double collective_timeout_seconds) {
  const v1::JobSpec& spec = job.spec;
  const v1::PlanSummary& plan = job.summary.plan;
  Json start;
  start["version"] = version;
  start["job"] = job.id;
  start["attempt"] = job.attempt->number;
  start["rank"] = rank;
  start["world"] = job.attempt->ranks.size();
  start["threads"] = job.compile.device().threads();
  start["model_dir"] = spec.model().path();
  start["weights"] = WeightsOf(spec);
  start["seed"] = spec.train().seed();
  start["data"] = {{"path", spec.data().path()},
                   {"eval_path", spec.data().eval_path()},
                   {"seq_len", plan.seq_len()},
                   {"global_batch_size", plan.global_batch_size()}};
  start["train"] = {{"max_steps", spec.train().max_steps()}, {"eval_steps", spec.train().eval_steps()}};
  start["checkpoint"] = {{"dir", spec.checkpoint().dir()},
                         {"save_steps", spec.checkpoint().save_steps()},
                         {"resume", job.attempt->resume},
                         {"export", ExportDir(spec)}};
  const Json identity = Json::parse(job.compile.identity(), nullptr, /*allow_exceptions=*/false);
  start["identity"] = identity.is_object() ? identity : Json::object();
  start["collective_timeout_seconds"] = collective_timeout_seconds;
  return Dump(start);
}

std::string RendezvousLine(const std::string& host, int port) {
  return Dump(Json{{"command", "rendezvous"}, {"host", host}, {"port", port}});
}

std::string StopLine() { return Dump(Json{{"command", "stop"}}); }

std::string OwnerText(const v1::JobSpec& spec, const std::string& job_id) {
  Json settings;
  settings["train.max_steps"] = spec.train().max_steps();
  settings["train.learning_rate"] = spec.train().learning_rate();
  settings["train.per_device_train_batch_size"] = spec.train().per_device_train_batch_size();
  settings["checkpoint.save_steps"] = spec.checkpoint().save_steps();
  settings["checkpoint.save_total_limit"] = spec.checkpoint().save_total_limit();
  settings["resources.workers"] = spec.resources().workers();
  settings["dist.dp.size"] = spec.dist().dp().size();
  settings["dist.fsdp.size"] = spec.dist().fsdp().size();
  return Dump(Json{{"job", job_id}, {"name", spec.name()}, {"settings", settings}});
}

std::vector<std::string> ChangedSettings(const std::string& before, const std::string& after) {
  std::vector<std::string> changes;
  const Json old_owner = Json::parse(before, nullptr, /*allow_exceptions=*/false);
  const Json new_owner = Json::parse(after, nullptr, /*allow_exceptions=*/false);
  if (!old_owner.is_object() || !old_owner.contains("settings") || !old_owner["settings"].is_object()) return changes;
  if (!new_owner.is_object() || !new_owner.contains("settings")) return changes;
  const Json& old_settings = old_owner["settings"];
  for (const auto& [key, value] : new_owner["settings"].items()) {
    if (!old_settings.contains(key) || old_settings[key] == value) continue;
    auto show = [](const Json& json) { return json == 0 ? std::string("unset") : json.dump(); };
    changes.push_back(absl::StrCat(key, " ", show(old_settings[key]), " -> ", show(value)));
  }
  return changes;
}

std::string ExportDir(const v1::JobSpec& spec) {
  return spec.model().has_path() ? absl::StrCat(spec.checkpoint().dir(), "/hf") : std::string();
}

}  // namespace tacc::coordinator
