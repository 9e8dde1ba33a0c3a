// How a job names a folder that a client has uploaded: "upload:" and its id.
#ifndef TACC_PROTO_TACC_V1_UPLOAD_NAME_H_
#define TACC_PROTO_TACC_V1_UPLOAD_NAME_H_

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tacc {

inline constexpr absl::string_view kUploadPrefix = "upload:";

// The file of an upload that `model.graph` means.
inline constexpr char kUploadedGraph[] = "model.graph";

// The id of the upload that a path of a job names; empty: it is a path.
inline std::string UploadId(absl::string_view path) {
  return absl::StartsWith(path, kUploadPrefix) ? std::string(path.substr(kUploadPrefix.size())) : "";
}

}  // namespace tacc

#endif  // TACC_PROTO_TACC_V1_UPLOAD_NAME_H_
