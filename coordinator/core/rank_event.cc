#include "coordinator/core/rank_event.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "protocol/rank_events.h"

namespace tacc::coordinator {
namespace {

// Reads fields and remembers the first that is wrong.
class Fields {
 public:
  explicit Fields(const nlohmann::json& object) : object_(object) {}

  std::string String(const char* key) {
    auto it = object_.find(key);
    if (it != object_.end() && it->is_string()) return it->get<std::string>();
    Fail(key, "a string");
    return "";
  }
  double Double(const char* key) {
    auto it = object_.find(key);
    if (it != object_.end() && it->is_number()) return it->get<double>();
    // JSON has no infinities: a rank that has none to write gives null or a word.
    if (it != object_.end() && (it->is_null() || it->is_string())) return std::numeric_limits<double>::quiet_NaN();
    Fail(key, "a number");
    return 0;
  }
  int64_t Int(const char* key) {
    auto it = object_.find(key);
    if (it != object_.end() && it->is_number_integer()) return it->get<int64_t>();
    Fail(key, "a whole number");
    return 0;
  }
  bool Bool(const char* key) {
    auto it = object_.find(key);
    if (it != object_.end() && it->is_boolean()) return it->get<bool>();
    Fail(key, "true or false");
    return false;
  }
  // The objects of a list.
  std::vector<nlohmann::json> Objects(const char* key) {
    const auto it = object_.find(key);
    if (it != object_.end() && it->is_array() &&
        std::all_of(it->begin(), it->end(), [](const nlohmann::json& entry) { return entry.is_object(); })) {
      return *it;
    }
    Fail(key, "a list of objects");
    return {};
  }
  // Takes over what was wrong in a part of the object.
  void Take(const std::string& error) {
    if (error_.empty()) error_ = error;
  }
  bool Has(const char* key) const { return object_.contains(key); }
  const std::string& error() const { return error_; }

 private:
  void Fail(const char* key, const char* wanted) {
    if (error_.empty()) error_ = absl::StrCat("\"", key, "\" must be ", wanted);
  }
  const nlohmann::json& object_;
  std::string error_;
};

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using protocol::CheckpointEvent;
using protocol::ExportedEvent;
using protocol::FailedEvent;
using protocol::FinishedEvent;
using protocol::ListeningEvent;
using protocol::LogEvent;
using protocol::ReadyEvent;
using protocol::ReportEvent;
using protocol::StoppedEvent;
using protocol::TraceEvent;
using protocol::WarningEvent;

// What parts of events that are messages must have; whatever else the message declares may be absent. A further field
// of such an event is declared in the message alone.
const std::set<std::string>& Required(const Message& message) {
  static const std::map<std::string, std::set<std::string>> required = {
      {"StepMetrics",
       {"loss", "grad_norm", "learning_rate", "tokens", "target_tokens", "seconds", "data_wait_seconds",
        "communication_seconds", "tokens_per_second"}},
      {"EvalMetrics", {"step", "eval_loss", "target_tokens", "seconds"}},
      {"AttentionChoice", {"shape", "backend", "timings"}},
      {"AttentionTiming", {"backend"}},
      {"ProductChoice", {"shape", "algorithm"}}};
  return required.at(std::string(message.GetDescriptor()->name()));
}

// Sets the fields that the event has by their names. What the coordinator itself counts is not the rank's to say.
void ReadMessage(Fields& fields, Message* message) {
  static const std::set<std::string> coordinators = {"attempt", "mfu"};
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const std::set<std::string>& required = Required(*message);
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    const std::string name(field->name());
    if (coordinators.count(name) > 0 || (!fields.Has(name.c_str()) && required.count(name) == 0)) continue;
    if (field->is_repeated()) {
      for (const nlohmann::json& object : fields.Objects(name.c_str())) {
        Fields of_part(object);
        ReadMessage(of_part, reflection.AddMessage(message, field));
        fields.Take(of_part.error());
      }
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(message, field, fields.Double(name.c_str()));
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        reflection.SetInt32(message, field, static_cast<int>(fields.Int(name.c_str())));
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(message, field, fields.Int(name.c_str()));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(message, field, fields.Bool(name.c_str()));
        break;
      default:
        reflection.SetString(message, field, fields.String(name.c_str()));
    }
  }
}

template <typename Part>
void ReadParts(const std::vector<nlohmann::json>& objects, Fields& fields, std::vector<Part>& parts) {
  for (const nlohmann::json& object : objects) {
    Fields of_part(object);
    ReadMessage(of_part, &parts.emplace_back());
    fields.Take(of_part.error());
  }
}

// The event that `json` holds; what is wrong with it `fields` has.
template <protocol::DeclaredEvent Event>
Event Read(const nlohmann::json& json, Fields& fields) {
  absl::StatusOr<Event> event = protocol::ReadEvent<Event>(json);
  if (event.ok()) return *std::move(event);
  fields.Take(std::string(event.status().message()));
  return Event();
}

}  // namespace

