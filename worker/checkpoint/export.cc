#include "worker/checkpoint/export.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export_record.h"
#include "worker/checkpoint/export_tensors.h"
#include "worker/checkpoint/files/folder_publication.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/identity.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/model_fingerprint.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {
namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr char kAdapterConfigName[] = "adapter_config.json";
constexpr char kGraphName[] = "model.graph";
// What describes a graph to those who exported it from PyTorch.
constexpr char kGraphDescriptionName[] = "export.json";
constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxGraphBytes = 1 << 30;

// What from_pretrained of a tokenizer reads.
constexpr const char* kTokenizerFiles[] = {
    "added_tokens.json",       "chat_template.jinja", "chat_template.json", "merges.txt",
    "sentencepiece.bpe.model", "spiece.model",        "tokenizer.json",     "tokenizer.model",
    "tokenizer_config.json",   "vocab.json",          "vocab.txt",          "special_tokens_map.json"};
// Of those, any one that makes a tokenizer.
constexpr const char* kVocabularies[] = {"sentencepiece.bpe.model", "spiece.model", "tokenizer.json",
                                         "tokenizer.model",         "vocab.json",   "vocab.txt"};

// Absolute, links followed, without a trailing slash. It need not be there.
std::filesystem::path FolderPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error).lexically_normal();
  std::filesystem::path folder = std::filesystem::weakly_canonical(absolute, error);
  if (error) folder = absolute;
  return folder.has_filename() ? folder : folder.parent_path();
}

bool IsOfTokenizer(const std::string& name) {
  return std::find(std::begin(kTokenizerFiles), std::end(kTokenizerFiles), name) != std::end(kTokenizerFiles);
}

// Beside config.json and the tokenizer.
bool IsOfModel(const std::string& name) { return name == "generation_config.json" || absl::EndsWith(name, ".py"); }

bool IsWritten(const std::string& name) {
  return name == "config.json" || name == kIndexName || name == kAdapterConfigName || name == kAdapterFileName ||
         name == kExportRecordName || name == kGraphName || name == kGraphDescriptionName || IsOfTokenizer(name) ||
         IsOfModel(name) || (absl::StartsWith(name, "model") && absl::EndsWith(name, ".safetensors"));
}

// Returns the safetensors dtype that config.json asks for.
absl::StatusOr<std::string> ConfigDtype(const nlohmann::ordered_json& config, const std::string& path) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    const std::string value = it->is_string() ? it->get<std::string>() : it->dump();
    const absl::string_view name = absl::StripPrefix(value, "torch.");
    if (name == "float32") return std::string("F32");
    if (name == "bfloat16") return std::string("BF16");
    if (name == "float16") return std::string("F16");
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", key, " is \"", value, "\"; weights can be exported as float32, bfloat16 or float16"));
  }
  return std::string("F32");
}

// The folder under way.
struct Output {
  std::string directory;
  std::vector<ManifestFile> files;  // Written so far.
};

absl::Status WriteText(const std::string& name, const std::string& text, Output* output) {
  absl::StatusOr<std::unique_ptr<OutputFile>> file = OutputFile::Create(absl::StrCat(output->directory, "/", name));
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(text.data(), text.size()); !status.ok()) return status;
  if (absl::Status status = (*file)->Finish(); !status.ok()) return status;
  output->files.push_back({name, (*file)->num_bytes(), (*file)->HexDigest()});
  return absl::OkStatus();
}

absl::Status CopyFiles(const std::string& directory, bool (*is_wanted)(const std::string&), Output* output) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!is_wanted(name)) continue;
    const absl::StatusOr<std::unique_ptr<InputFile>> source = InputFile::Open(absl::StrCat(directory, "/", name));
    if (!source.ok()) return source.status();
    std::string content((*source)->num_bytes(), '\0');
    absl::Status status = (*source)->Read(0, content.data(), (*source)->num_bytes());
    if (status.ok()) status = WriteText(name, content, output);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

struct ModelConfig {
  std::string text;
  std::string dtype = "F32";  // Of the weights, as in safetensors.
  bool changed = false;       // The model's folder has another one now.
};

