#include "graph/import/finetune/adapter_folder.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/json_file.h"
#include "graph/import/weights.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "nlohmann/json.hpp"
#include "text/utf8.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxListed = 20;
// Before the name that a tensor has in the model.
constexpr char kPrefix[] = "base_model.model.";

// Keys that say nothing of what is computed.
const std::set<std::string>& HarmlessKeys() {
  static const std::set<std::string> kKeys = {
      "auto_mapping",   "peft_version",        "revision",          "inference_mode", "task_type",
      "peft_type",      "megatron_core",       "qalora_group_size", "loftq_config",   "base_model_name_or_path",
      "runtime_config", "ensure_weight_tying", "fan_in_fan_out"};  // the last follows from the model
  return kKeys;
}

// Ways to begin an adapter that leave the base as it is. All others (pissa, olora, corda, loftq, ...) change the base's
// weights: what was trained is then not this base and the adapter, and peft changes the base again when it reads it.
bool LeavesBase(const json& init) {
  static const std::set<std::string> kNames = {"gaussian", "orthogonal", "eva", "mica"};
  return init.is_boolean() || (init.is_string() && kNames.count(init.get<std::string>()) > 0);
}

bool IsEmpty(const json& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_object() || value.is_array()) && value.empty());
}

// As a message shows it.
std::string Shown(const std::string& text) {
  constexpr size_t kMaxShownBytes = 80;
  return text.size() > kMaxShownBytes ? absl::StrCat(ValidUtf8(text, kMaxShownBytes), "...") : text;
}

// The values of adapter_config.json; the first problem sticks.
class ConfigValues {
 public:
  ConfigValues(const json& config, std::string path) : config_(config), path_(std::move(path)) {}

  void GetRank(int64_t* out) {
    const json* value = Find("r");
    if (value == nullptr) return;
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 || value->get<uint64_t>() > kMaxRank)
      return Wrong("r", *value, absl::StrCat("a whole number from 1 to ", kMaxRank));
    *out = static_cast<int64_t>(value->get<uint64_t>());
  }
  void GetAlpha(double* out) {
    const json* value = Find("lora_alpha");
    if (value == nullptr) return;
    if (!value->is_number() || value->get<double>() <= 0 || value->get<double>() > kMaxAlpha)
      return Wrong("lora_alpha", *value, absl::StrCat("a number of more than 0 and at most ", kMaxAlpha));
    *out = value->get<double>();
  }
  void GetDropout(double* out) {
    const json* value = Find("lora_dropout");
    if (value == nullptr) return;
    if (!value->is_number() || value->get<double>() < 0 || value->get<double>() >= 1)
      return Wrong("lora_dropout", *value, "a number of at least 0 and less than 1");
    *out = value->get<double>();
  }
  void Get(const char* key, bool* out) {
    if (const json* value = Find(key)) {
      if (!value->is_boolean()) return Wrong(key, *value, "true or false");
      *out = value->get<bool>();
    }
  }
  void Get(const char* key, std::vector<std::string>* out) {
    if (const json* value = Find(key)) {
      const std::string wanted = absl::StrCat("a list of names of at most ", kMaxNameBytes, " bytes");
      if (!value->is_array()) return Wrong(key, *value, wanted);
      for (const json& name : *value) {
        if (!name.is_string() || name.get<std::string>().size() > kMaxNameBytes) return Wrong(key, *value, wanted);
        out->push_back(name.get<std::string>());
      }
    }
  }
  std::string Text(const char* key) {
    const json* value = Find(key);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }
  void RefuseChangedBase() {
    const json* init = Find("init_lora_weights");
    if (init == nullptr || LeavesBase(*init)) return;
    Fail(absl::StrCat("init_lora_weights = ", Shown(init->dump()),
                      " changes the base's weights; save the adapter as one of the unchanged base, with peft's "
                      "save_pretrained(path_initial_model_for_weight_conversion=...), or give the changed base as "
                      "model.path and write true here"));
  }
  // What was not asked for.
  void RefuseOthers() {
    for (const auto& item : config_.items()) {
      if (asked_.count(item.key()) > 0 || HarmlessKeys().count(item.key()) > 0 || IsEmpty(item.value())) continue;
      Fail(absl::StrCat(Shown(item.key()), " = ", Shown(item.value().dump()),
                        " is not supported; to begin with what the adapter has learned, give the base into which "
                        "peft's merge_and_unload has put it as model.path"));
    }
  }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
  }
  const absl::Status& status() const { return status_; }

 private:
  // The bounds of train.lora in the job.
  static constexpr uint64_t kMaxRank = 65536;
  static constexpr double kMaxAlpha = 1e6;
  static constexpr size_t kMaxNameBytes = 4096;

  const json* Find(const char* key) {
    asked_.insert(key);
    const auto it = config_.find(key);
    return it == config_.end() || it->is_null() ? nullptr : &*it;
  }
  void Wrong(const char* key, const json& value, const std::string& wanted) {
    Fail(absl::StrCat(key, " = ", Shown(value.dump()), "; wanted ", wanted));
  }

  const json& config_;
  const std::string path_;
  std::set<std::string> asked_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<AdapterFolder> ReadAdapterFolder(const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/adapter_config.json");
  absl::StatusOr<json> read = ReadJsonFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(read.status())) {
    return absl::NotFoundError(absl::StrCat("train.lora.init_from: ", dir,
                                            " has no adapter_config.json; give the "
                                            "folder of an adapter as peft's save_pretrained writes it"));
  }
  TACC_ASSIGN_OR_RETURN(const json config, std::move(read));
  if (!config.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": wanted an object"));
  ConfigValues values(config, path);
  AdapterFolder folder;
  if (const std::string type = values.Text("peft_type"); type != "LORA")
    values.Fail(absl::StrCat("peft_type is \"", Shown(type), "\"; wanted an adapter of type LORA"));
  values.GetRank(&folder.options.r);
  values.GetAlpha(&folder.options.alpha);
  values.GetDropout(&folder.options.dropout);
  values.Get("use_rslora", &folder.options.use_rslora);
  values.Get("target_modules", &folder.options.target_modules);
  values.Get("modules_to_save", &folder.options.modules_to_save);
  folder.base = values.Text("base_model_name_or_path");
  values.RefuseChangedBase();
  values.RefuseOthers();
  TACC_RETURN_IF_ERROR(values.status());
  return folder;
}

