// How a rank and its client write to each other (docs/contracts.md): frames of a header's length (4 bytes, little
// endian), a header (a JSON object), and as many further bytes as its field `bytes` says.
#ifndef TACC_WORKER_RANK_SESSION_FRAME_H_
#define TACC_WORKER_RANK_SESSION_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {

// The frame's beginning: length and header, to which `bytes` is added where it is not 0.
std::string FrameHead(nlohmann::json header, size_t num_bytes);

// Takes a frame apart as it comes, into no more memory than its reader has allowed.
class FrameReader {
 public:
  // A longer header is an error.
  explicit FrameReader(uint32_t max_header_bytes) : max_header_bytes_(max_header_bytes) {}

  // Given a header, says how many further bytes it may have; an error ends the connection.
  using Check = absl::FunctionRef<absl::StatusOr<int64_t>(const nlohmann::json& header)>;

  // Where to read to next, not empty.
  absl::Span<char> Space();
  // So many bytes were read there. True: the frame is whole. InvalidArgument: it is none, or longer or deeper than
  // allowed.
  absl::StatusOr<bool> Read(size_t count, Check check);

  // Of the frame that is whole; taking it begins the next one.
  nlohmann::json header;
  std::string bytes;
  void Reset(uint32_t max_header_bytes) { *this = FrameReader(max_header_bytes); }

 private:
  enum class Part { kLength, kHeader, kBytes };
  uint32_t max_header_bytes_;
  Part part_ = Part::kLength;
  size_t num_read_ = 0;  // Of this part.
  std::string text_ = std::string(sizeof(uint32_t), '\0');
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_FRAME_H_