// The config.json to export.
absl::StatusOr<ModelConfig> ChooseConfig(const CheckpointIdentity& identity, const ExportRequest& request) {
  const std::string path = absl::StrCat(request.model_dir, "/config.json");
  ModelConfig config;
  config.text = !request.config_json.empty() ? request.config_json : identity.config_json;
  const absl::StatusOr<std::string> now = ReadSmallFile(path, kMaxConfigBytes);
  if (config.text.empty()) {
    if (!now.ok()) return now.status();
    config.text = *now;
  }
  config.changed = now.ok() && *now != config.text;
  nlohmann::ordered_json json = ParseOrderedJson(config.text);
  if (!json.is_object()) return absl::UnavailableError(absl::StrCat(path, ": not a JSON object"));
  absl::StatusOr<std::string> dtype = ConfigDtype(json, path);
  if (!dtype.ok()) return dtype.status();
  config.dtype = *std::move(dtype);
  // The class of the model, where it has none.
  const std::string& architecture = identity.architecture;
  nlohmann::ordered_json& named = json["architectures"];
  if (architecture.empty() || (!named.is_null() && !named.empty())) return config;
  named = {architecture};
  config.text = json.dump(2) + "\n";
  return config;
}

bool HasChatTemplate(const std::string& tokenizer_dir) {
  std::error_code unseen;
  for (const char* name : {"chat_template.jinja", "chat_template.json"}) {
    if (std::filesystem::exists(absl::StrCat(tokenizer_dir, "/", name), unseen)) return true;
  }
  const absl::StatusOr<std::string> file = ReadSmallFile(tokenizer_dir + "/tokenizer_config.json", kMaxConfigBytes);
  const nlohmann::json config = ParseJson(file.value_or(""));
  return config.is_object() && config.contains("chat_template");
}

absl::Status WriteTokenizer(const CheckpointIdentity& identity, const ExportRequest& request, Output* output) {
  const std::string data_dir = request.data_dir.empty() ? identity.data_path : request.data_dir;
  const std::string tokenizer = FindTokenizer(request.model_dir, data_dir);
  // Without a vocabulary, a model's other files (a chat template) are of no other tokenizer.
  const std::string& source = tokenizer.empty() ? request.model_dir : tokenizer;
  if (source.empty()) return absl::OkStatus();
  if (absl::Status status = CopyFiles(source, IsOfTokenizer, output); !status.ok()) return status;
  // Conversations were prepared with the template that lies with the data where the model's tokenizer has none.
  const std::string prepared = data_dir + "/tokenizer";
  std::error_code unseen;
  if (data_dir.empty() || HasChatTemplate(source) || !std::filesystem::exists(prepared, unseen))
    return absl::OkStatus();
  return CopyFiles(prepared, [](const std::string& name) { return name == "chat_template.jinja"; }, output);
}

absl::Status WriteModelFiles(const CheckpointIdentity& identity, const ExportRequest& request,
                             const std::string& config, Output* output) {
  absl::Status status = WriteText("config.json", config, output);
  if (status.ok() && !request.model_dir.empty()) status = CopyFiles(request.model_dir, IsOfModel, output);
  return status.ok() ? WriteTokenizer(identity, request, output) : status;
}

// So that a job can train the exported folder's graph on.
absl::Status WriteGraph(const std::string& path, Output* output) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxGraphBytes);
  if (!text.ok()) return text.status();
  if (absl::Status status = WriteText(kGraphName, *text, output); !status.ok()) return status;
  return CopyFiles(
      FolderPath(path).parent_path().string(), [](const std::string& name) { return name == kGraphDescriptionName; },
      output);
}

// adapter_config.json as peft reads it.
absl::Status WriteAdapterFiles(const CheckpointIdentity& identity, const ExportRequest& request, Output* output) {
  nlohmann::json config = ParseJson(identity.adapter_config);
  if (!config.is_object()) return absl::InvalidArgumentError("the checkpoint's adapter_config is no JSON object");
  config["base_model_name_or_path"] = request.model_dir.empty() ? identity.model_path : request.model_dir;
  absl::Status status = WriteText(kAdapterConfigName, config.dump(2) + "\n", output);
  return status.ok() ? WriteTokenizer(identity, request, output) : status;
}

// Returns how many of the tensors go into each file: as many as fit, at least one.
std::vector<size_t> SplitIntoFiles(const std::vector<ExportTensor>& tensors, int64_t max_file_bytes) {
  std::vector<size_t> counts;
  int64_t file_bytes = 0;
  for (const ExportTensor& tensor : tensors) {
    if (counts.empty() || file_bytes + tensor.num_bytes > max_file_bytes) {
      counts.push_back(0);
      file_bytes = 0;
    }
    ++counts.back();
    file_bytes += tensor.num_bytes;
  }
  return counts;
}