absl::StatusOr<RankEvent> ParseRankEvent(const std::string& line) {
  const nlohmann::json json = ParseJson(line);
  if (!json.is_object()) return absl::InvalidArgumentError("a rank's event is not a JSON object");
  Fields fields(json);
  RankEvent event;
  event.event = fields.String("event");
  event.time = fields.Double("time");
  if (fields.Has("step")) event.step = fields.Int("step");
  const std::string& name = event.event;
  if (name == ListeningEvent::kName) {
    ListeningEvent listening = Read<ListeningEvent>(json, fields);
    event.port = listening.port;
    event.file = std::move(listening.file);
    event.secret = std::move(listening.secret);
  } else if (name == ReadyEvent::kName) {
    ReadyEvent ready = Read<ReadyEvent>(json, fields);
    event.resumed_from = ready.resumed_from;
    event.arena_bytes = ready.arena_bytes;
    event.device_memory_used_bytes = ready.device_memory_used_bytes;
    event.load_seconds = ready.load_seconds;
    event.endpoint.set_local(ready.client_local);
    event.endpoint.set_host(ready.client_host);
    event.endpoint.set_port(ready.client_port);
    event.endpoint.set_token(ready.client_token);
    ReadParts(ready.attention, fields, event.attention);
    ReadParts(ready.products, fields, event.products);
  } else if (name == protocol::kStepEvent) {
    event.step = fields.Int("step");
    ReadMessage(fields, &event.metrics);
  } else if (name == protocol::kEvalEvent) {
    ReadMessage(fields, &event.eval);
  } else if (name == CheckpointEvent::kName) {
    const CheckpointEvent written = Read<CheckpointEvent>(json, fields);
    event.path = written.path;
    event.checkpoint.set_name(written.path);
    event.checkpoint.set_step(written.step);
    event.checkpoint.set_size_bytes(written.bytes);
    event.checkpoint.set_seconds(written.seconds);
    event.checkpoint.set_stall_seconds(written.stall_seconds);
    event.checkpoint.set_time(event.time);
  } else if (name == WarningEvent::kName) {
    const WarningEvent warning = Read<WarningEvent>(json, fields);
    event.code = warning.code;
    event.message = warning.message;
  } else if (name == FailedEvent::kName) {
    const FailedEvent failed = Read<FailedEvent>(json, fields);
    event.code = failed.code;
    event.message = failed.message;
  } else if (name == TraceEvent::kName) {
    event.path = Read<TraceEvent>(json, fields).path;
  } else if (name == ExportedEvent::kName) {
    event.path = Read<ExportedEvent>(json, fields).path;
  } else if (name == ReportEvent::kName) {
    event.path = Read<ReportEvent>(json, fields).path;
  } else if (name == LogEvent::kName) {
    event.message = Read<LogEvent>(json, fields).message;
  } else if (name == FinishedEvent::kName) {
    (void)Read<FinishedEvent>(json, fields);
  } else if (name == StoppedEvent::kName) {
    event.message = Read<StoppedEvent>(json, fields).reason;
  }
  if (!fields.error().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a rank's event \"", event.event, "\": ", fields.error()));
  }
  return event;
}

}  // namespace tacc::coordinator
