#include "worker/checkpoint/tensors/model_weights.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/tensors/element.h"
#include "worker/checkpoint/tensors/tensor_rows.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr char kWeightIndex[] = "/model.safetensors.index.json";

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Returns tensor name -> file name.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  const nlohmann::json index = ParseJson(*text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object with a \"weight_map\""));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& item : index["weight_map"].items()) {
    const std::string file = item.value().is_string() ? item.value().get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "..") {
      return absl::InvalidArgumentError(absl::StrCat(path, ": weight_map \"", item.key(), "\" is not a file name"));
    }
    weight_map.emplace(item.key(), file);
  }
  return weight_map;
}

}  // namespace

bool IsStack(const std::string& name) { return name.find('*') != std::string::npos; }

std::string StackEntryName(const std::string& name, int64_t entry) {
  std::string entry_name = name;
  return entry_name.replace(name.find('*'), 1, absl::StrCat(entry));
}

absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& directory) {
  WeightFiles files;
  if (const std::string single = absl::StrCat(directory, "/model.safetensors"); Exists(single)) {
    files.paths.push_back(single);
    return files;
  }
  const std::string index = absl::StrCat(directory, kWeightIndex);
  if (!Exists(index)) {
    return absl::NotFoundError(
        absl::StrCat(directory, ": has neither model.safetensors nor model.safetensors.index.json"));
  }
  absl::StatusOr<std::map<std::string, std::string>> weight_map = ReadIndex(index);
  if (!weight_map.ok()) return weight_map.status();
  files.index = *std::move(weight_map);
  std::set<std::string> names;
  for (const auto& [tensor, file] : files.index) names.insert(file);
  for (const std::string& file : names) files.paths.push_back(absl::StrCat(directory, "/", file));
  return files;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::Open(const std::string& directory) {
  const absl::StatusOr<WeightFiles> files = FindWeightFiles(directory);
  if (!files.ok()) return files.status();
  const std::string index = absl::StrCat(directory, kWeightIndex);
  std::unique_ptr<ModelWeights> model(new ModelWeights());
  model->directory_ = directory;
  for (const std::string& path : files->paths) {
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
    if (!file.ok()) {
      if (!absl::IsNotFound(file.status())) return file.status();
      return absl::InvalidArgumentError(absl::StrCat(file.status().message(), " (named by ", index, ")"));
    }
    for (const auto& [name, entry] : (*file)->header().tensors) {
      const auto [it, is_new] = model->tensors_.emplace(name, Tensor{file->get(), &entry});
      if (!is_new) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": tensor \"", name, "\" is also in ", it->second.file->path()));
      }
    }
    model->files_.push_back(*std::move(file));
  }
  for (const auto& [name, file] : files->index) {
    const auto it = model->tensors_.find(name);
    if (it == model->tensors_.end() || it->second.file->path() != absl::StrCat(directory, "/", file)) {
      return absl::InvalidArgumentError(
          absl::StrCat(directory, "/", file, ": tensor \"", name, "\" is missing (named by ", index, ")"));
    }
  }
  return model;
}

absl::StatusOr<std::unique_ptr<ModelWeights>> ModelWeights::OpenAdapter(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      SafetensorsFile::Open(absl::StrCat(directory, "/", kAdapterFileName));
  if (!file.ok()) return file.status();
  std::unique_ptr<ModelWeights> adapter(new ModelWeights());
  adapter->directory_ = directory;
  for (const auto& [name, entry] : (*file)->header().tensors)
    adapter->tensors_.emplace(std::string(absl::StripPrefix(name, kAdapterPrefix)), Tensor{file->get(), &entry});
  adapter->files_.push_back(*std::move(file));
  return adapter;
}

