#include "worker/checkpoint/export.h"

#include <algorithm>
#include <filesystem>
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
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export_record.h"
#include "worker/checkpoint/files/folder_publication.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/element.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/tensors/safetensors.h"
#include "worker/checkpoint/tensors/tensor_rows.h"

namespace tacc::worker {
namespace {

constexpr char kWeightsPrefix[] = "weights/";
constexpr char kIndexName[] = "model.safetensors.index.json";
constexpr int64_t kMaxConfigBytes = 16 << 20;
// Elements converted at a time; bounds the memory of an export at 24 MiB beside one row of a tensor.
constexpr int64_t kChunkElements = 4 << 20;

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
  return name == "config.json" || name == kIndexName || name == kExportRecordName || IsOfTokenizer(name) ||
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

// An entry of what the checkpoint was made of (`identity`); empty when it does not say.
std::string IdentityOf(const Checkpoint& checkpoint, const char* key) {
  const nlohmann::json identity =
      nlohmann::json::parse(checkpoint.manifest().identity, nullptr, /*allow_exceptions=*/false);
  return identity.contains(key) && identity[key].is_string() ? identity[key].get<std::string>() : "";
}

struct ModelConfig {
  std::string text;
  std::string dtype = "F32";  // Of the weights, as in safetensors.
  bool changed = false;       // The model's folder has another one now.
};

// The config.json to export.
absl::StatusOr<ModelConfig> ChooseConfig(const Checkpoint& checkpoint, const ExportRequest& request) {
  const std::string path = absl::StrCat(request.model_dir, "/config.json");
  ModelConfig config;
  config.text = !request.config_json.empty() ? request.config_json : IdentityOf(checkpoint, "config_json");
  const absl::StatusOr<std::string> now = ReadSmallFile(path, kMaxConfigBytes);
  if (config.text.empty()) {
    if (!now.ok()) return now.status();
    config.text = *now;
  }
  config.changed = now.ok() && *now != config.text;
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(config.text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::UnavailableError(absl::StrCat(path, ": not a JSON object"));
  absl::StatusOr<std::string> dtype = ConfigDtype(json, path);
  if (!dtype.ok()) return dtype.status();
  config.dtype = *std::move(dtype);
  // The class of the model, where it has none.
  const std::string architecture = IdentityOf(checkpoint, "architecture");
  nlohmann::ordered_json& named = json["architectures"];
  if (architecture.empty() || (!named.is_null() && !named.empty())) return config;
  named = {architecture};
  config.text = json.dump(2) + "\n";
  return config;
}

absl::Status WriteModelFiles(const Checkpoint& checkpoint, const ExportRequest& request, const std::string& config,
                             Output* output) {
  absl::Status status = WriteText("config.json", config, output);
  if (status.ok() && !request.model_dir.empty()) status = CopyFiles(request.model_dir, IsOfModel, output);
  if (!status.ok()) return status;
  const std::string data_dir = request.data_dir.empty() ? IdentityOf(checkpoint, "data_path") : request.data_dir;
  const std::string tokenizer = FindTokenizer(request.model_dir, data_dir);
  // Without a vocabulary, a model's other files (a chat template) are of no other tokenizer.
  const std::string& source = tokenizer.empty() ? request.model_dir : tokenizer;
  return source.empty() ? absl::OkStatus() : CopyFiles(source, IsOfTokenizer, output);
}

// Rows (entries of the first dim; a scalar counts as one) of a tensor of the checkpoint.
struct SourceRows {
  std::string name;
  int64_t begin = 0;
  int64_t end = 1;
};

struct OutputTensor {
  std::vector<SourceRows> sources;  // One, or the rows of the tensor in order.
  SafetensorsWriter::Tensor tensor;
  int64_t num_bytes = 0;
};

// A stack, as the tensors of its entries, each of so many rows of the checkpoint's.
void AddStack(const std::string& source, const OutputTensor& stack, int64_t entry_rows,
              std::vector<OutputTensor>* tensors) {
  for (int64_t row = 0; row < stack.tensor.shape[0]; ++row) {
    OutputTensor entry = stack;
    entry.sources = {{source, row * entry_rows, (row + 1) * entry_rows}};
    entry.tensor.name = StackEntryName(stack.tensor.name, row);
    entry.tensor.shape.erase(entry.tensor.shape.begin());
    entry.num_bytes = stack.num_bytes / stack.tensor.shape[0];
    tensors->push_back(std::move(entry));
  }
}

// A part of a tensor that the checkpoint has in several.
struct Part {
  std::string source;
  int64_t begin = 0;  // Row of dim `dim` of the tensor.
  int dim = 0;
};

// Adds a part behind those that are there.
absl::Status AddPart(const Checkpoint& checkpoint, const std::string& name, const Part& part, OutputTensor* output) {
  const ManifestTensor& tensor = checkpoint.manifest().tensors.at(part.source);
  std::vector<int64_t>& shape = output->tensor.shape;
  std::vector<int64_t> stored = tensor.stored_shape;
  const bool is_first = output->sources.empty();
  const int64_t num_rows = is_first ? 0 : shape[part.dim];
  if (part.begin != num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.path(), ": rows ", num_rows, " to ", part.begin, " of \"", name, "\" are missing"));
  }
  if (!is_first) stored[part.dim] += num_rows;
  const std::vector<int64_t> sliced = tensor.SlicedShape();
  const int64_t num_sliced = sliced.empty() ? 1 : sliced[0];
  if (part.dim == 0) {
    output->sources.push_back({part.source, 0, num_sliced});
  } else {
    // Of each entry its rows, behind those of the parts before.
    const int64_t entries = stored[0], of_entry = num_sliced / std::max<int64_t>(1, entries);
    if (of_entry * entries != num_sliced || (!is_first && entries != shape[0])) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor \"", part.source, "\" of ",
                                                     ShapeText(tensor.shape), " does not consist of the ", entries,
                                                     " entries of \"", name, "\""));
    }
    std::vector<SourceRows> sources;
    const size_t before = output->sources.size() / std::max<int64_t>(1, entries);
    for (int64_t e = 0; e < entries; ++e) {
      std::move(output->sources.begin() + e * before, output->sources.begin() + (e + 1) * before,
                std::back_inserter(sources));
      sources.push_back({part.source, e * of_entry, (e + 1) * of_entry});
    }
    output->sources = std::move(sources);
  }
  shape = std::move(stored);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OutputTensor>> ChooseTensors(const Checkpoint& checkpoint, const std::string& dtype) {
  // By tensor of the model, then by first row.
  std::map<std::string, std::map<int64_t, Part>> sources;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
    if (!absl::StartsWith(name, kWeightsPrefix)) continue;
    if (tensor.dtype != "F32") {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensor \"", name, "\" is ", tensor.dtype,
                                                     ", but weights are kept as F32"));
    }
    const TensorRows rows = ParseTensorRows(name).value_or(TensorRows{name});
    const auto [other, is_new] = sources[rows.tensor].emplace(rows.begin, Part{name, rows.begin, rows.dim});
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": tensors \"", other->second.source,
                                                     "\" and \"", name, "\" would be one of the exported model"));
    }
  }
  std::vector<OutputTensor> tensors;
  for (const auto& [name, parts] : sources) {
    OutputTensor output;
    output.tensor = {name.substr(sizeof(kWeightsPrefix) - 1), dtype, {}};
    for (const auto& [begin, part] : parts) {
      if (part.dim != parts.begin()->second.dim) {
        return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": \"", name, "\" is in rows of two dims, \"",
                                                       parts.begin()->second.source, "\" and \"", part.source, "\""));
      }
      if (absl::Status status = AddPart(checkpoint, name, part, &output); !status.ok()) return status;
    }
    output.num_bytes = *NumElements(output.tensor.shape) * *DtypeBytes(dtype);
    if (!IsStack(output.tensor.name)) {
      tensors.push_back(std::move(output));
      continue;
    }
    const ManifestTensor& stack = checkpoint.manifest().tensors.at(output.sources[0].name);
    if (stack.shape.empty() || NumElements(stack.shape).value_or(0) == 0 || stack.stored_shape != stack.shape) {
      return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": stack \"", name, "\" of ",
                                                     ShapeText(stack.shape), " has the stored shape ",
                                                     ShapeText(stack.stored_shape), "; wanted the same, not empty"));
    }
    AddStack(output.sources[0].name, output, stack.SlicedShape()[0] / stack.shape[0], &tensors);
  }
  if (tensors.empty()) return absl::InvalidArgumentError(absl::StrCat(checkpoint.path(), ": holds no weights"));
  return tensors;
}

