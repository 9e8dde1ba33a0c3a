#include "graph/import/import.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "graph/import/config_parts.h"
#include "graph/import/decoder/decoder.h"
#include "graph/import/families.h"
#include "graph/import/json_file.h"
#include "graph/import/model_facts.h"
#include "graph/import/weights.h"
#include "graph/ir/program.h"
#include "graph/ir/status_macros.h"
#include "machine/tacc_python.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;  // checkpoints hold it

// Every line of the message with the folder before it.
absl::Status InFolder(const std::string& dir, const absl::Status& status) {
  std::string message;
  const std::string text(status.message());
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    absl::StrAppend(&message, message.empty() ? "" : "\n", dir, "/", text.substr(begin, end - begin));
    begin = end + 1;
  }
  return absl::Status(status.code(), message);
}

// Some files leave the base model's prefix out of their names, as "h.0.mlp..." for "transformer.h.0.mlp...". Returns
// what is left out.
std::string MatchNames(const StoredWeights& stored, DecoderNames* names) {
  if (names->base.empty() || stored.tensors.count(absl::StrCat(names->embedding, ".weight")) > 0) return "";
  const std::string bare(absl::StripPrefix(names->embedding, names->base));
  if (stored.tensors.count(absl::StrCat(bare, ".weight")) == 0) return "";
  for (std::string* name : {&names->embedding, &names->embedding_norm, &names->positions, &names->layer,
                            &names->final_norm, &names->head}) {
    *name = std::string(absl::StripPrefix(*name, names->base));
  }
  return names->base;
}

// Whether the tensor is of a layer behind the model's last.
bool IsBehindLayers(const std::string& name, const DecoderSpec& spec, const Family& family) {
  for (int64_t i = 0; i < family.layers_behind; ++i) {
    if (absl::StartsWith(name, absl::StrCat(spec.LayerPath(spec.num_layers + i), "."))) return true;
  }
  return false;
}

// Which matrix the head is, by the weights that are there.
// Source: transformers 5.23, PreTrainedModel.tie_weights.
absl::Status DecideHead(const std::string& dir, const StoredWeights& stored, const ImportOptions& options,
                        DecoderSpec* spec, ImportedModel* model) {
  if (spec->head != DecoderSpec::kTiedHead || !spec->stored_head_counts) return absl::OkStatus();
  const std::string names[] = {absl::StrCat(spec->names.embedding, ".weight"),
                               absl::StrCat(spec->names.head, ".weight")};
  const auto embedding = stored.tensors.find(names[0]), head = stored.tensors.find(names[1]);
  if (head == stored.tensors.end()) return absl::OkStatus();
  if (embedding == stored.tensors.end()) {
    spec->stored_as_head = true;
    return absl::OkStatus();
  }
  model->own_head = options.own_head;
  if (!model->own_head.has_value()) {
    TACC_ASSIGN_OR_RETURN(const bool are_equal, AreEqual(dir, embedding->second, head->second));
    model->own_head = !are_equal;
  }
  if (!*model->own_head) return absl::OkStatus();
  spec->head = DecoderSpec::kOwnHead;
  model->notes.push_back(absl::StrCat(
      dir, "/config.json says tie_word_embeddings = true, but ", names[0], " and ", names[1],
      " are stored with different values, so they are trained as two matrices, as transformers 5 does. Set "
      "tie_word_embeddings to false there, so that other programs load what is exported in the same way; or remove ",
      names[1], " from the files to tie them"));
  return absl::OkStatus();
}

absl::StatusOr<ImportOptions::Weights> DecideWeights(const std::string& dir, const ImportOptions& options,
                                                     const StoredWeights& stored) {
  if (options.weights == ImportOptions::Weights::kRandom) return ImportOptions::Weights::kRandom;
  if (stored.kind == StoredWeights::kSafetensors) return ImportOptions::Weights::kPretrained;
  if (stored.kind == StoredWeights::kPickledOnly) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, " has only pickled weights, which can run code when they are read. Convert them once:\n  ",
        WithTaccPython("python -m tacc convert "), ShellWord(dir), " --out ",
        ShellWord(absl::StrCat(dir, "-safetensors")), "\n  and use that folder, or set model.weights: random"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(dir, " has no model.safetensors; to train from scratch set model.weights: random"));
}

// Folders that people take for a model's.
absl::Status CheckIsModel(const std::string& dir) {
  std::error_code ignored;
  if (std::filesystem::exists(dir + "/config.json", ignored)) return absl::OkStatus();
  if (std::filesystem::exists(dir + "/adapter_config.json", ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir,
                     " is an adapter (LoRA), not a model; give its base model, and to go on with the adapter "
                     "train.lora.init_from: ",
                     dir));
  }
  std::vector<std::string> snapshots;
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/snapshots", ignored))
    snapshots.push_back(entry.path().string());
  std::sort(snapshots.begin(), snapshots.end());
  if (!snapshots.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(dir, " is a folder of the Hugging Face cache; the model is in ",
                                                   absl::StrJoin(snapshots, " or ")));
  }
  return absl::OkStatus();
}

// Keeps the elements of any activation inside int64.
absl::Status CheckTokens(const ImportOptions& options, const DecoderSpec& spec) {
  constexpr int64_t kMaxElements = int64_t{1} << 56;
  const int64_t width =
      std::max({spec.vocab_rows, spec.hidden_size, 2 * spec.intermediate_size,
                (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim,
                spec.experts.has_value() ? spec.experts->num_experts : 0,
                spec.experts.has_value() ? spec.experts->experts_per_token * spec.experts->intermediate_size : 0});
  if (options.seq_len <= kMaxElements / width / options.batch) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("batch = ", options.batch, " of seq_len = ", options.seq_len,
                                                 " tokens is too large for a model with rows of ", width));
}

