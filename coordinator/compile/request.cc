#include "coordinator/compile/request.h"

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/start_file.h"
#include "google/protobuf/util/json_util.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/state_names.h"
#include "graph/ir/text.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "proto/tacc/v1/upload_name.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::coordinator {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxClusterBytes = 64 << 10;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json Sorted(const google::protobuf::Map<std::string, double>& values) {
  const std::map<std::string, double> sorted(values.begin(), values.end());
  Json json = Json::object();
  for (const auto& [key, value] : sorted) json[key] = value;
  return json;
}

// What a client sent. A JSON value may lie as deep in others as its text is long, and is written recursively.
absl::StatusOr<Json> ReadCluster(const std::string& text) {
  if (text.size() > kMaxClusterBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("cluster has ", text.size(), " bytes; give a JSON object of at most ", kMaxClusterBytes));
  }
  Json cluster = ParseOrderedJson(text);
  if (!cluster.is_object())
    return absl::InvalidArgumentError("cluster is no JSON object; give one as {\"machine\": \"h100\", \"gpus\": 64}");
  for (const auto& [key, value] : cluster.items()) {
    if (!value.is_structured()) continue;
    return absl::InvalidArgumentError(absl::StrCat("cluster: ", key, " is ", value.is_array() ? "a list" : "an object",
                                                   "; wanted a number or a name"));
  }
  return cluster;
}

Json DeviceJson(const v1::DeviceProfile& device) {
  Json json = {{"name", device.name()},
               {"kind", device.kind()},
               {"model", device.model()},
               {"threads", device.threads()},
               {"memory_bytes", device.memory_bytes()},
               {"matmul_flops_per_second", Sorted(device.matmul_flops_per_second())},
               {"memory_bytes_per_second", device.memory_bytes_per_second()},
               {"link_bytes_per_second", device.link_bytes_per_second()},
               {"link_latency_seconds", device.link_latency_seconds()},
               {"cpus", device.cpus()},
               {"devices_per_machine", device.devices_per_machine()}};
  if (device.matmul_fraction() > 0) json["matmul_fraction"] = device.matmul_fraction();
  if (device.kind() == "cpu") json["multiplies_bf16"] = device.multiplies_bf16();
  if (device.kind() == "cuda") {
    json["peak_flops_per_second"] = Sorted(device.peak_flops_per_second());
    json["attention_flops_per_second"] = Sorted(device.attention_flops_per_second());
  }
  return json;
}

// The weights of a model, each once: first and last stage may share one, as a tied embedding.
struct Weights {
  std::set<std::string> shapes;        // "NAME DIM,DIM", of the logical tensors
  std::set<std::string> initializers;  // "NAME INIT"
  std::set<std::string> trained;       // names of parameters
  std::set<std::string> frozen;
  int64_t num_parameters = 0;
};

absl::StatusOr<Weights> WeightsIn(const std::vector<std::string>& programs) {
  Weights weights;
  for (const std::string& program : programs) {
    // Those for other lengths have the same weights.
    auto parsed = graph::ParseProgram(graph::SplitPrograms(program)[0], {.file = "program"});
    if (!parsed.ok())
      return absl::InternalError(
          absl::StrCat("tacc-plan wrote a program that does not parse: ", std::string(parsed.status().message())));
    for (const graph::State& state : parsed->states) {
      if (state.kind != graph::StateKind::kWeight) continue;
      const auto& dims = state.logical_dims();
      if (!weights.shapes.insert(absl::StrCat(state.name, " ", absl::StrJoin(dims, ","))).second) continue;
      (state.role == graph::WeightRole::kFrozen ? weights.frozen : weights.trained).insert(graph::ParameterOf(state));
      weights.initializers.insert(absl::StrCat(state.name, " ", state.init));
      int64_t elements = 1;
      for (const int64_t dim : dims) elements *= dim;
      weights.num_parameters += elements;
    }
  }
  return weights;
}

}  // namespace

v1::JobSpec InPrecision(v1::JobSpec spec, const std::string& precision, const std::string& residual_dtype) {
  const bool is_open = !spec.compute().has_bf16() && !spec.compute().fp16() && !spec.compute().tf32();
  if (is_open && (precision == "bf16" || precision == "f32")) spec.mutable_compute()->set_bf16(precision == "bf16");
  if (spec.compute().residual_dtype() == v1::RESIDUAL_DTYPE_AUTO && !residual_dtype.empty()) {
    const bool is_narrow = residual_dtype == "bf16";
    spec.mutable_compute()->set_residual_dtype(is_narrow ? v1::RESIDUAL_DTYPE_BFLOAT16 : v1::RESIDUAL_DTYPE_FLOAT32);
  }
  return spec;
}

