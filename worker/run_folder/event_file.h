// The records of TensorBoard's event files.
// Source: TensorFlow, tensorflow/core/util/event.proto and framework/summary.proto (messages), lib/io/record_writer.h
// (framing). Of the messages only the fields that a reader of scalars needs.
#ifndef TACC_WORKER_RUN_FOLDER_EVENT_FILE_H_
#define TACC_WORKER_RUN_FOLDER_EVENT_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tacc::worker {

struct Scalar {
  std::string tag;  // "train/loss": the part before the slash is a section of the page.
  double value = 0;
};

// All return a whole record: length, its masked crc32c, an Event, its masked crc32c. Times are seconds since the epoch.

// The first of each file.
std::string FileVersionRecord(double time);
// The run goes on: what earlier files of the folder say of `first_step` and later steps no longer counts.
std::string SessionStartRecord(double time, int64_t first_step);
std::string ScalarsRecord(double time, int64_t step, const std::vector<Scalar>& scalars);

// CRC-32C (Castagnoli), as iSCSI has it.
uint32_t Crc32c(absl::string_view bytes);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RUN_FOLDER_EVENT_FILE_H_