absl::Status WriteTensors(const std::string& name, absl::Span<const ExportTensor> tensors,
                          const std::map<std::string, std::string>& metadata, Output* output) {
  std::vector<SafetensorsWriter::Tensor> declared;
  for (const ExportTensor& tensor : tensors) declared.push_back(tensor.tensor);
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer =
      SafetensorsWriter::Create(absl::StrCat(output->directory, "/", name), declared, metadata);
  if (!writer.ok()) return writer.status();
  for (const ExportTensor& tensor : tensors) {
    if (absl::Status status = AppendTensor(tensor, writer->get()); !status.ok()) return status;
  }
  const absl::StatusOr<FileHash> hash = (*writer)->Finish();
  if (!hash.ok()) return hash.status();
  output->files.push_back({name, hash->num_bytes, hash->sha256});
  return absl::OkStatus();
}

absl::Status WriteWeights(const std::vector<ExportTensor>& tensors, int64_t max_file_bytes, Output* output) {
  const std::vector<size_t> counts = SplitIntoFiles(tensors, max_file_bytes);
  nlohmann::json index;
  int64_t total_bytes = 0;
  size_t next = 0;
  for (size_t file = 0; file < counts.size(); ++file) {
    const std::string name = counts.size() == 1
                                 ? "model.safetensors"
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, counts.size());
    const absl::Span<const ExportTensor> here = absl::MakeConstSpan(tensors).subspan(next, counts[file]);
    if (absl::Status status = WriteTensors(name, here, {{"format", "pt"}}, output); !status.ok()) return status;
    for (const ExportTensor& tensor : here) {
      index["weight_map"][tensor.tensor.name] = name;
      total_bytes += tensor.num_bytes;
    }
    next += counts[file];
  }
  if (counts.size() == 1) return absl::OkStatus();
  index["metadata"]["total_size"] = total_bytes;
  return WriteText(kIndexName, index.dump(2) + "\n", output);
}

// Adapters, and what was trained beside them, as fp32 under peft's names; `base` is the fingerprint of their base.
absl::Status WriteAdapters(std::vector<ExportTensor> tensors, const std::string& base, Output* output) {
  for (ExportTensor& tensor : tensors) tensor.tensor.name = absl::StrCat(kAdapterPrefix, tensor.tensor.name);
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!base.empty()) metadata[kAdapterBaseKey] = base;
  return WriteTensors(kAdapterFileName, tensors, metadata, output);
}

// The weights that the checkpoint does not hold, which must be those that the training read.
absl::StatusOr<std::unique_ptr<ModelWeights>> OpenBase(const CheckpointIdentity& identity,
                                                       const ExportRequest& request) {
  std::error_code unseen;
  if (request.model_dir.empty() || !std::filesystem::is_directory(request.model_dir, unseen)) {
    return absl::InvalidArgumentError(absl::StrCat(
        request.checkpoint, " holds what was trained; the other weights are read from the model's folder, ",
        request.model_dir.empty() ? identity.model_path : request.model_dir,
        ", which is not there: say where it is (--model)"));
  }
  const absl::StatusOr<std::string> found = ModelFingerprint(request.model_dir);
  if (!found.ok()) return found.status();
  if (const std::string wanted = BaseFingerprint(identity.weights); *found != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(request.model_dir, ": its weights are not those that ",
                                                   request.checkpoint, " was trained beside: they are ", *found,
                                                   ", those were ", wanted, "; say where these are (--model)"));
  }
  return ModelWeights::Open(request.model_dir);
}

// The record of an export of `checkpoint`, but for its files.
ExportRecord RecordOf(const Checkpoint& checkpoint) {
  ExportRecord record;
  record.version = checkpoint.manifest().version;
  record.checkpoint = FolderPath(checkpoint.path()).filename().string();
  record.attempt = checkpoint.manifest().attempt;
  record.manifest_sha256 = checkpoint.manifest().sha256;
  return record;
}