v1::JobSpec WithUploadsAt(v1::JobSpec spec, const std::function<std::string(const std::string& id)>& path) {
  v1::ModelSpec& model = *spec.mutable_model();
  if (const std::string id = UploadId(model.path()); !id.empty()) model.set_path(path(id));
  if (const std::string id = UploadId(model.graph()); !id.empty())
    model.set_graph(absl::StrCat(path(id), "/", kUploadedGraph));
  return spec;
}

std::string ClientDataFacts(const v1::JobSpec& spec) {
  // A graph may have no sequences.
  return Dump({{"seq_len", spec.data().has_seq_len() ? spec.data().seq_len() : 1}});
}

absl::StatusOr<std::string> CompileRequest(const v1::JobSpec& spec, const PlanTarget& target, const std::string& data) {
  v1::JobSpec full = WithDefaults(spec);
  Json request, facts;
  if (!data.empty()) {
    facts = ParseOrderedJson(data);
    if (!facts.is_object()) return absl::InternalError("tacc-data check did not print a JSON object");
    if (!full.data().has_seq_len() && facts.contains("seq_len") && facts["seq_len"].is_number_integer())
      full.mutable_data()->set_seq_len(facts["seq_len"].get<int>());
  }
  if (!target.cluster.empty()) {
    // Its size is the cluster's, and its weights need not be here.
    full.clear_resources();
    full.mutable_model()->set_weights(v1::WEIGHTS_RANDOM);
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string job;
  if (auto status = google::protobuf::util::MessageToJsonString(full, &job, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("job as JSON: ", std::string(status.message())));
  }
  request["job"] = ParseOrderedJson(job);
  if (target.cluster.empty()) {
    if (target.world > 0) request["world"] = target.world;
    request["device"] = DeviceJson(target.device);
  } else {
    absl::StatusOr<Json> cluster = ReadCluster(target.cluster);
    if (!cluster.ok()) return cluster.status();
    request["cluster"] = *std::move(cluster);
  }
  if (!facts.is_null()) request["data"] = std::move(facts);
  return Dump(request);
}

absl::StatusOr<std::string> Identity(const v1::JobSpec& spec, const IdentityParts& parts) {
  const Json plan = ParseOrderedJson(parts.summary);
  const Json facts = ParseOrderedJson(parts.data);
  if (!plan.is_object() || !facts.is_object())
    return absl::InternalError("summary.json or the output of tacc-data check is not a JSON object");
  const absl::StatusOr<Weights> weights = WeightsIn(parts.programs);
  if (!weights.ok()) return weights.status();
  Json identity;
  identity["model"] = absl::StrCat(weights->num_parameters, " parameters, shapes ",
                                   graph::Fingerprint(absl::StrJoin(weights->shapes, "\n")));
  for (const char* name : {"config", "config_keys"}) {
    if (plan.contains(name)) identity[name] = plan[name];
  }
  const bool is_pretrained = WeightsOf(spec, plan.value("weights", "")) == absl::string_view("pretrained");
  // The seed is an entry of its own.
  identity["weights"] = is_pretrained ? absl::StrCat("pretrained, ", parts.weights)
                                      : absl::StrCat("random, initializers ",
                                                     graph::Fingerprint(absl::StrJoin(weights->initializers, "\n")));
  // What it trains, and where the checkpoints do not have it, what it does not.
  identity["trained"] =
      weights->frozen.empty()
          ? "all"
          : absl::StrCat(weights->trained.size(), " of ", weights->trained.size() + weights->frozen.size(),
                         " parameters, ", graph::Fingerprint(absl::StrJoin(weights->trained, "\n")));
  if (!weights->frozen.empty() && is_pretrained) identity["frozen"] = weights->frozen;
  if (plan.contains("adapter_config")) identity["adapter_config"] = plan["adapter_config"];
  identity["data"] = spec.data().has_client() ? "a client's"
                                              : absl::StrCat(facts.value("num_tokens", int64_t{0}), " tokens, ",
                                                             facts.value("fingerprint", std::string()));
  identity["seq_len"] = plan.value("seq_len", 0);
  identity["global_batch_size"] = plan.value("global_batch_size", 0);
  identity["seed"] = spec.train().seed();
  identity["model_path"] = spec.model().has_graph() ? spec.model().graph() : spec.model().path();
  identity["data_path"] = spec.data().path();
  if (plan.contains("architecture")) identity["architecture"] = plan["architecture"];
  if (!parts.config_json.empty()) identity["config_json"] = parts.config_json;
  return Dump(identity);
}

}  // namespace tacc::coordinator