std::string Architecture(const nlohmann::json& config, const Family& family) {
  if (const auto named = config.find("architectures"); named != config.end() && named->is_array()) {
    for (const nlohmann::json& name : *named) {
      if (IsLanguageModel(family, name.get<std::string>())) return name.get<std::string>();
    }
  }
  return family.architectures.front();
}

absl::Status CheckLayerClasses(const std::string& option, const std::vector<std::string>& asked,
                               const std::vector<std::string>& known, const std::string& family) {
  for (const std::string& name : asked) {
    if (std::count(known.begin(), known.end(), name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(option, ": \"", name, "\" is no class of family ", family,
                                                   " that can be a unit; wanted ", absl::StrJoin(known, " or ")));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImportedModel> ImportModel(const std::string& dir, const ImportOptions& options, const OpTable& ops) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) {
    return absl::NotFoundError(
        absl::StrCat(dir,
                     ": wanted the folder of a Hugging Face model, with config.json; `hf download ORG/NAME "
                     "--local-dir DIR` fetches one from the hub"));
  }
  if (options.batch < 1 || options.seq_len < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch = ", options.batch, ", seq_len = ", options.seq_len, "; wanted at least 1 each"));
  }
  TACC_RETURN_IF_ERROR(CheckIsModel(dir));
  ImportedModel model;
  const std::string config_path = absl::StrCat(dir, "/config.json");
  TACC_ASSIGN_OR_RETURN(model.config_json, ReadTextFile(config_path, kMaxConfigBytes));
  TACC_ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(model.config_json, config_path));
  absl::StatusOr<ReadFamily> read = ReadModelConfig(config, options.seq_len);
  if (!read.ok()) return InFolder(dir, read.status());
  DecoderSpec& spec = read->spec;
  TACC_RETURN_IF_ERROR(CheckTokens(options, spec));
  const std::vector<std::string>& classes = read->family.layer_classes;
  TACC_RETURN_IF_ERROR(CheckLayerClasses("dist.fsdp.wrap_layer_cls", options.wrap_layer_cls, classes, spec.family));
  TACC_RETURN_IF_ERROR(CheckLayerClasses("memory.gc_cls", options.gc_cls, classes, spec.family));

  StoredWeights stored;
  if (options.weights != ImportOptions::Weights::kRandom) {
    TACC_ASSIGN_OR_RETURN(stored, ReadStoredWeights(dir));
  }
  for (const std::string& note : spec.notes) model.notes.push_back(absl::StrCat(dir, "/config.json: ", note));
  TACC_ASSIGN_OR_RETURN(model.weights, DecideWeights(dir, options, stored));
  if (model.weights == ImportOptions::Weights::kPretrained) {
    model.head_path = spec.names.head;
    model.base_prefix = MatchNames(stored, &spec.names);
    TACC_RETURN_IF_ERROR(DecideHead(dir, stored, options, &spec, &model));
  }

  if (model.weights == ImportOptions::Weights::kRandom && spec.init.input == NormalInit(0)) {
    return absl::InvalidArgumentError(absl::StrCat(config_path, ": ", spec.init.key,
                                                   " = 0: random weights would all be 0, from which nothing is "
                                                   "learned; wanted more than 0, as 0.02"));
  }

  DecoderBuildOptions build;
  build.batch = options.batch;
  build.seq_len = options.seq_len;
  build.dropout_seed = static_cast<int64_t>(options.seed & 0x7fffffffffffffff);
  build.outputs =
      options.outputs == ImportOptions::Outputs::kLoss ? DecoderBuildOptions::kLoss : DecoderBuildOptions::kLogits;
  TACC_ASSIGN_OR_RETURN(model.forward, BuildDecoder(spec, build, ops));

  for (const Node& node : model.forward.nodes) {
    if (node.op == Op::kParam) model.num_parameters += model.forward.type(node.results[0]).num_elements();
  }
  if (model.weights == ImportOptions::Weights::kPretrained) {
    WeightsCheck check;
    check.wanted = WantedTensors(model.forward, [](const Node&) { return true; });
    check.dtype = read->weights_dtype;
    check.ignorable = [&](const std::string& name) {
      // A head that is the embedding, and tables that older versions stored.
      return (spec.head == DecoderSpec::kTiedHead && name == absl::StrCat(spec.names.head, ".weight")) ||
             absl::EndsWith(name, ".inv_freq") || IsBehindLayers(name, spec, read->family) ||
             std::any_of(read->family.old_buffers.begin(), read->family.old_buffers.end(),
                         [&](const std::string& end) { return absl::EndsWith(name, end); });
    };
    const absl::Status status = CheckWeights(stored, check);
    if (!status.ok()) return InFolder(dir, status);
  }
  model.family = spec.family;
  model.architecture = Architecture(config, read->family);
  model.facts = ModelFacts(spec);
  model.fact_keys = FactKeys(model.facts, config);
  model.vocab_size = spec.vocab_rows;
  model.num_layers = spec.num_layers;
  model.max_seq_len = spec.max_seq_len;
  model.layer_classes = read->family.layer_classes;
  model.residual_module = spec.names.embedding;
  model.head_module = spec.names.head;
  if (model.head_path.empty()) model.head_path = spec.names.head;
  model.renamed_modules = read->family.renamed_modules;
  model.taken_for_experts = read->family.taken_for_experts;
  model.lora_targets = read->family.lora_targets;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) model.units.push_back(spec.LayerPath(layer));
  return model;
}

}  // namespace tacc::graph
