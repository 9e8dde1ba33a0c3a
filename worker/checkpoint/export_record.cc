#include "worker/checkpoint/export_record.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sealed_json.h"

namespace tacc::worker {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kRecordFormat = 1;
constexpr int64_t kMaxRecordBytes = 64 << 20;

}  // namespace

std::string ExportRecordToJson(const ExportRecord& record) {
  ordered_json files = ordered_json::array();
  for (const ManifestFile& file : record.files) {
    files.push_back({{"name", file.name}, {"bytes", file.num_bytes}, {"sha256", file.sha256}});
  }
  const ordered_json json = {
      {"format", kRecordFormat},
      {"version", record.version},
      {"checkpoint",
       {{"name", record.checkpoint}, {"attempt", record.attempt}, {"manifest_sha256", record.manifest_sha256}}},
      {"files", std::move(files)}};
  return SealJson(json.dump());
}

absl::StatusOr<ExportRecord> ReadExportRecord(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kExportRecordName);
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxRecordBytes);
  if (!text.ok()) return text.status();
  if (absl::Status status = CheckSeal(*text, path).status(); !status.ok()) return status;
  try {  // Sealed: what is missing here, another version has left out.
    const ordered_json json = ParseOrderedJson(*text);
    if (json.at("format").get<int64_t>() != kRecordFormat) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": of a later version"));
    }
    ExportRecord record;
    record.version = json.at("version").get<std::string>();
    const ordered_json& checkpoint = json.at("checkpoint");
    record.checkpoint = checkpoint.at("name").get<std::string>();
    record.attempt = checkpoint.at("attempt").get<int64_t>();
    record.manifest_sha256 = checkpoint.at("manifest_sha256").get<std::string>();
    for (const ordered_json& file : json.at("files")) {
      record.files.push_back(
          {file.at("name").get<std::string>(), file.at("bytes").get<int64_t>(), file.at("sha256").get<std::string>()});
    }
    return record;
  } catch (const ordered_json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

absl::Status CheckExport(const std::string& directory, const Manifest& manifest) {
  const absl::StatusOr<ExportRecord> record = ReadExportRecord(directory);
  if (!record.ok()) return record.status();
  if (record->manifest_sha256 != manifest.sha256) {
    return absl::FailedPreconditionError(absl::StrCat(directory, ": is the export of another checkpoint, ",
                                                      record->checkpoint, " of attempt ", record->attempt));
  }
  for (const ManifestFile& file : record->files) {
    const std::string path = absl::StrCat(directory, "/", file.name);
    std::error_code error;
    const int64_t num_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
    if (error) return ErrnoStatus(error.value(), path);
    if (absl::EndsWith(file.name, ".safetensors") && num_bytes != file.num_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has ", num_bytes, " bytes, but ", file.num_bytes, " were written"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