absl::Status ModelWeights::ReadFloat(const std::string& name, const std::vector<int64_t>& logical_shape,
                                     const Rectangle& rectangle, float* out) const {
  if (IsStack(name)) {
    if (logical_shape.empty() || !IsInside(rectangle, logical_shape)) {
      return absl::InvalidArgumentError(absl::StrCat(directory_, ": stack \"", name, "\": ", RectangleText(rectangle),
                                                     " is not inside ", ShapeText(logical_shape)));
    }
    const std::vector<int64_t> entry_shape(logical_shape.begin() + 1, logical_shape.end());
    const Rectangle part = {{rectangle.offset.begin() + 1, rectangle.offset.end()},
                            {rectangle.shape.begin() + 1, rectangle.shape.end()}};
    const int64_t entry_elements = *NumElements(part.shape);
    for (int64_t i = 0; i < rectangle.shape[0]; ++i) {
      const std::string entry_name = StackEntryName(name, rectangle.offset[0] + i);
      absl::Status status = ReadFloat(entry_name, entry_shape, part, out + i * entry_elements);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  return ReadPart(name, logical_shape, rectangle, out);
}

absl::Status ModelWeights::ReadPart(const std::string& name, const std::vector<int64_t>& logical_shape,
                                    const Rectangle& rectangle, float* out) const {
  const absl::optional<TensorRows> rows = ParseTensorRows(name);
  const auto it = tensors_.find(rows.has_value() ? rows->tensor : name);
  if (it == tensors_.end()) return absl::NotFoundError(absl::StrCat(directory_, ": no tensor \"", name, "\""));
  const SafetensorsEntry& entry = *it->second.entry;
  const auto where = [&] { return absl::StrCat(it->second.file->path(), ": tensor \"", name, "\": "); };
  std::vector<int64_t> stored_shape = entry.shape;
  int64_t first_element = 0;
  if (rows.has_value()) {
    if (static_cast<int64_t>(stored_shape.size()) <= rows->dim || rows->end > stored_shape[rows->dim]) {
      return absl::InvalidArgumentError(absl::StrCat(it->second.file->path(), ": tensor \"", rows->tensor,
                                                     "\" has shape ", ShapeText(entry.shape), ", no rows ", rows->begin,
                                                     " to ", rows->end, rows->dim == 0 ? "" : " in each entry"));
    }
    stored_shape[rows->dim] = rows->end - rows->begin;
    first_element = rows->begin * *NumElements(absl::MakeConstSpan(entry.shape).subspan(rows->dim + 1));
  }
  const absl::optional<int64_t> elements = NumElements(logical_shape);
  const bool has_entries =
      !rows.has_value() || rows->dim == 0 || (!logical_shape.empty() && logical_shape[0] == stored_shape[0]);
  if (!elements.has_value() || *elements != *NumElements(stored_shape) || !has_entries) {
    return absl::InvalidArgumentError(absl::StrCat(where(), "stored shape ", ShapeText(stored_shape),
                                                   " cannot be read as ", ShapeText(logical_shape)));
  }
  if (!IsInside(rectangle, logical_shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(where(), RectangleText(rectangle), " is not inside ", ShapeText(logical_shape)));
  }
  if (*NumElements(rectangle.shape) == 0) return absl::OkStatus();
  if (!rows.has_value() || rows->dim == 0)
    return ReadElements(it->second, where(), first_element, logical_shape, rectangle, out);
  // Rows of each entry: what is read of one lies by itself.
  const std::vector<int64_t> of_entry(logical_shape.begin() + 1, logical_shape.end());
  const Rectangle part = {{rectangle.offset.begin() + 1, rectangle.offset.end()},
                          {rectangle.shape.begin() + 1, rectangle.shape.end()}};
  const int64_t entry_elements = *NumElements(entry.shape) / entry.shape[0], part_elements = *NumElements(part.shape);
  for (int64_t i = 0; i < rectangle.shape[0]; ++i) {
    const int64_t first = (rectangle.offset[0] + i) * entry_elements + first_element;
    absl::Status status = ReadElements(it->second, where(), first, of_entry, part, out + i * part_elements);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ModelWeights::ReadElements(const Tensor& tensor, const std::string& where, int64_t first_element,
                                        const std::vector<int64_t>& shape, const Rectangle& rectangle,
                                        float* out) const {
  const SafetensorsEntry& entry = *tensor.entry;
  const int64_t count = *NumElements(rectangle.shape), element_bytes = *DtypeBytes(entry.dtype);
  // fp32 is copied in place; other dtypes go through a buffer of the rectangle's size in their own bytes.
  std::vector<char> buffer;
  char* target = reinterpret_cast<char*>(out);
  if (entry.dtype != "F32") {
    buffer.resize(count * element_bytes);
    target = buffer.data();
  }
  absl::Status status = tensor.file->Read(entry.begin + first_element * element_bytes, WholeTensor(shape), rectangle,
                                          element_bytes, target);
  if (!status.ok() || entry.dtype == "F32") return status;
  status = ConvertToFloat(entry.dtype, buffer.data(), count, out);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat(where, status.message()));
}

}  // namespace tacc::worker
