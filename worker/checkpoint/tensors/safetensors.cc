#include "worker/checkpoint/tensors/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/tensors/rectangle.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

// The limit of the reference implementation.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kLengthBytes = 8;
// No tensor of any model has more dims; bounds the work a hostile header can cause.
constexpr size_t kMaxDims = 32;

struct DtypeRow {
  const char* name;
  int64_t bytes;
};
constexpr DtypeRow kDtypes[] = {{"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
                                {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
                                {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};

int64_t ReadLittleEndian(const char* data) {
  uint64_t value = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(data[i]);
  // Lengths beyond the signed range are refused like any other too large one.
  return static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
}

// Parses JSON and refuses objects with a key given twice, which parsers otherwise resolve in different ways.
absl::StatusOr<json> ParseStrictly(const char* begin, const char* end, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  const json::parser_callback_t callback = [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.resize(depth + 1);
      keys.back().clear();
    } else if (event == json::parse_event_t::key) {
      if (!keys[depth - 1].insert(parsed.get<std::string>()).second) duplicate = parsed.get<std::string>();
    }
    return true;
  };
  json parsed;
  if (IsWithinJsonLimits({begin, static_cast<size_t>(end - begin)}))
    parsed = json::parse(begin, end, callback, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the header is not a JSON object; the file is damaged or not safetensors"));
  }
  if (!duplicate.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the header has \"", duplicate, "\" twice"));
  }
  return parsed;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const json& value, int64_t data_begin, int64_t num_bytes,
                                            const std::string& where) {
  const auto bad = [&where](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", what...));
  };
  if (!value.is_object()) return bad("the entry is not an object");
  for (const auto& item : value.items()) {
    if (item.key() != "dtype" && item.key() != "shape" && item.key() != "data_offsets")
      return bad("unknown key \"", item.key(), "\"");
  }
  const json dtype = value.value("dtype", json());
  const json shape = value.value("shape", json());
  const json offsets = value.value("data_offsets", json());
  if (!dtype.is_string()) return bad("dtype is missing or not a string");
  if (!shape.is_array() || shape.size() > kMaxDims)
    return bad("shape is missing or not a list of at most ", kMaxDims, " extents");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad("data_offsets is missing or not two non-negative integers");
  }
  SafetensorsEntry entry;
  entry.dtype = dtype.get<std::string>();
  const absl::StatusOr<int64_t> dtype_bytes = DtypeBytes(entry.dtype);
  if (!dtype_bytes.ok()) return bad(dtype_bytes.status().message());
  for (const json& extent : shape) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX)
      return bad("an extent of shape is not a non-negative integer");
    entry.shape.push_back(extent.get<int64_t>());
  }
  const absl::optional<int64_t> elements = NumElements(entry.shape);
  int64_t wanted = 0;
  if (!elements.has_value() || __builtin_mul_overflow(*elements, *dtype_bytes, &wanted)) {
    return bad("shape ", ShapeText(entry.shape), " is too large");
  }
  const uint64_t begin = offsets[0].get<uint64_t>();
  const uint64_t end = offsets[1].get<uint64_t>();
  const uint64_t available = num_bytes - data_begin;
  if (begin > end) return bad("data_offsets end at ", end, " before they begin at ", begin);
  if (end > available) {
    return bad("data ends at byte ", end, " of the data but the file has only ", available, "; the file is cut short");
  }
  if (end - begin != static_cast<uint64_t>(wanted)) {
    return bad("data_offsets span ", end - begin, " bytes but ", entry.dtype, ShapeText(entry.shape), " needs ",
               wanted);
  }
  entry.begin = data_begin + static_cast<int64_t>(begin);
  entry.end = data_begin + static_cast<int64_t>(end);
  return entry;
}

