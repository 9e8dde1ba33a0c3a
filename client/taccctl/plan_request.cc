#include "client/taccctl/plan_request.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/local/devices.h"
#include "client/taccctl/local/share_out.h"
#include "client/taccctl/local/tool.h"
#include "google/protobuf/util/json_util.h"
#include "json/parse_json.h"
#include "machine/device_peaks.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

using nlohmann::json;

constexpr double kPlanSeconds = 600;
constexpr double kCalibrateSeconds = 3600;  // as many plans as there are rows, and their steps over and over
constexpr double kCheckSeconds = 60;

absl::StatusOr<json> JobJson(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(WithDefaults(spec), &text, print).ok())
    return absl::InternalError("the job does not print as JSON");
  return ParseJson(text);
}

absl::StatusOr<json> DataFacts(const v1::JobSpec& spec, double seconds, Context& context) {
  // A graph may have no sequences.
  if (spec.data().has_client()) return json{{"seq_len", spec.data().has_seq_len() ? spec.data().seq_len() : 1}};
  std::vector<std::string> arguments = {"check", "--data", spec.data().path()};
  if (spec.data().has_eval_path()) arguments.insert(arguments.end(), {"--eval", spec.data().eval_path()});
  if (spec.data().has_seq_len()) arguments.insert(arguments.end(), {"--seq-len", absl::StrCat(spec.data().seq_len())});
  if (spec.train().has_global_batch_size())
    arguments.insert(arguments.end(), {"--global-batch-size", absl::StrCat(spec.train().global_batch_size())});
  if (spec.model().has_path()) arguments.insert(arguments.end(), {"--model", spec.model().path()});
  const absl::StatusOr<std::string> data = RunTool("tacc-data", arguments, seconds, context);
  if (!data.ok()) return data.status();
  json facts = ParseJson(*data);
  if (!facts.is_object()) return absl::InternalError("tacc-data check printed no JSON object");
  return facts;
}

// The planner wants a length; where the job does not say, it is the data's.
void TakeLength(const v1::JobSpec& spec, json& request) {
  if (!spec.data().has_seq_len() && request["data"].contains("seq_len"))
    request["job"]["data"]["seq_len"] = request["data"]["seq_len"];
}

// What `tacc-plan COMMAND --request REQUEST ARGUMENTS` prints.
absl::StatusOr<std::string> RunOnRequest(const std::string& command, const json& request,
                                         const std::vector<std::string>& arguments, double seconds, Context& context) {
  std::string path = context.TemporaryFolder() + "/tacc-plan-XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0) return absl::InternalError(absl::StrCat("cannot write ", path));
  close(fd);
  std::ofstream file(path);
  file << request.dump();
  file.close();
  absl::StatusOr<std::string> out = absl::InternalError(absl::StrCat("cannot write ", path, "; is its disk full?"));
  if (file) {
    std::vector<std::string> all = {command, "--request", path};
    all.insert(all.end(), arguments.begin(), arguments.end());
    out = RunTool("tacc-plan", all, seconds, context);
  }
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return out;
}

}  // namespace

absl::StatusOr<json> RequestForThisMachine(const v1::JobSpec& spec, Context& context) {
  json request;
  const absl::StatusOr<json> job = JobJson(spec);
  if (!job.ok()) return job.status();
  request["job"] = *job;
  const int num_workers = std::max(1, RequestedWorld(spec));
  const LocalMachine machine = ThisMachine();
  // As `submit --local` would choose them.
  const absl::StatusOr<std::vector<std::string>> devices =
      ChooseDevices(kAutoDevice, num_workers, num_workers, context);
  if (!devices.ok()) return devices.status();
  const WorkerShare share = ShareOut(machine, num_workers);
  const absl::StatusOr<std::string> device = RunTool(
      "tacc-rank", {"--probe", "--device", devices->front(), "--threads", absl::StrCat(share.threads)}, 120, context);
  if (!device.ok()) return device.status();
  request["device"] = ParseJson(*device);
  if (!request["device"].is_object()) return absl::InternalError("tacc-rank --probe printed no JSON object");
  if (devices->front() == kCpuDevice) {
    request["device"]["memory_bytes"] = share.memory_bytes;
  } else if (const json model = request["device"]["model"], free = request["device"]["free_memory_bytes"];
             model.is_string() && free.is_number()) {
    request["device"]["memory_bytes"] = free.get<int64_t>() - kGpuReserveBytes;
    for (const auto& [dtype, peak] : TablePeaks(model.get<std::string>()))
      request["device"]["peak_flops_per_second"][dtype] = peak;
  }
  request["device"]["cpus"] = static_cast<double>(machine.num_cpus) / num_workers;
  const absl::StatusOr<json> data = DataFacts(spec, kPlanSeconds, context);
  if (!data.ok()) return data.status();
  request["data"] = *data;
  TakeLength(spec, request);
  return request;
}