// Aborted when `out` is the export of a checkpoint that a later attempt has written beside this one.
absl::Status CheckAttempt(const std::string& out, const Checkpoint& checkpoint, int64_t attempt) {
  const absl::StatusOr<ExportRecord> there = ReadExportRecord(out);
  if (!there.ok() || there->attempt <= attempt) return absl::OkStatus();
  const std::string later = (FolderPath(checkpoint.path()).parent_path() / there->checkpoint).string();
  const absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(later);
  if (!opened.ok() || (*opened)->manifest().sha256 != there->manifest_sha256) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(out, ": attempt ", there->attempt, " has exported ", there->checkpoint,
                                         " there; attempt ", attempt, " is over"));
}

// What an export consists of.
struct Parts {
  CheckpointIdentity identity;
  bool is_adapter = false;  // The folder of an adapter, not of a model.
  std::string graph;        // The file of the model's graph, if it is one and is there.
  ModelConfig config;
  std::unique_ptr<ModelWeights> base;  // Where frozen tensors come from.
  std::vector<ExportTensor> tensors;   // In order of their names.
};

// Of a model's folder; `parts.config` is chosen.
absl::Status ChooseTensors(const Checkpoint& checkpoint, const ExportRequest& request, Parts* parts) {
  absl::StatusOr<std::vector<ExportTensor>> trained =
      TensorsOfCheckpoint(checkpoint, parts->is_adapter ? "F32" : parts->config.dtype);
  if (!trained.ok()) return trained.status();
  parts->tensors = *std::move(trained);
  if (parts->is_adapter || parts->identity.frozen.empty()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<ModelWeights>> base = OpenBase(parts->identity, request);
  if (!base.ok()) return base.status();
  parts->base = *std::move(base);
  std::vector<ExportTensor> adapters;
  const auto first = std::stable_partition(parts->tensors.begin(), parts->tensors.end(), [&](const ExportTensor& t) {
    return !parts->identity.has_adapters() || !IsOfAdapter(t.tensor.name);
  });
  std::move(first, parts->tensors.end(), std::back_inserter(adapters));
  parts->tensors.erase(first, parts->tensors.end());
  absl::StatusOr<std::vector<ExportTensor>> frozen =
      TensorsOfModel(*parts->base, parts->identity.frozen, parts->config.dtype);
  if (!frozen.ok()) return frozen.status();
  std::move(frozen->begin(), frozen->end(), std::back_inserter(parts->tensors));
  std::sort(parts->tensors.begin(), parts->tensors.end(),
            [](const ExportTensor& a, const ExportTensor& b) { return a.tensor.name < b.tensor.name; });
  if (adapters.empty()) return absl::OkStatus();
  return MergeAdapters(parts->identity.adapter_config, adapters, &parts->tensors);
}

// Buffers are in fp32 in the files of some models of another dtype, and stay so. Without those files (random weights)
// they have what config.json says.
void KeepFp32(const std::string& model_dir, std::vector<ExportTensor>* tensors) {
  const absl::StatusOr<std::unique_ptr<ModelWeights>> model = ModelWeights::Open(model_dir);
  if (!model.ok()) return;
  for (ExportTensor& output : *tensors) {
    const auto it = (*model)->tensors().find(output.tensor.name);
    if (it == (*model)->tensors().end() || it->second.entry->dtype != "F32") continue;
    output.tensor.dtype = "F32";
    output.num_bytes = *NumElements(output.tensor.shape) * *DtypeBytes("F32");
  }
}

absl::Status WriteFolder(const Checkpoint& checkpoint, const Parts& parts, const ExportRequest& request,
                         const std::string& directory) {
  Output output{directory, {}};
  absl::Status status;
  if (parts.is_adapter) {
    status = WriteAdapterFiles(parts.identity, request, &output);
    if (status.ok()) status = WriteAdapters(parts.tensors, BaseFingerprint(parts.identity.weights), &output);
  } else {
    if (!parts.graph.empty()) status = WriteGraph(parts.graph, &output);
    if (status.ok() && !parts.config.text.empty())
      status = WriteModelFiles(parts.identity, request, parts.config.text, &output);
    if (status.ok()) status = WriteWeights(parts.tensors, request.max_file_bytes, &output);
  }
  if (!status.ok()) return status;
  ExportRecord record = RecordOf(checkpoint);
  record.files = std::move(output.files);
  return WriteSmallFile(absl::StrCat(directory, "/", kExportRecordName), ExportRecordToJson(record));
}

}  // namespace

