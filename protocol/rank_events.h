// What a rank says on its stdout: events, one JSON object a line, which its daemon passes on to the coordinator. Each
// has the key `event`, its name, and `time`, in seconds since the epoch. docs/contracts.md says what they mean.
#ifndef TACC_PROTOCOL_RANK_EVENTS_H_
#define TACC_PROTOCOL_RANK_EVENTS_H_

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "protocol/field.h"
#include "protocol/json_values.h"

namespace tacc::protocol {

// Points of the training's metrics. Their fields are those of StepMetrics and EvalMetrics in proto/tacc/v1/, by name.
inline constexpr char kStepEvent[] = "step";
inline constexpr char kEvalEvent[] = "eval";

struct StartedEvent {
  static constexpr char kName[] = "started";
  int64_t pid = 0;
  std::string version;
};
struct ListeningEvent {
  static constexpr char kName[] = "listening";
  int port = 0;
  std::string file;    // In place of a port, for ranks of this machine.
  std::string secret;  // Of this attempt's ranks alone.
};
struct ReadyEvent {
  static constexpr char kName[] = "ready";
  int64_t step = 0;  // done before
  std::string resumed_from;
  double load_seconds = 0;
  int64_t arena_bytes = 0;
  int64_t device_memory_used_bytes = 0;
  std::vector<nlohmann::json> attention;  // AttentionChoice of the API
  std::vector<nlohmann::json> products;   // ProductChoice of the API
  std::vector<nlohmann::json> capture;
  // Of a job whose data a client sends: where this rank listens for it, and what it must show.
  std::string client_local;
  std::string client_host;
  int client_port = 0;
  std::string client_token;
};
struct CheckpointEvent {
  static constexpr char kName[] = "checkpoint";
  int64_t step = 0;
  std::string path;  // Its name in checkpoint.dir.
  int64_t bytes = 0;
  double seconds = 0;
  double stall_seconds = 0;
};
struct TraceEvent {
  static constexpr char kName[] = "trace";
  int64_t step = 0;
  std::string path;
};
struct ReportEvent {
  static constexpr char kName[] = "report";
  std::string path;
};
struct ExportedEvent {
  static constexpr char kName[] = "exported";
  std::string path;
};
// For the daemon, which answers with the command `fetched`.
struct FetchEvent {
  static constexpr char kName[] = "fetch";
  std::string upload;  // Its id.
};
struct WarningEvent {
  static constexpr char kName[] = "warning";
  std::string code;
  std::string message;
};
struct FailedEvent {
  static constexpr char kName[] = "failed";
  std::string code;
  std::string message;
};
struct LogEvent {
  static constexpr char kName[] = "log";
  std::string level = "info";
  std::string message;
};
struct FinishedEvent {
  static constexpr char kName[] = "finished";
  int64_t step = 0;
};
struct StoppedEvent {
  static constexpr char kName[] = "stopped";
  int64_t step = 0;
  std::string reason;  // Why it stopped by itself; empty: it was told to.
};

// A field of an event. kDefaulted and kSparse as of the start file's.
template <typename Event, typename T>
struct EventField {
  const char* name;
  T Event::*member;
  Presence presence = Presence::kRequired;
};
template <typename Event, typename T>
EventField(const char*, T Event::*) -> EventField<Event, T>;
template <typename Event, typename T>
EventField(const char*, T Event::*, Presence) -> EventField<Event, T>;

// The one declaration of each event's fields.
template <typename Event>
inline constexpr auto kEventFields = std::tuple<>();
template <>
inline constexpr auto kEventFields<StartedEvent> =
    std::make_tuple(EventField{"pid", &StartedEvent::pid}, EventField{"version", &StartedEvent::version});
template <>
inline constexpr auto kEventFields<ListeningEvent> = std::make_tuple(
    EventField{"port", &ListeningEvent::port}, EventField{"file", &ListeningEvent::file, Presence::kSparse},
    EventField{"secret", &ListeningEvent::secret, Presence::kSparse});
template <>
inline constexpr auto kEventFields<ReadyEvent> = std::make_tuple(
    EventField{"step", &ReadyEvent::step}, EventField{"resumed_from", &ReadyEvent::resumed_from, Presence::kDefaulted},
    EventField{"load_seconds", &ReadyEvent::load_seconds, Presence::kDefaulted},
    EventField{"arena_bytes", &ReadyEvent::arena_bytes, Presence::kDefaulted},
    EventField{"device_memory_used_bytes", &ReadyEvent::device_memory_used_bytes, Presence::kSparse},
    EventField{"attention", &ReadyEvent::attention, Presence::kSparse},
    EventField{"products", &ReadyEvent::products, Presence::kSparse},
    EventField{"capture", &ReadyEvent::capture, Presence::kSparse},
    EventField{"client_local", &ReadyEvent::client_local, Presence::kSparse},
    EventField{"client_host", &ReadyEvent::client_host, Presence::kSparse},
    EventField{"client_port", &ReadyEvent::client_port, Presence::kSparse},
    EventField{"client_token", &ReadyEvent::client_token, Presence::kSparse});
template <>
inline constexpr auto kEventFields<CheckpointEvent> =
    std::make_tuple(EventField{"step", &CheckpointEvent::step}, EventField{"path", &CheckpointEvent::path},
                    EventField{"bytes", &CheckpointEvent::bytes}, EventField{"seconds", &CheckpointEvent::seconds},
                    EventField{"stall_seconds", &CheckpointEvent::stall_seconds});
template <>
inline constexpr auto kEventFields<TraceEvent> =
    std::make_tuple(EventField{"step", &TraceEvent::step}, EventField{"path", &TraceEvent::path});
template <>
inline constexpr auto kEventFields<ReportEvent> = std::make_tuple(EventField{"path", &ReportEvent::path});
template <>
inline constexpr auto kEventFields<ExportedEvent> = std::make_tuple(EventField{"path", &ExportedEvent::path});
template <>
inline constexpr auto kEventFields<FetchEvent> = std::make_tuple(EventField{"upload", &FetchEvent::upload});
template <>
inline constexpr auto kEventFields<WarningEvent> =
    std::make_tuple(EventField{"code", &WarningEvent::code}, EventField{"message", &WarningEvent::message});
template <>
inline constexpr auto kEventFields<FailedEvent> =
    std::make_tuple(EventField{"code", &FailedEvent::code}, EventField{"message", &FailedEvent::message});
template <>
inline constexpr auto kEventFields<LogEvent> = std::make_tuple(
    EventField{"level", &LogEvent::level, Presence::kDefaulted}, EventField{"message", &LogEvent::message});
template <>
inline constexpr auto kEventFields<FinishedEvent> = std::make_tuple(EventField{"step", &FinishedEvent::step});
template <>
inline constexpr auto kEventFields<StoppedEvent> = std::make_tuple(
    EventField{"step", &StoppedEvent::step}, EventField{"reason", &StoppedEvent::reason, Presence::kSparse});

template <typename Event>
concept DeclaredEvent = requires { Event::kName; };

// The event as JSON, without `time`.
template <DeclaredEvent Event>
nlohmann::json EventJson(const Event& event) {
  const Event unset;
  nlohmann::json json = {{"event", Event::kName}};
  ForEachField(kEventFields<Event>, [&](const auto& field) {
    if (field.presence == Presence::kSparse && event.*field.member == unset.*field.member) return;
    json[field.name] = event.*field.member;
  });
  return json;
}

// The event of this kind that an object holds; what is not declared is ignored. InvalidArgument: `"port" must be ...`,
// where a field is missing, of another type or out of range.
template <DeclaredEvent Event>
absl::StatusOr<Event> ReadEvent(const nlohmann::json& object) {
  Event event;
  absl::Status status;  // The first problem stays.
  ForEachField(kEventFields<Event>, [&](const auto& field) {
    const auto value = object.find(field.name);
    if (value == object.end() && field.presence != Presence::kRequired) return;
    const auto wanted =
        Take(value == object.end() ? nlohmann::json() : *value, Range::kNotNegative, &(event.*field.member));
    if (wanted.has_value())
      status.Update(absl::InvalidArgumentError(absl::StrCat("\"", field.name, "\" must be ", *wanted)));
  });
  if (!status.ok()) return status;
  return event;
}

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_RANK_EVENTS_H_
