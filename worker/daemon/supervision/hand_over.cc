// What one daemon tells the next, which takes its place beside a rank that runs on.
#include "nlohmann/json.hpp"
#include "worker/daemon/supervision/report_buffer.h"
#include "worker/daemon/supervision/supervisor.h"

namespace tacc::worker {

using Json = nlohmann::json;

void to_json(Json& json, const RankKey& key) { json = Json::array({key.job, key.attempt, key.rank}); }

void from_json(const Json& json, RankKey& key) {
  json.at(0).get_to(key.job);
  json.at(1).get_to(key.attempt);
  json.at(2).get_to(key.rank);
}

void to_json(Json& json, const ExitReport& exit) {
  json = {{"signal", exit.signal},
          {"last_log_lines", exit.last_log_lines},
          {"start_error", exit.start_error},
          {"killed", exit.killed}};
  if (exit.exit_code.has_value()) json["exit_code"] = *exit.exit_code;
}

void from_json(const Json& json, ExitReport& exit) {
  json.at("signal").get_to(exit.signal);
  json.at("last_log_lines").get_to(exit.last_log_lines);
  json.at("start_error").get_to(exit.start_error);
  json.at("killed").get_to(exit.killed);
  if (json.contains("exit_code")) exit.exit_code = json["exit_code"].get<int>();
}

NLOHMANN_JSON_SERIALIZE_ENUM(ReportKind, {{ReportKind::kEvent, "event"},
                                          {ReportKind::kStepMetric, "step"},
                                          {ReportKind::kLog, "log"},
                                          {ReportKind::kExit, "exit"}})

// Without the key, which is its stream's.
void to_json(Json& json, const Report& report) {
  json = {{"sequence", report.sequence}, {"time", report.time},           {"kind", report.kind},
          {"event", report.event},       {"log_lines", report.log_lines}, {"exit", report.exit}};
}

void from_json(const Json& json, Report& report) {
  json.at("sequence").get_to(report.sequence);
  json.at("time").get_to(report.time);
  json.at("kind").get_to(report.kind);
  json.at("event").get_to(report.event);
  json.at("log_lines").get_to(report.log_lines);
  json.at("exit").get_to(report.exit);
}

Json ReportBuffer::HandOver() const {
  Json streams = Json::array();
  for (const auto& [key, stream] : streams_) {
    Json reports = Json::array();
    for (const auto& [sequence, report] : stream.reports) reports.push_back(report);
    streams.push_back({{"key", key},
                       {"reports", std::move(reports)},
                       {"last_sequence", stream.last_sequence},
                       {"has_exited", stream.has_exited}});
  }
  return {{"streams", std::move(streams)}, {"forgotten", forgotten_}, {"num_dropped", num_dropped_}};
}

void ReportBuffer::TakeOver(const Json& handed) {
  for (const Json& of_rank : handed.at("streams")) {
    auto& [key, stream] = streams_.emplace_back(of_rank.at("key").get<RankKey>(), Stream());
    of_rank.at("last_sequence").get_to(stream.last_sequence);
    of_rank.at("has_exited").get_to(stream.has_exited);
    for (const Json& json : of_rank.at("reports")) {
      auto report = json.get<Report>();
      report.key = key;
      Keep(&stream, std::move(report));
    }
  }
  handed.at("forgotten").get_to(forgotten_);
  handed.at("num_dropped").get_to(num_dropped_);
}

bool Supervisor::CanHandOver() const {
  return !is_stopping_ && !stuck_.has_value() && !(running_.has_value() && kill_sent_) && !next_.has_value() &&
         !failure_.has_value();
}

Json Supervisor::HandOver() const {
  Json handed = {{"reports", reports_.HandOver()},    {"said_end", said_end_},
                 {"failed_message", failed_message_}, {"pending_logs", pending_logs_},
                 {"last_log_lines", last_log_lines_}, {"metrics", metrics_}};
  if (running_.has_value()) handed["running"] = *running_;
  return handed;
}

void Supervisor::TakeOver(const Json& handed) {
  reports_.TakeOver(handed.at("reports"));
  handed.at("said_end").get_to(said_end_);
  handed.at("failed_message").get_to(failed_message_);
  handed.at("pending_logs").get_to(pending_logs_);
  handed.at("last_log_lines").get_to(last_log_lines_);
  handed.at("metrics").get_to(metrics_);
  if (handed.contains("running")) running_ = handed["running"].get<RankKey>();
}

}  // namespace tacc::worker