absl::StatusOr<json> RequestForCluster(const v1::JobSpec& spec, const json& cluster, Context& context) {
  json request;
  const absl::StatusOr<json> job = JobJson(spec);
  if (!job.ok()) return job.status();
  request["job"] = *job;
  request["job"].erase("resources");
  request["job"]["model"]["weights"] = "WEIGHTS_RANDOM";
  request["cluster"] = cluster;
  // The data is asked only for what the job leaves to it: it need not be here.
  const bool has_steps = !spec.train().has_num_train_epochs();
  if (spec.data().has_seq_len() && has_steps) return request;
  std::error_code ignored;
  if (!std::filesystem::exists(spec.data().path(), ignored)) {
    return absl::InvalidArgumentError(
        has_steps ? absl::StrCat("the length of a sample is not known: data.seq_len is not given, and data.path (",
                                 spec.data().path(), ") is not there; give data.seq_len")
                  : absl::StrCat("the number of steps is not known: train.num_train_epochs is given, and data.path (",
                                 spec.data().path(), ") is not there; give train.max_steps"));
  }
  const absl::StatusOr<json> data = DataFacts(spec, kPlanSeconds, context);
  if (!data.ok()) return data.status();
  request["data"] = *data;
  TakeLength(spec, request);
  return request;
}

absl::Status CheckJob(const v1::JobSpec& spec, Context& context) {
  std::error_code ignored;
  const auto is_seen = [&](const std::string& path) { return path.empty() || std::filesystem::exists(path, ignored); };
  json request;
  const absl::StatusOr<json> job = JobJson(spec);
  if (!job.ok()) return job.status();
  request["job"] = *job;
  std::vector<std::string> problems;
  const auto take = [&](const absl::Status& status) {
    if (absl::IsInvalidArgument(status)) problems.push_back(std::string(status.message()));
  };
  if (is_seen(spec.data().path()) && is_seen(spec.data().eval_path())) {
    const absl::StatusOr<json> data = DataFacts(spec, kCheckSeconds, context);
    if (absl::IsCancelled(data.status())) return data.status();
    take(data.status());
    if (data.ok()) {
      request["data"] = *data;
      TakeLength(spec, request);
    }
  }
  if (is_seen(spec.model().has_graph() ? spec.model().graph() : spec.model().path())) {
    const absl::Status layout = RunOnRequest("check", request, {}, kCheckSeconds, context).status();
    if (absl::IsCancelled(layout)) return layout;
    take(layout);
  }
  return problems.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

absl::StatusOr<jobfile::KnownMachines> AskForMachines(Context& context) {
  const absl::StatusOr<std::string> text = RunTool("tacc-plan", {"machines"}, 60, context);
  if (!text.ok()) return text.status();
  const json answer = ParseJson(*text);
  jobfile::KnownMachines known;
  const auto read = [&](const char* name, std::vector<std::string>* out) {
    if (!answer.is_object() || !answer.contains(name) || !answer[name].is_array()) return;
    for (const json& item : answer[name]) {
      if (item.is_string()) out->push_back(item.get<std::string>());
    }
  };
  read("names", &known.machines);
  read("cluster_fields", &known.fields);
  if (known.machines.empty() || known.fields.empty())
    return absl::InternalError("tacc-plan machines printed no machines");
  return known;
}

absl::StatusOr<std::string> RunPlan(const json& request, const std::vector<std::string>& arguments, Context& context) {
  return RunOnRequest("plan", request, arguments, kPlanSeconds, context);
}

absl::StatusOr<std::string> RunCalibrate(const json& request, Context& context) {
  return RunOnRequest("calibrate", request, {}, kCalibrateSeconds, context);
}

}  // namespace tacc::client
