// Export of a checkpoint as a plain Hugging Face model directory, or as the folder of a graph.
#ifndef TACC_WORKER_CHECKPOINT_EXPORT_H_
#define TACC_WORKER_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

struct ExportRequest {
  std::string checkpoint;  // Path of a step-N.aK directory.
  // The model that was trained; empty: where the checkpoint says that it was, and if it is no longer there, without its
  // files but for config.json. Of a graph its folder; if that is no longer there, only weights are written.
  std::string model_dir;
  std::string out_dir;   // Its missing parents are made.
  std::string data_dir;  // The data that it was trained on; empty: the one that the checkpoint names.
  // Of the job that exports: Aborted when a later one has exported its checkpoint there. 0: whatever is there is
  // replaced.
  int64_t attempt = 0;
  // Weights over this size are written as several files and an index; transformers' own default.
  int64_t max_file_bytes = 5'000'000'000;
  // The text of config.json; empty: the one in the checkpoint, or in model_dir where that has none (one of an earlier
  // version).
  std::string config_json;
  // Of a training of adapters: a folder as peft writes it (adapter_config.json, adapter_model.safetensors), or the
  // whole model with the adapters added to its weights.
  enum class Adapters { kApart, kMerged } adapters = Adapters::kApart;
};

struct ExportResult {
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;        // Of the weights.
  std::string dtype;            // "F32", "BF16" or "F16".
  bool config_changed = false;  // model_dir has another config.json than was written.
};

// The directory with the tokenizer of a model: its own, or else that of the data (`tokenizer` in it or beside it);
// empty when there is none. Either may be empty.
std::string FindTokenizer(const std::string& model_dir, const std::string& data_dir);

// Writes config.json, as it was when the training began (byte for byte; where it names no `architectures`, with the
// class that the checkpoint names), the tokenizer's files (FindTokenizer), generation_config.json and Python files of
// model_dir, and the checkpoint's weights under their own names, in their stored shapes and the config's dtype
// (`dtype`, else `torch_dtype`, else fp32). A weight that is tied to another exists once in the checkpoint and so in
// the export. Equal input gives equal bytes, and an export trained for no step and exported again is equal to itself
// but for its record.
//
// Of a model that is a graph: model.graph, as a job reads it, with its export.json, the weights, in fp32, and where
// there is a config.json beside the graph what is written of a model's directory.
//
// A checkpoint does not hold weights that were frozen: they come from model_dir, whose weights must be those that the
// training read, and are written as they are. With request.adapters == kMerged the products of adapters are added to
// them in fp32. The folder of an adapter needs no model_dir, but for the tokenizer; its tensors are fp32, and its
// metadata holds the fingerprint of the base.
//
// The directory appears complete or not at all, also while others export to it (folder_publication.h), and says what
// was written (export_record.h). An existing out_dir is replaced when it holds nothing but what an export writes, else
// AlreadyExists names the foreign file (CheckExportFolder). The checkpoint's checksums are verified first. OK: out_dir
// was seen to be what this call wrote. InvalidArgument: a damaged checkpoint, a dtype in config.json that cannot be
// written, no adapters to merge, or a model_dir that is not there or holds other weights than those that were frozen;
// Unavailable: model_dir's config.json was needed and is no JSON object, as one that is being written;
// ResourceExhausted: the disk is full.
absl::StatusOr<ExportResult> ExportCheckpoint(const ExportRequest& request);

// OK when nothing that lies at `out_dir` now would make an export of this model to it fail. AlreadyExists says what
// does and what to do.
absl::Status CheckExportFolder(const std::string& model_dir, const std::string& out_dir);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_EXPORT_H_
