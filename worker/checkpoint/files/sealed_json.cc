#include "worker/checkpoint/files/sealed_json.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc::worker {
namespace {

constexpr size_t kHashDigits = 64;
constexpr char kSealEnd[] = "\"}\n";

std::string SealBegin() { return absl::StrCat(",\"", kSealKey, "\":\""); }

std::string HashOf(absl::string_view bytes) {
  Sha256 sha256;
  sha256.Update(bytes.data(), bytes.size());
  return sha256.HexDigest();
}

}  // namespace

std::string SealJson(const std::string& object) {
  const std::string content = object.substr(0, object.rfind('}'));
  return absl::StrCat(content, SealBegin(), HashOf(content), kSealEnd);
}

absl::StatusOr<std::string> CheckSeal(const std::string& text, const std::string& path) {
  const std::string begin = SealBegin();
  const size_t seal_bytes = begin.size() + kHashDigits + (sizeof(kSealEnd) - 1);
  const absl::string_view all = text;
  const size_t content_bytes = all.size() < seal_bytes ? 0 : all.size() - seal_bytes;
  const absl::string_view seal = all.substr(content_bytes);
  if (content_bytes == 0 || !absl::StartsWith(seal, begin) || !absl::EndsWith(seal, kSealEnd)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": does not end with the checksum of its content; the file is damaged"));
  }
  const std::string hash = HashOf(all.substr(0, content_bytes));
  if (seal.substr(begin.size(), kHashDigits) != hash) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": its content has the SHA-256 ", hash, " but it says ",
                                                   seal.substr(begin.size(), kHashDigits), "; the file is damaged"));
  }
  return hash;
}

}  // namespace tacc::worker