// Buffers are in fp32 in the files of some models of another dtype, and stay so. Without those files (random weights)
// they have what config.json says.
void KeepFp32(const std::string& model_dir, std::vector<OutputTensor>* tensors) {
  const absl::StatusOr<std::unique_ptr<ModelWeights>> model = ModelWeights::Open(model_dir);
  if (!model.ok()) return;
  for (OutputTensor& output : *tensors) {
    const auto it = (*model)->tensors().find(output.tensor.name);
    if (it == (*model)->tensors().end() || it->second.entry->dtype != "F32") continue;
    output.tensor.dtype = "F32";
    output.num_bytes = *NumElements(output.tensor.shape) * *DtypeBytes("F32");
  }
}

// Appends the elements of the rows in logical row-major order, which is also the stored order.
absl::Status AppendRows(const Checkpoint& checkpoint, const SourceRows& source, const std::string& dtype,
                        SafetensorsWriter* writer) {
  const std::vector<int64_t> shape = checkpoint.manifest().tensors.at(source.name).SlicedShape();
  Rectangle part = WholeTensor(shape);
  const int64_t elements = *NumElements(shape);
  if (elements == 0) return absl::OkStatus();
  const int64_t row_elements = shape.empty() ? 1 : elements / shape[0];
  const int64_t rows_at_once = std::clamp<int64_t>(kChunkElements / row_elements, 1, source.end - source.begin);
  std::vector<float> values(rows_at_once * row_elements);
  std::vector<char> bytes(values.size() * *DtypeBytes(dtype));
  for (int64_t row = source.begin; row < source.end; row += rows_at_once) {
    const int64_t num_rows = std::min(rows_at_once, source.end - row);
    if (!shape.empty()) {
      part.offset[0] = row;
      part.shape[0] = num_rows;
    }
    const int64_t count = num_rows * row_elements;
    if (absl::Status status = checkpoint.Read(source.name, part, values.data()); !status.ok()) return status;
    absl::Status status = ConvertFromFloat(dtype, values.data(), count, bytes.data());
    if (!status.ok()) return status;
    status = writer->Append(bytes.data(), count * *DtypeBytes(dtype));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Returns how many of the tensors go into each file: as many as fit, at least one.
std::vector<size_t> SplitIntoFiles(const std::vector<OutputTensor>& tensors, int64_t max_file_bytes) {
  std::vector<size_t> counts;
  int64_t file_bytes = 0;
  for (const OutputTensor& tensor : tensors) {
    if (counts.empty() || file_bytes + tensor.num_bytes > max_file_bytes) {
      counts.push_back(0);
      file_bytes = 0;
    }
    ++counts.back();
    file_bytes += tensor.num_bytes;
  }
  return counts;
}

absl::Status WriteWeights(const Checkpoint& checkpoint, const std::vector<OutputTensor>& tensors,
                          int64_t max_file_bytes, Output* output) {
  const std::vector<size_t> counts = SplitIntoFiles(tensors, max_file_bytes);
  nlohmann::json index;
  int64_t total_bytes = 0;
  size_t next = 0;
  for (size_t file = 0; file < counts.size(); ++file) {
    const std::string name = counts.size() == 1
                                 ? "model.safetensors"
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", file + 1, counts.size());
    std::vector<SafetensorsWriter::Tensor> declared;
    for (size_t i = next; i < next + counts[file]; ++i) declared.push_back(tensors[i].tensor);
    absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer =
        SafetensorsWriter::Create(absl::StrCat(output->directory, "/", name), declared, {{"format", "pt"}});
    if (!writer.ok()) return writer.status();
    for (const size_t end = next + counts[file]; next < end; ++next) {
      for (const SourceRows& source : tensors[next].sources) {
        absl::Status status = AppendRows(checkpoint, source, tensors[next].tensor.dtype, writer->get());
        if (!status.ok()) return status;
      }
      index["weight_map"][tensors[next].tensor.name] = name;
      total_bytes += tensors[next].num_bytes;
    }
    const absl::StatusOr<FileHash> hash = (*writer)->Finish();
    if (!hash.ok()) return hash.status();
    output->files.push_back({name, hash->num_bytes, hash->sha256});
  }
  if (counts.size() == 1) return absl::OkStatus();
  index["metadata"]["total_size"] = total_bytes;
  return WriteText(kIndexName, index.dump(2) + "\n", output);
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

absl::Status WriteFolder(const Checkpoint& checkpoint, const std::vector<OutputTensor>& tensors,
                         const ExportRequest& request, const std::string& config, const std::string& directory) {
  Output output{directory, {}};
  if (!config.empty()) {
    if (absl::Status status = WriteModelFiles(checkpoint, request, config, &output); !status.ok()) return status;
  }
  absl::Status status = WriteWeights(checkpoint, tensors, request.max_file_bytes, &output);
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
  const bool has_config = !IdentityOf(**checkpoint, "config_json").empty();
  if (request.model_dir.empty() && has_config) {
    const std::string trained = IdentityOf(**checkpoint, "model_path");
    std::error_code unseen;
    if (std::filesystem::is_directory(trained, unseen)) request.model_dir = trained;
  }
  ModelConfig config;
  if (!request.model_dir.empty() || has_config) {
    absl::StatusOr<ModelConfig> chosen = ChooseConfig(**checkpoint, request);
    if (!chosen.ok()) return chosen.status();
    config = *std::move(chosen);
  }
  absl::StatusOr<std::vector<OutputTensor>> tensors = ChooseTensors(**checkpoint, config.dtype);
  if (!tensors.ok()) return tensors.status();
  if (config.dtype != "F32") KeepFp32(request.model_dir, &*tensors);

  const std::string out = FolderPath(request.out_dir).string();
  if (absl::Status status = CheckExportFolder(request.model_dir, out); !status.ok()) return status;
  if (absl::Status status = (*checkpoint)->VerifyData(0, 1); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<FolderPublication>> publication = FolderPublication::Begin(out);
  if (!publication.ok()) return publication.status();
  absl::Status status = WriteFolder(**checkpoint, *tensors, request, config.text, (*publication)->directory());
  if (!status.ok()) return status;
  if (request.attempt > 0) {
    if (status = CheckAttempt(out, **checkpoint, request.attempt); !status.ok()) return status;
  }
  if (status = (*publication)->Publish(); !status.ok()) return status;
  ExportResult result{static_cast<int64_t>(tensors->size()), 0, config.dtype, config.changed};
  for (const OutputTensor& tensor : *tensors) result.num_bytes += tensor.num_bytes;
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
  for (const std::string& name : *names) {
    if (IsWritten(name)) continue;
    return absl::AlreadyExistsError(
        absl::StrCat(path, ": exists and holds \"", name,
                     "\", which no export writes; move it elsewhere, or export to another directory"));
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
