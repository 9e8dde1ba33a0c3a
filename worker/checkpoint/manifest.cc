#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/sealed_json.h"
#include "worker/checkpoint/files/sha256.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Sealed.
constexpr int64_t kFormat = 2;
// Without a checksum.
constexpr int64_t kFirstFormat = 1;

// Reads typed fields of one JSON object. The first error is kept; reads after it give zero values.
class FieldReader {
 public:
  FieldReader(const json& object, std::string where, absl::Status* status)
      : object_(object), where_(std::move(where)), status_(status) {
    if (!object_.is_object()) Fail("", "not an object");
  }

  std::string String(const char* key) {
    const json& value = Value(key);
    if (!value.is_string()) return Fail(key, "not a string"), "";
    return value.get<std::string>();
  }
  int64_t Count(const char* key) { return CountOf(Value(key), key); }
  int64_t CountOr(const char* key, int64_t absent) { return object_.contains(key) ? Count(key) : absent; }
  std::vector<int64_t> Counts(const char* key) {
    const json& value = Value(key);
    if (!value.is_array()) return Fail(key, "not a list"), std::vector<int64_t>();
    std::vector<int64_t> counts;
    for (const json& item : value) counts.push_back(CountOf(item, key));
    return counts;
  }
  const json& Object(const char* key) {
    const json& value = Value(key);
    if (!value.is_object()) return Fail(key, "not an object"), EmptyObject();
    return value;
  }
  const json& Array(const char* key) {
    const json& value = Value(key);
    if (!value.is_array()) return Fail(key, "not a list"), EmptyArray();
    return value;
  }
  int64_t CountOf(const json& value, const std::string& key) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX)
      return Fail(key, "not a non-negative integer"), 0;
    return value.get<int64_t>();
  }

 private:
  static const json& EmptyObject() {
    static const json* const kEmpty = new json(json::object());
    return *kEmpty;
  }
  static const json& EmptyArray() {
    static const json* const kEmpty = new json(json::array());
    return *kEmpty;
  }
  const json& Value(const char* key) {
    if (object_.is_object()) {
      const auto it = object_.find(key);
      if (it != object_.end()) return *it;
      Fail(key, "missing");
    }
    static const json* const kNull = new json();
    return *kNull;
  }
  void Fail(const std::string& key, const std::string& what) {
    if (!status_->ok()) return;
    *status_ =
        absl::InvalidArgumentError(absl::StrCat(where_, key.empty() ? "" : absl::StrCat(" \"", key, "\""), ": ", what));
  }

  const json& object_;
  std::string where_;
  absl::Status* status_;
};

ManifestTensor ReadTensor(const json& value, const std::string& where, absl::Status* status) {
  FieldReader fields(value, where, status);
  ManifestTensor tensor;
  tensor.dtype = fields.String("dtype");
  tensor.shape = fields.Counts("shape");
  tensor.stored_shape = fields.Counts("stored_shape");
  tensor.merged_dims = fields.CountOr("merged_dims", 1);
  for (const json& item : fields.Array("slices")) {
    FieldReader slice_fields(item, absl::StrCat(where, " slice ", tensor.slices.size()), status);
    ManifestSlice slice;
    slice.file = slice_fields.String("file");
    slice.rectangle.offset = slice_fields.Counts("offset");
    slice.rectangle.shape = slice_fields.Counts("shape");
    tensor.slices.push_back(std::move(slice));
  }
  return tensor;
}

bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifestFileName &&
         name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::Status CheckTensor(const std::string& name, const ManifestTensor& tensor, const std::set<std::string>& files,
                         ManifestSlices slices, const std::string& path) {
  const auto bad = [&](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\": ", what...));
  };
  if (absl::StatusOr<int64_t> bytes = DtypeBytes(tensor.dtype); !bytes.ok()) return bad(bytes.status().message());
  const absl::optional<int64_t> elements = NumElements(tensor.shape);
  if (!elements.has_value()) return bad("shape ", ShapeText(tensor.shape), " is too large");
  if (NumElements(tensor.stored_shape) != elements) {
    return bad("stored shape ", ShapeText(tensor.stored_shape), " is not a reshape of ", ShapeText(tensor.shape));
  }
  if (tensor.merged_dims < 1 || tensor.merged_dims > std::max<int64_t>(1, static_cast<int64_t>(tensor.shape.size()))) {
    return bad("merged_dims ", tensor.merged_dims, " of ", ShapeText(tensor.shape));
  }
  const std::vector<int64_t> sliced = tensor.SlicedShape();
  int64_t covered = 0;
  std::set<std::string> files_of_slices;
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const ManifestSlice& slice = tensor.slices[i];
    if (files.count(slice.file) == 0)
      return bad("slice ", i, " is in \"", slice.file, "\", which is not in the list of files");
    if (!files_of_slices.insert(slice.file).second) return bad("two slices in \"", slice.file, "\"");
    if (!IsInside(slice.rectangle, sliced)) {
      return bad("slice ", i, " ", RectangleText(slice.rectangle), " is not inside ", ShapeText(sliced));
    }
    covered += *NumElements(slice.rectangle.shape);
    for (size_t j = 0; j < i; ++j) {
      if (*elements > 0 && Intersect(slice.rectangle, tensor.slices[j].rectangle).has_value()) {
        return bad("slices ", RectangleText(tensor.slices[j].rectangle), " and ", RectangleText(slice.rectangle),
                   " overlap");
      }
    }
  }
  if (slices == ManifestSlices::kComplete && covered != *elements)
    return bad("the slices hold ", covered, " of ", *elements, " elements");
  return absl::OkStatus();
}

}  // namespace

