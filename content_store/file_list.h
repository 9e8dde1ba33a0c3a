// The files of a folder, and what names a folder by its content.
#ifndef TACC_CONTENT_STORE_FILE_LIST_H_
#define TACC_CONTENT_STORE_FILE_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tacc {

struct ListedFile {
  std::string name;    // In the folder itself: no path.
  std::string sha256;  // 64 lower-case hex digits.
  int64_t num_bytes = 0;
};
using FileList = std::vector<ListedFile>;
// Of a file: the sum of all is a number, whatever a list says.
inline constexpr int64_t kMaxListedBytes = int64_t{1} << 48;

// 64 lower-case hex digits, as a SHA-256.
bool IsSha256(absl::string_view text);

// InvalidArgument: no files or too many, a name that is no plain name or comes twice, a hash or a size that is none.
absl::Status CheckFileList(const FileList& files);

// A line for each file, "SHA256 BYTES NAME", in the order of names.
std::string FileListText(FileList files);
absl::StatusOr<FileList> ParseFileList(const std::string& text);

// The SHA-256 of FileListText: the same for folders that hold the same.
std::string FolderId(const FileList& files);

}  // namespace tacc

#endif  // TACC_CONTENT_STORE_FILE_LIST_H_