absl::Status CheckAdapterTensors(const std::string& dir, const Graph& adapted) {
  constexpr char kFile[] = "adapter_model.safetensors";
  std::error_code ignored;
  if (!std::filesystem::exists(absl::StrCat(dir, "/", kFile), ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, " has no ", kFile, "; save the adapter with peft's save_pretrained, which writes one"));
  }
  TACC_ASSIGN_OR_RETURN(const StoredWeights stored, ReadStoredFile(dir, kFile));
  std::map<std::string, Dims> wanted;
  for (WantedTensor& tensor : WantedTensors(adapted, [](const Node& param) {
         return GetAttr<std::string>(param.attrs, "role") != Name(WeightRole::kFrozen);
       })) {
    wanted.emplace(absl::StrCat(kPrefix, tensor.name), std::move(tensor.dims));
  }
  std::vector<std::string> problems;
  for (const auto& [name, dims] : wanted) {
    const auto it = stored.tensors.find(name);
    if (it == stored.tensors.end()) {
      problems.push_back(absl::StrCat("has no tensor \"", name, "\" ", DimsToString(dims)));
    } else if (it->second.dims != dims) {
      problems.push_back(absl::StrCat("tensor \"", name, "\" is ", DimsToString(it->second.dims),
                                      ", the model's would be ", DimsToString(dims)));
    } else if (!IsOfWeights(it->second.dtype)) {
      problems.push_back(absl::StrCat("tensor \"", name, "\" is ", it->second.dtype, "; wanted ", kWeightTypes));
    }
  }
  for (const auto& [name, tensor] : stored.tensors) {
    if (wanted.count(name) == 0)
      problems.push_back(absl::StrCat("tensor \"", name, "\" is of no module that adapter_config.json names"));
  }
  if (problems.empty()) return absl::OkStatus();
  if (problems.size() > kMaxListed) problems.resize(kMaxListed);
  for (std::string& problem : problems) problem = absl::StrCat(dir, "/", kFile, " does not fit this model: ", problem);
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

std::string AdapterConfigJson(const LoraOptions& options, bool transposed) {
  json config = {{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"r", options.r},
                 {"lora_alpha", options.alpha},
                 {"lora_dropout", options.dropout},
                 {"use_rslora", options.use_rslora},
                 {"target_modules", options.target_modules},
                 {"bias", "none"},
                 {"fan_in_fan_out", transposed},
                 {"init_lora_weights", true},
                 {"inference_mode", true}};
  if (options.alpha == std::floor(options.alpha)) config["lora_alpha"] = static_cast<int64_t>(options.alpha);
  config["modules_to_save"] = options.modules_to_save.empty() ? json(nullptr) : json(options.modules_to_save);
  return config.dump();
}

}  // namespace tacc::graph
