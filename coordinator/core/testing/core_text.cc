#include "coordinator/core/testing/core_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/text_format.h"
#include "nlohmann/json.hpp"
#include "protocol/attach_protocol.h"

namespace tacc::coordinator {
namespace {

std::string FactText(const v1::Fact& fact) {
  const auto* field = v1::Fact::descriptor()->FindFieldByNumber(fact.fact_case());
  std::string text = absl::StrCat("log ", fact.job(), " ", field->name());
  const auto& message = fact.GetReflection()->GetMessage(fact, field);
  if (fact.has_job_accepted()) {
    const v1::JobAccepted& accepted = fact.job_accepted();
    return absl::StrCat(text, " number: ", accepted.number(),
                        accepted.project().empty() ? "" : " project: ", accepted.project(), "\n");
  }
  if (fact.has_job_compiled()) return absl::StrCat(text, "\n");
  const std::string body = FieldsText(message);
  return absl::StrCat(text, body.empty() ? "" : " ", body, "\n");
}

std::string SendText(const std::string& worker, const v1::AttachResponse& message) {
  std::string text = absl::StrCat("send ", worker, " ");
  switch (message.message_case()) {
    case v1::AttachResponse::kRegistered:
      // By another protocol than the coordinator's newest.
      return absl::StrCat(text, "registered",
                          message.registered().protocol() == protocol::kAttachProtocol
                              ? ""
                              : absl::StrCat(" protocol=", message.registered().protocol()),
                          "\n");
    case v1::AttachResponse::kCheckPaths:
      return absl::StrCat(
          text, "check_paths ", message.check_paths().mode() == v1::CHECK_PATHS_MODE_CLAIM ? "claim" : "expect", " ",
          absl::StrJoin(message.check_paths().readable(), " "),
          message.check_paths().uploads().empty() ? "" : " upload ",
          absl::StrJoin(message.check_paths().uploads(), " "),
          message.check_paths().last_attempt() == 0 ? ""
                                                    : absl::StrCat(" after ", message.check_paths().last_attempt()),
          message.check_paths().open_jobs().empty() ? "" : " beside ",
          absl::StrJoin(message.check_paths().open_jobs(), " "), "\n");
    case v1::AttachResponse::kStartRank: {
      const auto start = nlohmann::json::parse(message.start_rank().start());
      return absl::StrCat(text, "start_rank ", RankName(message.start_rank().id()), " of ", start["world"].get<int>(),
                          " resume=\"", start["checkpoint"]["resume"].get<std::string>(), "\"",
                          start.contains("products") ? absl::StrCat(" products=", start["products"].dump()) : "", "\n");
    }
    case v1::AttachResponse::kRankCommand:
      return absl::StrCat(text, "command ", RankName(message.rank_command().id()), " ", message.rank_command().line(),
                          "\n");
    case v1::AttachResponse::kKillRank:
      return absl::StrCat(text, "kill ", RankName(message.kill_rank().id()), "\n");
    case v1::AttachResponse::kDeleteCheckpoints: {
      const auto& request = message.delete_checkpoints();
      absl::StrAppend(&text, "delete ", absl::StrJoin(request.names(), " "), " keep ",
                      absl::StrJoin(request.keep(), " "));
      if (request.older_than_attempt() != 0) {
        absl::StrAppend(&text, " and attempts ", request.first_attempt(), " to below ", request.older_than_attempt());
      }
      return text + "\n";
    }
    case v1::AttachResponse::kWriteReport: {
      const auto& request = message.write_report();
      return absl::StrCat(text, "write_report it ", request.outcome(), " at step ", request.step(), " of ",
                          request.max_steps(), request.failure().empty() ? "" : ": ", request.failure(),
                          request.checkpoint().empty() ? "" : ", last checkpoint ", request.checkpoint(), "\n");
    }
    case v1::AttachResponse::kFetchUpload:
      return absl::StrCat(text, "fetch_upload ", message.fetch_upload().id(), "\n");
    case v1::AttachResponse::kLeaveFolder:
      return absl::StrCat(text, "leave_folder of ", message.leave_folder().job(), "\n");
    case v1::AttachResponse::kAck:
      return absl::StrCat(text, "ack ", RankName(message.ack().id()), " ", message.ack().sequence(), "\n");
    case v1::AttachResponse::MESSAGE_NOT_SET:
      break;
  }
  return text + "?\n";
}

}  // namespace

std::string FieldsText(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  printer.PrintToString(message, &text);
  return std::string(absl::StripTrailingAsciiWhitespace(text));
}

std::string RankName(const v1::RankId& id) { return absl::StrCat(id.job(), "/", id.attempt(), "/", id.rank()); }

std::string DecisionText(const Decision& decision, const std::map<uint64_t, std::string>& workers) {
  if (const auto* log = std::get_if<LogFact>(&decision)) return FactText(log->fact);
  if (const auto* step = std::get_if<StoreStep>(&decision)) {
    return absl::StrCat("point ", step->job, " step ", step->step.step(), " attempt ", step->step.attempt(), " mfu ",
                        step->step.mfu(), "\n");
  }
  if (const auto* eval = std::get_if<StoreEval>(&decision)) {
    return absl::StrCat("point ", eval->job, " eval ", eval->eval.step(), " loss ", eval->eval.eval_loss(), "\n");
  }
  if (const auto* event = std::get_if<StoreEvent>(&decision)) {
    return absl::StrCat("event ", event->job, " ", event->event.type(), ": ", event->event.message(), "\n");
  }
  if (const auto* sequence = std::get_if<StoreSequence>(&decision)) {
    return absl::StrCat("sequence ", RankName(sequence->id), " ", sequence->sequence, "\n");
  }
  if (const auto* line = std::get_if<StoreLog>(&decision)) {
    return absl::StrCat("lines ", RankName(line->id), " ", absl::StrJoin(line->log.lines(), "|"), "\n");
  }
  if (const auto* compile = std::get_if<StartCompile>(&decision)) {
    return absl::StrCat(
        "compile ", compile->job, " world=", compile->world, " threads=", compile->device.threads(),
        " memory=", compile->device.memory_bytes(),
        compile->device.cpus() > 0 ? absl::StrCat(" cpus=", compile->device.cpus()) : "",
        compile->device.devices_per_machine() > 0 ? absl::StrCat(" per_machine=", compile->device.devices_per_machine())
                                                  : "",
        compile->device.multiplies_bf16() ? " multiplies_bf16" : "",
        compile->precision.empty() ? "" : absl::StrCat(" precision=", compile->precision),
        compile->residual_dtype.empty() ? "" : absl::StrCat(" residual=", compile->residual_dtype), "\n");
  }
  if (const auto* forget = std::get_if<ForgetJob>(&decision)) return absl::StrCat("forget ", forget->job, "\n");
  if (const auto* stop = std::get_if<StopCompile>(&decision)) return absl::StrCat("stop compile ", stop->job, "\n");
  if (const auto* send = std::get_if<SendToWorker>(&decision))
    return SendText(workers.at(send->session), send->message);
  if (const auto* close = std::get_if<CloseSession>(&decision)) {
    return absl::StrCat("close ", workers.at(close->session), " ", close->status.ToString(), "\n");
  }
  const auto& reply = std::get<Reply>(decision);
  return absl::StrCat("reply ", reply.status.ToString(), " ", reply.job, reply.existed ? " (existed)" : "", "\n");
}

std::string JobText(const v1::Job& view) {
  std::string text =
      absl::StrCat(view.id(), " ", v1::Phase_Name(view.phase()), " \"", view.reason(), "\" step ", view.step(), "/",
                   view.max_steps(), " attempt ", view.attempt(), " restarts ", view.restarts_size(), "\n");
  for (const v1::Restart& restart : view.restarts()) absl::StrAppend(&text, "  restart: ", restart.cause(), "\n");
  for (const v1::Checkpoint& checkpoint : view.checkpoints())
    absl::StrAppend(&text, "  checkpoint: ", checkpoint.name(), "\n");
  if (view.has_checkpoint_failure()) {
    absl::StrAppend(&text, "  no checkpoint since ", view.checkpoint_failure().since_time(), ": ",
                    view.checkpoint_failure().message(), "\n");
  }
  if (view.failure_code() != 0) absl::StrAppend(&text, "  ", v1::FailureCode_Name(view.failure_code()), "\n");
  if (view.report_pending()) absl::StrAppend(&text, "  its page is awaited\n");
  for (const std::string& line : view.last_log_lines()) absl::StrAppend(&text, "  log: ", line, "\n");
  return text;
}

}  // namespace tacc::coordinator