// The format allows neither overlaps nor gaps nor bytes after the last tensor.
absl::Status CheckCoverage(const SafetensorsHeader& header, int64_t data_begin, int64_t num_bytes,
                           const std::string& path) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> by_position;
  for (const auto& [name, entry] : header.tensors) by_position.emplace_back(&entry, &name);
  std::sort(by_position.begin(), by_position.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->begin, a.first->end, *a.second) < std::tie(b.first->begin, b.first->end, *b.second);
  });
  int64_t position = data_begin;
  for (const auto& [entry, name] : by_position) {
    if (entry->begin != position) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", *name, "\": data begins at byte ",
                                                     entry->begin - data_begin, " of the data, which ",
                                                     entry->begin < position ? "overlaps" : "leaves a gap after",
                                                     " the tensor before it (ends at ", position - data_begin, ")"));
    }
    position = entry->end;
  }
  if (position != num_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", num_bytes - position, " bytes after the last tensor; the file is damaged"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> DtypeBytes(const std::string& dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (dtype == row.name) return row.bytes;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype \"", dtype, "\""));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensors(const char* data, int64_t num_bytes, const std::string& path) {
  if (num_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", num_bytes, " bytes is too short for a safetensors file; it is cut short"));
  }
  const int64_t header_bytes = ReadLittleEndian(data);
  if (header_bytes > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header of ", header_bytes, " bytes is over the limit of ",
                                                   kMaxHeaderBytes, "; the file is damaged or not safetensors"));
  }
  if (header_bytes > num_bytes - kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header of ", header_bytes, " bytes but only ",
                                                   num_bytes - kLengthBytes, " bytes follow; the file is cut short"));
  }
  const int64_t data_begin = kLengthBytes + header_bytes;
  absl::StatusOr<json> parsed = ParseStrictly(data + kLengthBytes, data + data_begin, path);
  if (!parsed.ok()) return parsed.status();
  SafetensorsHeader header;
  for (const auto& item : parsed->items()) {
    if (item.key() == "__metadata__") {
      if (!item.value().is_object())
        return absl::InvalidArgumentError(absl::StrCat(path, ": __metadata__ is not an object"));
      for (const auto& pair : item.value().items()) {
        if (!pair.value().is_string()) {
          return absl::InvalidArgumentError(absl::StrCat(path, ": __metadata__ \"", pair.key(), "\" is not a string"));
        }
        header.metadata.emplace(pair.key(), pair.value().get<std::string>());
      }
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry =
        ParseEntry(item.value(), data_begin, num_bytes, absl::StrCat(path, ": tensor \"", item.key(), "\""));
    if (!entry.ok()) return entry.status();
    header.tensors.emplace(item.key(), *std::move(entry));
  }
  if (absl::Status status = CheckCoverage(header, data_begin, num_bytes, path); !status.ok()) return status;
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const InputFile& file) {
  std::vector<char> begin(std::min(file.num_bytes(), kLengthBytes));
  if (absl::Status status = file.Read(0, begin.data(), begin.size()); !status.ok()) return status;
  if (file.num_bytes() >= kLengthBytes) {
    // What is not there, or too long, is refused before it is looked at.
    const int64_t header_bytes = std::min(ReadLittleEndian(begin.data()), kMaxHeaderBytes);
    begin.resize(std::min(file.num_bytes(), kLengthBytes + header_bytes));
    if (absl::Status status = file.Read(0, begin.data(), begin.size()); !status.ok()) return status;
  }
  return ParseSafetensors(begin.data(), file.num_bytes(), file.path());
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (!file.ok()) return file.status();
  absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(**file);
  if (!header.ok()) return header.status();
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(*std::move(file), *std::move(header)));
}

absl::Status SafetensorsFile::Read(int64_t begin, const Rectangle& source, const Rectangle& target,
                                   int64_t element_bytes, char* out) const {
  return ForEachRun(source, target, [&](int64_t from, int64_t to, int64_t num_elements) {
    return file_->Read(begin + from * element_bytes, out + to * element_bytes, num_elements * element_bytes);
  });
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<Tensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t position = 0;
  for (const Tensor& tensor : tensors) {
    const auto bad = [&](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", tensor.name, "\": ", what...));
    };
    if (tensor.name == "__metadata__" || header.contains(tensor.name)) return bad("the name is taken");
    const absl::StatusOr<int64_t> dtype_bytes = DtypeBytes(tensor.dtype);
    if (!dtype_bytes.ok()) return bad(dtype_bytes.status().message());
    const absl::optional<int64_t> elements = NumElements(tensor.shape);
    int64_t tensor_bytes = 0;
    int64_t end = 0;
    if (!elements.has_value() || __builtin_mul_overflow(*elements, *dtype_bytes, &tensor_bytes) ||
        __builtin_add_overflow(position, tensor_bytes, &end)) {
      return bad("shape ", ShapeText(tensor.shape), " is not valid");
    }
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {position, end}}};
    position = end;
  }
  // dump's other ways of handling a name that is not UTF-8 would change it silently.
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a tensor name or metadata is not valid UTF-8"));
  }
  // Padded so that the data begins at a multiple of 8, as the reference implementation does.
  text.append((8 - text.size() % 8) % 8, ' ');
  char length[kLengthBytes];
  for (int i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  absl::StatusOr<std::unique_ptr<OutputFile>> file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(length, kLengthBytes); !status.ok()) return status;
  if (absl::Status status = (*file)->Append(text.data(), text.size()); !status.ok()) return status;
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(*std::move(file), position));
}

absl::Status SafetensorsWriter::Append(const void* data, int64_t num_bytes) {
  missing_bytes_ -= num_bytes;
  return file_->Append(data, num_bytes);
}

absl::StatusOr<FileHash> SafetensorsWriter::Finish() {
  if (missing_bytes_ != 0) {
    return absl::FailedPreconditionError(absl::StrCat(file_->path(), ": appended ", std::abs(missing_bytes_), " bytes ",
                                                      missing_bytes_ > 0 ? "fewer" : "more",
                                                      " than the header declares"));
  }
  if (absl::Status status = file_->Finish(); !status.ok()) return status;
  return FileHash{file_->num_bytes(), file_->HexDigest()};
}

}  // namespace tacc::worker
