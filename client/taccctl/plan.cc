// taccctl plan JOB.YAML: the layouts that the planner weighs, with bytes and predicted seconds. Starts nothing.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/jobfile/job_file.h"
#include "client/taccctl/coordinator_client.h"
#include "client/taccctl/exit_code.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/message_json.h"
#include "client/taccctl/share_out.h"
#include "client/taccctl/subcommands.h"
#include "client/taccctl/table.h"
#include "client/taccctl/tool.h"
#include "client/taccctl/units.h"
#include "google/protobuf/util/json_util.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

using nlohmann::json;

struct PlanOptions {
  std::string file;
  bool local = false;
};

// The job, the probe of this machine shared out between the job's workers, and the facts of the data, as tacc-plan
// takes them.
absl::StatusOr<json> LocalRequest(const v1::JobSpec& spec, Context& context) {
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(WithDefaults(spec), &text, print).ok())
    return absl::InternalError("the job does not print as JSON");
  json request = {{"job", json::parse(text, nullptr, false)}};
  const int num_workers = std::max(1, RequestedWorld(spec));
  const WorkerShare share = ShareOut(ThisMachine(), num_workers);
  const absl::StatusOr<std::string> device =
      RunTool("tacc-rank", {"--probe", "--device", "cpu", "--threads", absl::StrCat(share.threads)}, 120, context);
  if (!device.ok()) return device.status();
  request["device"] = json::parse(*device, nullptr, false);
  if (!request["device"].is_object()) return absl::InternalError("tacc-rank --probe printed no JSON object");
  request["device"]["memory_bytes"] = share.memory_bytes;
  std::vector<std::string> arguments = {"check", "--data", spec.data().path()};
  if (spec.data().has_eval_path()) arguments.insert(arguments.end(), {"--eval", spec.data().eval_path()});
  if (spec.data().has_seq_len()) arguments.insert(arguments.end(), {"--seq-len", absl::StrCat(spec.data().seq_len())});
  if (spec.train().has_global_batch_size())
    arguments.insert(arguments.end(), {"--global-batch-size", absl::StrCat(spec.train().global_batch_size())});
  if (spec.model().has_path()) arguments.insert(arguments.end(), {"--model", spec.model().path()});
  const absl::StatusOr<std::string> data = RunTool("tacc-data", arguments, 600, context);
  if (!data.ok()) return data.status();
  request["data"] = json::parse(*data, nullptr, false);
  if (!request["data"].is_object()) return absl::InternalError("tacc-data check printed no JSON object");
  // The planner wants a length; where the job does not say, it is the data's.
  if (!spec.data().has_seq_len() && request["data"].contains("seq_len"))
    request["job"]["data"]["seq_len"] = request["data"]["seq_len"];
  return request;
}

absl::StatusOr<std::string> PlanHere(const v1::JobSpec& spec, Context& context) {
  const absl::StatusOr<json> request = LocalRequest(spec, context);
  if (!request.ok()) return request.status();
  std::string path = (context.Variable("TMPDIR").empty() ? "/tmp" : context.Variable("TMPDIR")) + "/tacc-plan-XXXXXX";
  const int fd = mkstemp(path.data());
  if (fd < 0) return absl::InternalError(absl::StrCat("cannot write ", path));
  close(fd);
  std::ofstream(path) << request->dump();
  absl::StatusOr<std::string> out = RunTool("tacc-plan", {"plan", "--request", path}, 600, context);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return out;
}

double NumberAt(const json& object, const std::string& name) {
  return object.is_object() && object.contains(name) && object[name].is_number() ? object[name].get<double>() : 0;
}

void PrintCandidates(const json& candidates, std::ostream& out) {
  std::vector<std::vector<std::string>> rows;
  for (const json& candidate : candidates) {
    std::vector<std::string> axes;
    if (candidate.contains("mesh") && candidate["mesh"].is_object()) {
      for (const auto& [axis, size] : candidate["mesh"].items()) axes.push_back(absl::StrCat(axis, "=", size.dump()));
    }
    const json memory = candidate.value("memory", json::object());
    const auto bytes = [&](const char* kind) { return FormatBytes(NumberAt(memory, kind)); };
    const std::string precision = candidate.contains("precision") && candidate["precision"].is_string()
                                      ? candidate["precision"].get<std::string>()
                                      : "-";
    rows.push_back(
        {absl::StrJoin(axes, " "), precision,
         absl::StrCat(NumberAt(candidate, "per_device_train_batch_size"), " x ", NumberAt(candidate, "accumulation")),
         bytes("weights_bytes"), bytes("gradients_bytes"), bytes("optimizer_bytes"), bytes("stash_bytes"),
         bytes("temporaries_bytes"), bytes("workspace_bytes"), bytes("total_bytes"),
         candidate.value("fits", true) ? "yes" : "no", FormatNumber(NumberAt(candidate, "predicted_step_seconds"), 4),
         FormatCount(NumberAt(candidate, "predicted_tokens_per_second")),
         FormatPercent(NumberAt(candidate, "predicted_mfu"))});
  }
  PrintTable({"MESH", "PRECISION", "BATCH", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "STASH", "TEMPORARIES", "WORKSPACE",
              "TOTAL", "FITS", "SECONDS", "TOKENS/S", "MFU"},
             rows, out);
}

absl::StatusOr<std::string> Candidates(const PlanOptions& options, const v1::JobSpec& spec, const GlobalOptions& global,
                                       Context& context) {
  if (options.local) return PlanHere(spec, context);
  const absl::StatusOr<std::string> address = CoordinatorAddress(global, context);
  if (!address.ok()) return address.status();
  CoordinatorClient client(*address, &context.interrupt);
  const absl::StatusOr<v1::PlanResponse> plan = client.Plan(spec);
  if (plan.ok()) return plan->candidates_json();
  if (!absl::IsUnavailable(plan.status()) || !global.address.empty() || !context.Variable("TACC_ADDRESS").empty())
    return plan.status();
  context.err << "no coordinator at " << *address << "; planning for this machine" << std::endl;
  return PlanHere(spec, context);
}

int Plan(const PlanOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<v1::JobSpec> spec = LoadJobFile(options.file);
  if (!spec.ok()) {
    Fail(spec.status(), &context);
    return kExitBadInput;
  }
  const absl::StatusOr<std::string> text = Candidates(options, *spec, global, context);
  if (!text.ok()) return Fail(text.status(), &context);
  const json plan = json::parse(*text, nullptr, false);
  if (!plan.is_object() || !plan.contains("candidates") || !plan["candidates"].is_array()) {
    return Fail(absl::InternalError("the planner's answer has no candidates"), &context);
  }
  if (global.form == OutputForm::kJson) {
    for (const json& candidate : plan["candidates"]) context.out << candidate.dump() << "\n";
  } else {
    PrintCandidates(plan["candidates"], context.out);
    context.err << "Bytes are of one rank; BATCH is per_device_train_batch_size x accumulation; the first row that "
                   "fits is taken."
                << std::endl;
  }
  return kExitOk;
}

}  // namespace

void AddPlan(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand(
      "plan",
      "Show the layouts that the planner weighs for a job, with bytes by kind and predicted seconds; starts nothing");
  const auto options = std::make_shared<PlanOptions>();
  command->add_option("file", options->file, "The job file (docs/job.md)")->required()->type_name("JOB.YAML");
  command->add_flag("--local", options->local,
                    "For this machine (default: for the coordinator's workers, where there is one)");
  command->callback([=] { *action = [=](Context& context) { return Plan(*options, *global, context); }; });
}

}  // namespace tacc::client