std::string FindTokenizer(const std::string& model_dir, const std::string& data_dir) {
  std::vector<std::string> places;
  if (!model_dir.empty()) places.push_back(model_dir);
  if (!data_dir.empty()) {
    places.push_back(absl::StrCat(data_dir, "/tokenizer"));
    places.push_back((FolderPath(data_dir).parent_path() / "tokenizer").string());  // Of a folder `eval`.
  }
  std::error_code ignored;
  for (const std::string& place : places) {
    for (const char* name : kVocabularies) {
      if (std::filesystem::is_regular_file(absl::StrCat(place, "/", name), ignored)) return place;
    }
  }
  return "";
}

absl::StatusOr<ExportResult> ExportCheckpoint(const ExportRequest& asked) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(asked.checkpoint);
  if (!checkpoint.ok()) return checkpoint.status();
  ExportRequest request = asked;
  Parts parts;
  parts.identity = ParseIdentity((*checkpoint)->manifest().identity);
  const bool merges = request.adapters == ExportRequest::Adapters::kMerged;
  if (merges && !parts.identity.has_adapters()) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.checkpoint, " holds no adapters that could be merged: leave out --merge"));
  }
  parts.is_adapter = parts.identity.has_adapters() && !merges;
  bool has_config = !parts.identity.config_json.empty();
  std::error_code unseen;
  if (request.model_dir.empty() && has_config && std::filesystem::is_directory(parts.identity.model_path, unseen))
    request.model_dir = parts.identity.model_path;
  std::string graph = parts.identity.model_path;
  // What a client has uploaded lies where its daemon keeps it.
  if (!has_config && !request.model_dir.empty() && !std::filesystem::exists(graph, unseen))
    graph = absl::StrCat(request.model_dir, "/", kGraphName);
  if (std::filesystem::is_regular_file(graph, unseen)) {
    parts.graph = graph;
    request.model_dir = FolderPath(parts.graph).parent_path().string();
    has_config = std::filesystem::exists(absl::StrCat(request.model_dir, "/config.json"), unseen);
  } else {
    has_config = has_config || !request.model_dir.empty();
  }
  if (has_config) {
    absl::StatusOr<ModelConfig> chosen = ChooseConfig(parts.identity, request);
    if (!chosen.ok()) return chosen.status();
    parts.config = *std::move(chosen);
  }
  absl::Status status = ChooseTensors(**checkpoint, request, &parts);
  if (!status.ok()) return status;
  if (!parts.is_adapter && parts.config.dtype != "F32") KeepFp32(request.model_dir, &parts.tensors);

  const std::string out = FolderPath(request.out_dir).string();
  if (status = CheckExportFolder(request.model_dir, out); !status.ok()) return status;
  if (status = (*checkpoint)->VerifyData(0, 1); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FolderPublication>> publication = FolderPublication::Begin(out);
  if (!publication.ok()) return publication.status();
  status = WriteFolder(**checkpoint, parts, request, (*publication)->directory());
  if (!status.ok()) return status;
  if (request.attempt > 0) {
    if (status = CheckAttempt(out, **checkpoint, request.attempt); !status.ok()) return status;
  }
  if (status = (*publication)->Publish(); !status.ok()) return status;
  ExportResult result{static_cast<int64_t>(parts.tensors.size()), 0, parts.is_adapter ? "F32" : parts.config.dtype,
                      parts.config.changed};
  for (const ExportTensor& tensor : parts.tensors) result.num_bytes += tensor.num_bytes;
  return result;
}

absl::Status CheckExportFolder(const std::string& model_dir, const std::string& out_dir) {
  const std::string path = FolderPath(out_dir).string();
  std::error_code error;
  if (!model_dir.empty() && std::filesystem::equivalent(path, model_dir, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path, ": is the model's own directory; export to another one"));
  }
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path);
  if (absl::IsNotFound(names.status())) {
    if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(path, ": exists and is not a directory"));
  }
  if (!names.ok()) return names.status();
  const auto other = std::find_if_not(names->begin(), names->end(), IsWritten);
  // A model that somebody has put there has no other names.
  const bool is_export = std::find(names->begin(), names->end(), kExportRecordName) != names->end();
  if (names->empty() || (other == names->end() && is_export)) return absl::OkStatus();
  const std::string& held = other != names->end() ? *other : names->front();
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists and holds \"", held, "\", which ",
                                               other != names->end() ? "no export writes" : "no export has written",
                                               "; move it elsewhere, or export to another directory"));
}

}  // namespace tacc::worker
