#include "coordinator/core/start_file.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "proto/tacc/v1/upload_name.h"
#include "proto/tacc/v1/validate_job.h"
#include "protocol/start_file.h"
#include "text/utf8.h"

namespace tacc::coordinator {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Adds the fields that are set to `out`, by their paths: "train.max_steps". Maps hold strings or messages, lists
// strings or numbers.
void Flatten(const google::protobuf::Message& message, const std::string& prefix, Json* out) {
  using google::protobuf::FieldDescriptor;
  std::vector<const FieldDescriptor*> fields;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string name = absl::StrCat(prefix, field->name());
    if (field->is_map()) {
      std::map<std::string, Json> entries;  // the map's own order is not defined
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        const google::protobuf::Message& entry = reflection.GetRepeatedMessage(message, field, i);
        const FieldDescriptor* of = field->message_type()->map_value();
        Json& value = entries[entry.GetReflection()->GetString(entry, field->message_type()->map_key())];
        if (of->message_type() == nullptr) {
          value = entry.GetReflection()->GetString(entry, of);
        } else {
          value = Json::object();
          Flatten(entry.GetReflection()->GetMessage(entry, of), "", &value);
        }
      }
      (*out)[name] = entries;
      continue;
    }
    if (field->is_repeated()) {
      const auto entry = [&](int i) -> Json {
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE)
          return reflection.GetRepeatedDouble(message, field, i);
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) return reflection.GetRepeatedInt32(message, field, i);
        return reflection.GetRepeatedString(message, field, i);
      };
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) (*out)[name].push_back(entry(i));
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Flatten(reflection.GetMessage(message, field), absl::StrCat(name, "."), out);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        (*out)[name] = reflection.GetInt32(message, field);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        (*out)[name] = reflection.GetDouble(message, field);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        (*out)[name] = reflection.GetBool(message, field);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        (*out)[name] = EnumValueInJobFile(*reflection.GetEnum(message, field));
        break;
      default:
        (*out)[name] = reflection.GetString(message, field);
        break;
    }
  }
}

// Settings in an owner text, those of options that its version did not know at their defaults; empty when it has none.
Json SettingsOf(const std::string& owner) {
  const Json json = ParseOrderedJson(owner);
  Json settings = Json::object();
  if (!json.is_object() || !json.contains("settings") || !json["settings"].is_object()) return settings;
  Flatten(WithDefaults(v1::JobSpec()), "", &settings);
  settings.erase("checkpoint.resume_from_checkpoint");
  settings.update(json["settings"]);
  return settings;
}

// Restarts that the record of a run has, the newest ones, and bytes of the cause of each.
constexpr int kMaxRestarts = 20;
constexpr size_t kMaxCauseBytes = 500;

// The record of the run as it begins: what it takes from the plan, and the job's history. The job has run.
Json RunFacts(const JobState& job) {
  const v1::PlanSummary& plan = job.summary.plan;
  Json run = {{"name", job.spec.name()},
              {"flops_per_step", plan.flops_per_step()},
              {"peak_flops_per_second", job.attempt->peak_flops_per_second}};
  for (const v1::BucketSummary& bucket : plan.buckets())
    run["flops_of_length"][absl::StrCat(bucket.seq_len())] = bucket.flops_per_step();
  std::string layout = absl::StrCat(plan.world(), plan.world() == 1 ? " rank" : " ranks");
  for (const std::string& axis : plan.axes()) {
    const auto size = plan.mesh().find(axis);
    if (size != plan.mesh().end() && size->second > 1) absl::StrAppend(&layout, " ", axis, "=", size->second);
  }
  const auto total = plan.memory_bytes().find("total");
  run["plan"] = {{"layout", layout},
                 {"precision", plan.precision()},
                 {"num_parameters", plan.num_parameters()},
                 {"num_trained_parameters", plan.num_trained_parameters()},
                 {"global_batch_size", plan.global_batch_size()},
                 {"per_device_train_batch_size", plan.per_device_train_batch_size()},
                 {"seq_len", plan.seq_len()},
                 {"predicted_step_seconds", plan.predicted_step_seconds()},
                 {"predicted_tokens_per_second", plan.predicted_tokens_per_second()},
                 {"predicted_wait_seconds", plan.predicted_communication_seconds()},
                 {"total_bytes", total == plan.memory_bytes().end() ? 0 : total->second}};
  const size_t first = job.restarts.size() > kMaxRestarts ? job.restarts.size() - kMaxRestarts : 0;
  for (size_t i = first; i < job.restarts.size(); ++i) {
    const v1::Restart& restart = job.restarts[i];
    run["restarts"].push_back({{"attempt", restart.attempt()},
                               {"step", restart.step()},
                               {"time", restart.time()},
                               {"cause", ValidUtf8(restart.cause(), kMaxCauseBytes)}});
  }
  return run;
}

