#include "worker/rank/protocol/start_file.h"

#include "absl/strings/str_cat.h"
#include "machine/device_name.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxStartFileBytes = 16 << 20;

// Reads fields of one object; the first problem sticks.
class Fields {
 public:
  Fields(const json* object, std::string where, absl::Status* status)
      : object_(object), where_(std::move(where)), status_(status) {}

  Fields Object(const char* name) const {
    const json* value = Find(name);
    if (value != nullptr && !value->is_object()) Fail(name, "an object", *value);
    return Fields(value != nullptr && value->is_object() ? value : nullptr, absl::StrCat(where_, name, "."), status_);
  }

  std::string String(const char* name) const {
    const json* value = Find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) {
      Fail(name, "a string", *value);
      return "";
    }
    return value->get<std::string>();
  }

  int64_t Int(const char* name, int64_t least) const {
    const json* value = Find(name);
    if (value == nullptr) return least;
    if (!value->is_number_integer() || value->get<int64_t>() < least) {
      Fail(name, absl::StrCat("a whole number of at least ", least), *value);
      return least;
    }
    return value->get<int64_t>();
  }

  // One that may be absent: 0.
  int64_t IntOrZero(const char* name) const {
    return object_ == nullptr || !object_->contains(name) ? 0 : Int(name, 0);
  }

  uint64_t Unsigned(const char* name) const {
    const json* value = Find(name);
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) {
      Fail(name, "a whole number of at least 0", *value);
      return 0;
    }
    return value->get<uint64_t>();
  }

  bool Bool(const char* name) const {
    const json* value = Find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
      Fail(name, "true or false", *value);
      return false;
    }
    return value->get<bool>();
  }

  // One that may be absent: false.
  std::string StringOrEmpty(const char* name) const {
    return object_ != nullptr && object_->contains(name) ? String(name) : "";
  }
  bool BoolOrFalse(const char* name) const { return object_ != nullptr && object_->contains(name) && Bool(name); }

  double Positive(const char* name) const {
    const json* value = Find(name);
    if (value == nullptr) return 1;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      Fail(name, "a positive number", *value);
      return 1;
    }
    return value->get<double>();
  }

  // A number that may be absent: 0.
  double NumberOrZero(const char* name) const {
    if (object_ == nullptr || !object_->contains(name)) return 0;
    const json* value = Find(name);
    if (!value->is_number() || !(value->get<double>() >= 0)) Fail(name, "a number of at least 0", *value);
    return value->is_number() ? value->get<double>() : 0;
  }

  // An object of strings that may be absent.
  std::map<std::string, std::string> Strings(const char* name) const {
    std::map<std::string, std::string> strings;
    if (object_ == nullptr || !object_->contains(name)) return strings;
    const json* value = Find(name);
    if (!value->is_object()) {
      Fail(name, "an object", *value);
      return strings;
    }
    for (const auto& [key, text] : value->items()) {
      if (!text.is_string()) Fail(name, "an object of strings", *value);
      strings[key] = text.is_string() ? text.get<std::string>() : "";
    }
    return strings;
  }

  // An object that may be absent, as text.
  std::string ObjectText(const char* name) const {
    if (object_ == nullptr || !object_->contains(name)) return "{}";
    const json* value = Find(name);
    if (!value->is_object()) Fail(name, "an object", *value);
    return value->dump();
  }

  void Fail(const char* name, const std::string& wanted, const json& got) const {
    status_->Update(
        absl::InvalidArgumentError(absl::StrCat(where_, name, " is ", got.dump().substr(0, 80), "; wanted ", wanted)));
  }

 private:
  const json* Find(const char* name) const {
    if (object_ == nullptr) return nullptr;
    const auto it = object_->find(name);
    if (it != object_->end()) return &*it;
    status_->Update(absl::InvalidArgumentError(absl::StrCat(where_, name, " is missing")));
    return nullptr;
  }

  const json* object_;
  std::string where_;
  absl::Status* status_;
};

}  // namespace

absl::StatusOr<StartFile> ReadStartFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxStartFileBytes);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("start file: ", text.status().message()));
  const json root = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return absl::InvalidArgumentError(absl::StrCat("start file ", path, ": not a JSON object"));
  absl::Status status;
  const Fields fields(&root, absl::StrCat("start file ", path, ": "), &status);
  StartFile start;
  start.version = fields.String("version");
  start.job = fields.String("job");
  start.attempt = fields.Int("attempt", 1);
  start.rank = static_cast<int>(fields.Int("rank", 0));
  start.world = static_cast<int>(fields.Int("world", 1));
  start.device = fields.String("device");
  start.threads = static_cast<int>(fields.Int("threads", 1));
  start.memory_bytes = fields.Int("memory_bytes", 0);
  start.advertise = fields.String("advertise");
  start.program = fields.String("program");
  start.model_dir = fields.String("model_dir");
  const std::string weights = fields.String("weights");
  if (weights == "pretrained") {
    start.weights = StartFile::Weights::kPretrained;
  } else if (weights != "random") {
    fields.Fail("weights", "\"pretrained\" or \"random\"", weights);
  }
  start.seed = fields.Unsigned("seed");
  const Fields data = fields.Object("data");
  start.data_path = data.String("path");
  start.eval_path = data.String("eval_path");
  start.seq_len = data.Int("seq_len", 1);
  start.global_batch_size = data.Int("global_batch_size", 1);
  const Fields train = fields.Object("train");
  start.max_steps = train.Int("max_steps", 0);
  start.eval_steps = train.Int("eval_steps", 0);
  start.stop_if_stuck_steps = train.IntOrZero("stop_if_stuck_steps");
  start.deterministic = train.Bool("deterministic");
  if (root.contains("eval")) start.max_eval_batches = fields.Object("eval").Int("max_batches", 1);
  start.tf32 = fields.Object("compute").Bool("tf32");
  start.attention = fields.Strings("attention");
  start.products = fields.Strings("products");
  const Fields checkpoint = fields.Object("checkpoint");
  start.checkpoint_dir = checkpoint.String("dir");
  start.checkpoint_claimed = checkpoint.BoolOrFalse("claimed");
  start.service = checkpoint.StringOrEmpty("service");
  start.save_steps = checkpoint.Int("save_steps", 0);
  start.resume = checkpoint.String("resume");
  start.export_dir = checkpoint.String("export");
  if (root.contains("trace")) {
    const Fields trace = fields.Object("trace");
    start.trace_path = trace.String("path");
    start.trace_step = trace.Int("step", 1);
    start.predicted_trace = trace.StringOrEmpty("predicted");
  }
  if (root.contains("run")) {
    const Fields run = fields.Object("run");
    start.run = fields.ObjectText("run");
    start.flops_per_step = run.NumberOrZero("flops_per_step");
    start.peak_flops_per_second = run.NumberOrZero("peak_flops_per_second");
  }
  start.identity = fields.ObjectText("identity");
  start.collective_timeout_seconds = fields.Positive("collective_timeout_seconds");
  if (!status.ok()) return status;
  if (start.rank >= start.world) fields.Fail("rank", absl::StrCat("less than world = ", start.world), start.rank);
  if (!IsDevice(start.device)) fields.Fail("device", kDeviceNames, start.device);
  if (!IsGpu(start.device) && start.tf32) fields.Fail("compute.tf32", "false on a CPU, which has no TF32", true);
  if (!status.ok()) return status;
  return start;
}

}  // namespace tacc::worker
