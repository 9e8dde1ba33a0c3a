#include "coordinator/core/rank_event.h"

#include <algorithm>
#include <cmath>
#include <limits>

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

void ReadStep(Fields& fields, RankEvent& event) {
  v1::StepMetrics& m = event.metrics;
  m.set_step(event.step);
  m.set_time(event.time);
  m.set_loss(fields.Double("loss"));
  m.set_grad_norm(fields.Double("grad_norm"));
  m.set_learning_rate(fields.Double("learning_rate"));
  m.set_tokens(fields.Int("tokens"));
  m.set_target_tokens(fields.Int("target_tokens"));
  m.set_seconds(fields.Double("seconds"));
  m.set_data_wait_seconds(fields.Double("data_wait_seconds"));
  m.set_communication_seconds(fields.Double("communication_seconds"));
  m.set_tokens_per_second(fields.Double("tokens_per_second"));
  m.set_skipped(fields.Has("skipped") ? static_cast<int>(fields.Int("skipped")) : 0);
  if (fields.Has("expert_overflow")) m.set_expert_overflow(fields.Int("expert_overflow"));
  if (fields.Has("device_idle_share")) m.set_device_idle_share(fields.Double("device_idle_share"));
  if (fields.Has("device_memory_used_bytes")) m.set_device_memory_used_bytes(fields.Int("device_memory_used_bytes"));
  if (fields.Has("loss_scale")) m.set_loss_scale(fields.Double("loss_scale"));
  if (fields.Has("batch_hash")) m.set_batch_hash(fields.String("batch_hash"));
}

void ReadAttention(Fields& fields, RankEvent& event) {
  for (const nlohmann::json& object : fields.Objects("attention")) {
    v1::AttentionChoice& choice = event.attention.emplace_back();
    Fields of_choice(object);
    choice.set_shape(of_choice.String("shape"));
    choice.set_backend(of_choice.String("backend"));
    for (const nlohmann::json& timing : of_choice.Objects("timings")) {
      Fields of_timing(timing);
      v1::AttentionTiming* out = choice.add_timings();
      out->set_backend(of_timing.String("backend"));
      if (of_timing.Has("forward_seconds")) out->set_forward_seconds(of_timing.Double("forward_seconds"));
      if (of_timing.Has("backward_seconds")) out->set_backward_seconds(of_timing.Double("backward_seconds"));
      if (of_timing.Has("refused")) out->set_refused(of_timing.String("refused"));
      of_choice.Take(of_timing);
    }
    fields.Take(of_choice);
  }
}

void ReadProducts(Fields& fields, RankEvent& event) {
  for (const nlohmann::json& object : fields.Objects("products")) {
    v1::ProductChoice& choice = event.products.emplace_back();
    Fields of_choice(object);
    choice.set_shape(of_choice.String("shape"));
    choice.set_algorithm(of_choice.String("algorithm"));
    if (of_choice.Has("seconds")) choice.set_seconds(of_choice.Double("seconds"));
    if (of_choice.Has("libtorch_seconds")) choice.set_libtorch_seconds(of_choice.Double("libtorch_seconds"));
    if (of_choice.Has("makeshift")) choice.set_makeshift(of_choice.Bool("makeshift"));
    fields.Take(of_choice);
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
    if (fields.Has("attention")) ReadAttention(fields, event);
    if (fields.Has("products")) ReadProducts(fields, event);
    if (fields.Has("load_seconds")) event.load_seconds = fields.Double("load_seconds");
  } else if (event.event == "step") {
    event.step = fields.Int("step");
    ReadStep(fields, event);
  } else if (event.event == "eval") {
    event.eval.set_step(fields.Int("step"));
    event.eval.set_time(event.time);
    event.eval.set_eval_loss(fields.Double("eval_loss"));
    event.eval.set_target_tokens(fields.Int("target_tokens"));
    event.eval.set_seconds(fields.Double("seconds"));
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