// The value of a job's option, its default where it is unset. `name`: "train.max_steps". One that the job does not
// have, or has of another type, ends the process: every start file takes every option, so no test gets past it.
template <typename T>
void TakeOption(const v1::JobSpec& spec, const std::string& name, T* value) {
  using google::protobuf::FieldDescriptor;
  const size_t dot = name.find('.');
  const auto known = [&name](const FieldDescriptor* field) {
    if (field == nullptr) {
      std::fprintf(stderr, "%s of protocol/start_file.h is no option of a job\n", name.c_str());
      std::abort();
    }
    return field;
  };
  const FieldDescriptor* const section = known(spec.GetDescriptor()->FindFieldByName(name.substr(0, dot)));
  const google::protobuf::Message& message = spec.GetReflection()->GetMessage(spec, section);
  const FieldDescriptor* const field = known(message.GetDescriptor()->FindFieldByName(name.substr(dot + 1)));
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if constexpr (std::is_same_v<T, std::string>) {
    *value = reflection.GetString(message, field);
  } else if constexpr (std::is_same_v<T, bool>) {
    *value = reflection.GetBool(message, field);
  } else if constexpr (std::is_same_v<T, double>) {
    *value = reflection.GetDouble(message, field);
  } else if constexpr (std::is_same_v<T, int64_t>) {
    *value = reflection.GetInt32(message, field);
  } else {
    std::abort();  // A job has no options of this type.
  }
}

}  // namespace

std::string StartFile(const JobState& job, int rank, const std::string& version, const std::string& service,
                      double collective_timeout_seconds) {
  const v1::JobSpec& spec = job.spec;
  const v1::PlanSummary& plan = job.summary.plan;
  protocol::StartFile start;
  protocol::ForEachField(protocol::kStartFields, [&](const auto& field) {
    if (field.source == protocol::Source::kJob) TakeOption(spec, field.name, &(start.*field.member));
  });
  start.version = version;
  start.job = job.id;
  start.attempt = job.attempt->number;
  start.rank = rank;
  start.world = static_cast<int>(job.attempt->ranks.size());
  start.threads = job.compile.device().threads();
  const bool is_pretrained = WeightsOf(spec, job.summary.weights) == absl::string_view("pretrained");
  const std::string model_dir = ModelDir(spec);
  // Of a graph with random weights it has nothing to read; but an export copies that of an upload from there.
  start.model_dir = spec.model().has_path() || is_pretrained || !UploadId(model_dir).empty() ? model_dir : "";
  start.adapter_dir = spec.train().lora().init_from();
  start.weights = is_pretrained ? protocol::StartFile::Weights::kPretrained : protocol::StartFile::Weights::kRandom;
  start.seed = spec.train().seed();
  start.seq_len = plan.seq_len();
  start.global_batch_size = plan.global_batch_size();
  if (spec.data().has_client()) start.client_wait_seconds = spec.data().client().wait_seconds();
  start.max_steps = job.MaxSteps();
  start.checkpoint_claimed = true;
  start.service = service;
  start.resume = job.attempt->resume;
  start.export_dir = ExportDir(spec);
  // One rank writes it; the others learn of it from each other.
  if (rank == 0 && spec.train().has_trace_step()) {
    start.trace_path = absl::StrCat(spec.checkpoint().dir(), "/trace.json");
    start.trace_step = spec.train().trace_step();
  }
  if (rank == 0) start.run = RunFacts(job);
  for (const v1::AttentionChoice& choice : job.attention) start.attention[choice.shape()] = choice.backend();
  for (const v1::ProductChoice& choice : job.products) {
    if (!choice.makeshift()) start.products[choice.shape()] = choice.algorithm();
  }
  const nlohmann::json identity = ParseJson(job.compile.identity());
  if (identity.is_object()) start.identity = identity;
  start.collective_timeout_seconds = collective_timeout_seconds;
  return protocol::WriteStartFile(start);
}

