#include "graph/import/finetune/finetune.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/finetune/adapter_folder.h"
#include "graph/import/finetune/freeze.h"
#include "graph/import/finetune/lora.h"
#include "graph/import/finetune/param_groups.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

std::string LastComponent(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

// Whether a base that is named `name`, by its path or by its name on the hub, may be the model in `path`.
bool MayBe(const std::string& name, const std::string& path) {
  std::error_code ignored;
  return name.empty() || LastComponent(name) == LastComponent(path) || std::filesystem::equivalent(name, path, ignored);
}

std::string Text(bool value) { return value ? "true" : "false"; }
std::string Text(int64_t value) { return absl::StrCat(value); }
std::string Text(double value) { return absl::StrCat(value); }

// Takes what the job gives. An adapter that exists has a value already, from which it may not differ.
template <typename T>
absl::Status Take(const char* option, const std::optional<T>& given, const std::string& from, T* value) {
  if (!given.has_value()) return absl::OkStatus();
  if (!from.empty() && *given != *value) {
    return absl::InvalidArgumentError(absl::StrCat("train.lora.", option, " = ", Text(*given), ", but the adapter in ",
                                                   from, " has ", Text(*value), "; leave it out"));
  }
  *value = *given;
  return absl::OkStatus();
}

absl::Status TakeNames(const char* option, const std::vector<std::string>& given, const std::string& from,
                       std::vector<std::string>* value) {
  if (given.empty()) return absl::OkStatus();
  const auto set_of = [](const std::vector<std::string>& names) {
    return std::set<std::string>(names.begin(), names.end());
  };
  if (!from.empty() && set_of(given) != set_of(*value)) {
    return absl::InvalidArgumentError(absl::StrCat("train.lora.", option, " = ", absl::StrJoin(given, ", "),
                                                   ", but the adapter in ", from, " has ", absl::StrJoin(*value, ", "),
                                                   "; leave it out"));
  }
  *value = given;
  return absl::OkStatus();
}

absl::Status ApplyLora(const LoraRequest& request, uint64_t seed, const std::string& model_path, const OpTable& ops,
                       ImportedModel& model) {
  LoraOptions options;
  const std::string& from = request.init_from;
  if (!from.empty()) {
    TACC_ASSIGN_OR_RETURN(const AdapterFolder folder, ReadAdapterFolder(from));
    if (!MayBe(folder.base, model_path)) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.lora.init_from: the adapter in ", from, " is of the base model ", folder.base,
                       " (base_model_name_or_path in its adapter_config.json), but model.path is ", model_path,
                       "; give that model, or, if it is the same under another name, correct that line"));
    }
    options = folder.options;
  }
  TACC_RETURN_IF_ERROR(Take("r", request.r, from, &options.r));
  TACC_RETURN_IF_ERROR(Take("lora_alpha", request.alpha, from, &options.alpha));
  TACC_RETURN_IF_ERROR(Take("use_rslora", request.use_rslora, from, &options.use_rslora));
  TACC_RETURN_IF_ERROR(TakeNames("target_modules", request.target_modules, from, &options.target_modules));
  TACC_RETURN_IF_ERROR(TakeNames("modules_to_save", request.modules_to_save, from, &options.modules_to_save));
  options.dropout = request.dropout.value_or(options.dropout);  // of the training, not of the adapter
  if (options.target_modules.empty()) options.target_modules = model.lora_targets;
  if (options.target_modules.empty()) options.target_modules = {kAllLinear};
  const LoraModel lora_model = {model.head_module,     model.head_path,
                                model.base_prefix,     static_cast<int64_t>(seed & 0x7fffffffffffffff),
                                model.renamed_modules, model.taken_for_experts};
  TACC_ASSIGN_OR_RETURN(const LoraModules modules, AddLora(options, lora_model, ops, model.forward));
  if (!from.empty()) TACC_RETURN_IF_ERROR(CheckAdapterTensors(from, model.forward));
  options.target_modules = modules.target_modules;
  options.modules_to_save = modules.modules_to_save;
  model.adapter_config = AdapterConfigJson(options, modules.transposed);
  return absl::OkStatus();
}

}  // namespace

absl::Status Finetune(const FinetuneRequest& request, const std::string& model_path, uint64_t dropout_seed,
                      const OpTable& ops, ImportedModel& model) {
  if (request.lora.has_value()) TACC_RETURN_IF_ERROR(ApplyLora(*request.lora, dropout_seed, model_path, ops, model));
  if (!request.freeze.empty()) TACC_RETURN_IF_ERROR(Freeze(request.freeze, model.forward));
  return request.param_groups.empty() ? absl::OkStatus() : ApplyParamGroups(request.param_groups, model.forward);
}

}  // namespace tacc::graph