std::string ManifestToJson(const Manifest& manifest) {
  ordered_json files = ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.num_bytes}, {"sha256", file.sha256}});
  }
  ordered_json tensors = ordered_json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    ordered_json slices = ordered_json::array();
    for (const ManifestSlice& slice : tensor.slices) {
      slices.push_back({{"file", slice.file}, {"offset", slice.rectangle.offset}, {"shape", slice.rectangle.shape}});
    }
    ordered_json& entry =
        tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"stored_shape", tensor.stored_shape}};
    if (tensor.merged_dims != 1) entry["merged_dims"] = tensor.merged_dims;
    entry["slices"] = std::move(slices);
  }
  const ordered_json result = {{"format", kFormat},           {"version", manifest.version},
                               {"job", manifest.job},         {"step", manifest.step},
                               {"attempt", manifest.attempt}, {"identity", ParseOrderedJson(manifest.identity)},
                               {"layout", manifest.layout},   {"cursor", {{"step", manifest.step}}},
                               {"files", std::move(files)},   {"tensors", std::move(tensors)}};
  return SealJson(result.dump());
}

absl::StatusOr<Manifest> ManifestFromJson(const std::string& text, const std::string& path, ManifestSlices slices) {
  const json parsed = ParseJson(text);
  if (!parsed.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object; the file is damaged"));
  absl::Status status;
  FieldReader fields(parsed, path + ":", &status);
  const int64_t format = fields.Count("format");
  // Whoever writes a later format seals it too, so damage is told from a later version.
  Manifest manifest;
  manifest.has_checksum = format != kFirstFormat || parsed.contains(kSealKey);
  if (status.ok() && manifest.has_checksum) {
    absl::StatusOr<std::string> seal = CheckSeal(text, path);
    if (!seal.ok()) return seal.status();
    manifest.sha256 = *std::move(seal);
  } else {
    Sha256 sha256;
    sha256.Update(text.data(), text.size());
    manifest.sha256 = sha256.HexDigest();
  }
  if (status.ok() && format != kFirstFormat && format != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": format ", format, " but this version reads formats ",
                                                   kFirstFormat, " and ", kFormat, "; use the version that wrote it"));
  }
  manifest.version = fields.String("version");
  manifest.job = fields.String("job");
  manifest.step = fields.Count("step");
  manifest.attempt = fields.Count("attempt");
  manifest.identity = fields.Object("identity").dump();
  for (const auto& item : fields.Object("layout").items())
    manifest.layout[item.key()] = fields.CountOf(item.value(), item.key());
  const int64_t cursor = FieldReader(fields.Object("cursor"), path + ": cursor", &status).Count("step");
  for (const json& item : fields.Array("files")) {
    FieldReader file(item, absl::StrCat(path, ": file ", manifest.files.size()), &status);
    manifest.files.push_back({file.String("name"), file.Count("bytes"), file.String("sha256")});
  }
  for (const auto& item : fields.Object("tensors").items()) {
    manifest.tensors[item.key()] =
        ReadTensor(item.value(), absl::StrCat(path, ": tensor \"", item.key(), "\""), &status);
  }
  if (!status.ok()) return status;
  if (cursor != manifest.step) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the cursor is at step ", cursor, ", the checkpoint at step ", manifest.step));
  }
  if (status = CheckManifest(manifest, path, slices); !status.ok()) return status;
  return manifest;
}

absl::Status CheckManifest(const Manifest& manifest, const std::string& path, ManifestSlices slices) {
  const auto in_range = [](int64_t value, int64_t most) { return value >= 0 && value <= most; };
  if (!in_range(manifest.step, kMaxStep) || !in_range(manifest.attempt, kMaxAttempt)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": step ", manifest.step, " or attempt ", manifest.attempt,
                                                   " is out of range: at most ", kMaxStep, " and ", kMaxAttempt));
  }
  if (!ParseJson(manifest.identity).is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the identity is not a JSON object"));
  }
  std::set<std::string> files;
  for (const ManifestFile& file : manifest.files) {
    if (!IsPlainFileName(file.name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": \"", file.name, "\" is not a plain file name"));
    }
    if (file.sha256.size() != 64 || file.sha256.find_first_not_of("0123456789abcdef") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": the sha256 of \"", file.name, "\" is not 64 hex digits"));
    }
    if (!files.insert(file.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": file \"", file.name, "\" is listed twice"));
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (absl::Status status = CheckTensor(name, tensor, files, slices, path); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