std::string RunText(const JobState& job) { return Dump(RunFacts(job)); }

const char* WeightsOf(const v1::JobSpec& spec, absl::string_view compiled) {
  if (!compiled.empty()) return compiled == "pretrained" ? "pretrained" : "random";
  // Before summaries said it, a graph had none, and a folder without safetensors was refused.
  const bool is_random =
      spec.model().has_weights() ? spec.model().weights() == v1::WEIGHTS_RANDOM : spec.model().has_graph();
  return is_random ? "random" : "pretrained";
}

std::string ModelDir(const v1::JobSpec& spec) {
  if (spec.model().has_path()) return spec.model().path();
  const std::string& graph = spec.model().graph();
  if (!UploadId(graph).empty()) return graph;
  return graph.substr(0, std::max<size_t>(1, graph.rfind('/')));
}

std::string WithPredictedTrace(const std::string& start_file, const std::string& trace) {
  Json start = ParseOrderedJson(start_file);
  protocol::SetStartField(&start, &protocol::StartFile::predicted_trace, trace);
  return Dump(start);
}

std::string RendezvousLine(const AttemptState& attempt) {
  Json line = {{"command", "rendezvous"}, {"host", attempt.host}, {"port", attempt.port}};
  if (!attempt.file.empty()) line["file"] = attempt.file;
  if (!attempt.secret.empty()) line["secret"] = attempt.secret;
  return Dump(line);
}

std::string StopLine() { return Dump(Json{{"command", "stop"}}); }

std::string OwnerText(const JobState& job, const std::string& service) {
  Json settings = Json::object();
  Flatten(WithDefaults(job.spec), "", &settings);
  for (const char* key : {"name", "checkpoint.dir", "checkpoint.resume_from_checkpoint"}) settings.erase(key);
  return Dump(Json{{"job", job.id}, {"name", job.spec.name()}, {"service", service}, {"settings", settings}});
}

std::vector<std::string> ChangedSettings(const std::string& before, const std::string& after) {
  const Json old_settings = SettingsOf(before), new_settings = SettingsOf(after);
  if (old_settings.empty() || new_settings.empty()) return {};
  std::set<std::string> keys;
  for (const Json* settings : {&old_settings, &new_settings}) {
    for (const auto& [key, value] : settings->items()) keys.insert(key);
  }
  std::vector<std::string> changes;
  for (const std::string& key : keys) {
    const auto show = [&](const Json& settings) { return settings.contains(key) ? settings[key].dump() : "unset"; };
    const std::string was = show(old_settings), is = show(new_settings);
    if (was != is) changes.push_back(absl::StrCat(key, " ", was, " -> ", is));
  }
  return changes;
}

std::string ExportDir(const v1::JobSpec& spec) {
  return absl::StrCat(spec.checkpoint().dir(), spec.model().has_path() ? "/hf" : "/model");
}

}  // namespace tacc::coordinator
