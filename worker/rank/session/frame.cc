#include "worker/rank/session/frame.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

// What copies and prints a value calls itself for each level: one of any depth would take a stack of any size.
constexpr int kMaxDepth = 8;

// A discarded value: it is no JSON.
absl::StatusOr<nlohmann::json> ParsedHeader(const std::string& text) {
  bool is_deep = false;
  const auto keep = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    is_deep = is_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  nlohmann::json header = nlohmann::json::parse(text, keep, /*allow_exceptions=*/false);
  if (is_deep)
    return absl::InvalidArgumentError(
        absl::StrCat("a frame's header has values inside values more than ", kMaxDepth, " deep"));
  return header;
}

}  // namespace

static_assert(std::endian::native == std::endian::little);

std::string FrameHead(nlohmann::json header, size_t num_bytes) {
  if (num_bytes > 0) header["bytes"] = num_bytes;
  const std::string text = header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const uint32_t length = text.size();
  std::string head(sizeof(length), '\0');
  std::memcpy(head.data(), &length, sizeof(length));
  return head + text;
}

absl::Span<char> FrameReader::Space() {
  std::string& to = part_ == Part::kBytes ? bytes : text_;
  return absl::MakeSpan(to).subspan(num_read_);
}

absl::StatusOr<bool> FrameReader::Read(size_t count, Check check) {
  num_read_ += count;
  if (part_ == Part::kLength && num_read_ == text_.size()) {
    uint32_t length = 0;
    std::memcpy(&length, text_.data(), sizeof(length));
    if (length == 0 || length > max_header_bytes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame's header of ", length, " bytes; wanted 1 to ", max_header_bytes_));
    }
    part_ = Part::kHeader;
    num_read_ = 0;
    text_.assign(length, '\0');
    return false;
  }
  if (part_ == Part::kHeader && num_read_ == text_.size()) {
    TACC_ASSIGN_OR_RETURN(header, ParsedHeader(text_));
    if (!header.is_object()) return absl::InvalidArgumentError("a frame's header is no JSON object");
    const auto found = header.find("bytes");
    if (found != header.end() && !found->is_number_unsigned())
      return absl::InvalidArgumentError("a frame's \"bytes\" is no whole number");
    const uint64_t num_bytes = found == header.end() ? 0 : found->get<uint64_t>();
    TACC_ASSIGN_OR_RETURN(const int64_t most, check(header));
    if (num_bytes > static_cast<uint64_t>(most)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a frame of ", num_bytes, " bytes behind its header; at most ", most, " may be"));
    }
    part_ = Part::kBytes;
    num_read_ = 0;
    bytes.assign(num_bytes, '\0');
  }
  return part_ == Part::kBytes && num_read_ == bytes.size();
}

}  // namespace tacc::worker
