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
#include "nlohmann/json.hpp"

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
  void Take(const Fields& part) {
    if (error_.empty()) error_ = part.error_;
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
  return required.at(message.GetDescriptor()->name());
}

// Sets the fields that the event has by their names. What the coordinator itself counts is not the rank's to say.
void ReadMessage(Fields& fields, Message* message) {
  static const std::set<std::string> coordinators = {"attempt", "mfu"};
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const std::set<std::string>& required = Required(*message);
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    const std::string& name = field->name();
    if (coordinators.count(name) > 0 || (!fields.Has(name.c_str()) && required.count(name) == 0)) continue;
    if (field->is_repeated()) {
      for (const nlohmann::json& object : fields.Objects(name.c_str())) {
        Fields of_part(object);
        ReadMessage(of_part, reflection.AddMessage(message, field));
        fields.Take(of_part);
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
void ReadParts(Fields& fields, const char* key, std::vector<Part>& parts) {
  for (const nlohmann::json& object : fields.Objects(key)) {
    Fields of_part(object);
    ReadMessage(of_part, &parts.emplace_back());
    fields.Take(of_part);
  }
}

}  // namespace

absl::StatusOr<RankEvent> ParseRankEvent(const std::string& line) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("a rank's event is not a JSON object");
  Fields fields(json);
  RankEvent event;
  event.event = fields.String("event");
  event.time = fields.Double("time");
  if (fields.Has("step")) event.step = fields.Int("step");
  if (event.event == "listening") {
    event.port = static_cast<int>(fields.Int("port"));
  } else if (event.event == "ready") {
    event.step = fields.Int("step");
    if (fields.Has("resumed_from")) event.resumed_from = fields.String("resumed_from");
    if (fields.Has("arena_bytes")) event.arena_bytes = fields.Int("arena_bytes");
    if (fields.Has("device_memory_used_bytes")) event.device_memory_used_bytes = fields.Int("device_memory_used_bytes");
    if (fields.Has("attention")) ReadParts(fields, "attention", event.attention);
    if (fields.Has("products")) ReadParts(fields, "products", event.products);
    if (fields.Has("load_seconds")) event.load_seconds = fields.Double("load_seconds");
  } else if (event.event == "step") {
    event.step = fields.Int("step");
    ReadMessage(fields, &event.metrics);
  } else if (event.event == "eval") {
    ReadMessage(fields, &event.eval);
  } else if (event.event == "checkpoint") {
    event.path = fields.String("path");
    event.checkpoint.set_name(event.path);
    event.checkpoint.set_step(fields.Int("step"));
    event.checkpoint.set_size_bytes(fields.Int("bytes"));
    event.checkpoint.set_seconds(fields.Double("seconds"));
    event.checkpoint.set_stall_seconds(fields.Double("stall_seconds"));
    event.checkpoint.set_time(event.time);
  } else if (event.event == "warning" || event.event == "failed") {
    event.code = fields.String("code");
    event.message = fields.String("message");
  } else if (event.event == "trace") {
    event.step = fields.Int("step");
    event.path = fields.String("path");
  } else if (event.event == "exported" || event.event == "report") {
    event.path = fields.String("path");
  } else if (event.event == "log") {
    event.message = fields.String("message");
  } else if (event.event == "finished" || event.event == "stopped") {
    event.step = fields.Int("step");
  }
  if (!fields.error().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("a rank's event \"", event.event, "\": ", fields.error()));
  }
  return event;
}

}  // namespace tacc::coordinator
