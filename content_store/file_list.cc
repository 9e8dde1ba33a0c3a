#include "content_store/file_list.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc {
namespace {

constexpr size_t kMaxFiles = 10'000;
constexpr size_t kMaxNameBytes = 255;  // As file systems have it.

bool IsPlainName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c == '/' || c < ' ' || c == 0x7f; });
}

}  // namespace

bool IsSha256(absl::string_view text) {
  constexpr size_t kDigits = 64;
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

absl::Status CheckFileList(const FileList& files) {
  if (files.empty() || files.size() > kMaxFiles)
    return absl::InvalidArgumentError(absl::StrCat("a folder of ", files.size(), " files; wanted 1 to ", kMaxFiles));
  std::set<std::string> names;
  for (const ListedFile& file : files) {
    const std::string shown = file.name.substr(0, 80);
    if (!IsPlainName(file.name))
      return absl::InvalidArgumentError(
          absl::StrCat("\"", shown, "\" is no name of a file: no slash, no dot at its beginning, 1 to 255 bytes"));
    if (!names.insert(file.name).second) return absl::InvalidArgumentError(absl::StrCat(shown, " is there twice"));
    if (!IsSha256(file.sha256))
      return absl::InvalidArgumentError(absl::StrCat(shown, ": its SHA-256 is not 64 lower-case hex digits"));
    if (file.num_bytes < 0 || file.num_bytes > kMaxListedBytes)
      return absl::InvalidArgumentError(
          absl::StrCat(shown, ": ", file.num_bytes, " bytes; a file has 0 to ", kMaxListedBytes));
  }
  return absl::OkStatus();
}

std::string FileListText(FileList files) {
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  std::string text;
  for (const ListedFile& file : files) absl::StrAppend(&text, file.sha256, " ", file.num_bytes, " ", file.name, "\n");
  return text;
}

absl::StatusOr<FileList> ParseFileList(const std::string& text) {
  FileList files;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 2));
    ListedFile file;
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &file.num_bytes))
      return absl::InvalidArgumentError(absl::StrCat("\"", line.substr(0, 80), "\" is no line of a list of files"));
    file.sha256 = parts[0];
    file.name = parts[2];
    files.push_back(std::move(file));
  }
  if (absl::Status status = CheckFileList(files); !status.ok()) return status;
  return files;
}

std::string FolderId(const FileList& files) {
  const std::string text = FileListText(files);
  worker::Sha256 sha256;
  sha256.Update(text.data(), text.size());
  return sha256.HexDigest();
}

}  // namespace tacc
