// What an exported folder says about itself: which checkpoint it is of, and what was written.
#ifndef TACC_WORKER_CHECKPOINT_EXPORT_RECORD_H_
#define TACC_WORKER_CHECKPOINT_EXPORT_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/manifest.h"

namespace tacc::worker {

inline constexpr char kExportRecordName[] = "tacc_export.json";

struct ExportRecord {
  std::string version;          // Of the program that wrote the checkpoint.
  std::string checkpoint;       // "step-00000200.a1".
  int64_t attempt = 0;          // The checkpoint's.
  std::string manifest_sha256;  // The checkpoint's: no other one has it.
  std::vector<ManifestFile> files;
};

// Returns the JSON text, sealed (sealed_json.h).
std::string ExportRecordToJson(const ExportRecord& record);

// Reads that of an exported folder. NotFound: there is none; InvalidArgument: it is damaged.
absl::StatusOr<ExportRecord> ReadExportRecord(const std::string& directory);

// OK when the folder is the export of the checkpoint with this manifest, and whole: every file that was written is
// there, and those with weights have the size that they were written with. (Other files may have been edited since;
// nothing is hashed.) Otherwise the error says what is missing.
absl::Status CheckExport(const std::string& directory, const Manifest& manifest);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_EXPORT_RECORD_H_
