// Which pretrained weights a Hugging Face model directory holds.
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_MODEL_FINGERPRINT_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_MODEL_FINGERPRINT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

// Content is hashed up to about here, a second's work; a larger model's in pieces evenly spread over each tensor.
inline constexpr int64_t kFingerprintBytes = int64_t{1} << 30;

// Returns "39 tensors, 60123456 bytes, 0123456789abcdef": the same for the same tensors (names, dtypes, shapes and
// content), wherever the directory lies and however they are split into files. Reads the headers of all files and about
// `budget_bytes` of the tensors: all of a model of at most that size, else one piece of 64 KiB in so many, the first of
// each tensor among them, so that weights that were trained further are told apart. Maps nothing: needs little memory.
// Errors as ModelWeights::Open.
absl::StatusOr<std::string> ModelFingerprint(const std::string& directory, int64_t budget_bytes = kFingerprintBytes);

// The same of an adapter's folder (adapter_model.safetensors), in all its bytes. `base`: the fingerprint of the model
// that it is to be used with. InvalidArgument, beside damage: the file says that it was trained on another one, as one
// does that this program has written (kAdapterBaseKey).
absl::StatusOr<std::string> AdapterFingerprint(const std::string& directory, const std::string& base);

// In the metadata of adapter_model.safetensors: the fingerprint of the base.
inline constexpr char kAdapterBaseKey[] = "base_model";

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_MODEL_FINGERPRINT_H_
