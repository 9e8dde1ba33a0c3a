#include "coordinator/service/log_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "text/utf8.h"

namespace tacc::coordinator {
namespace {

constexpr size_t kPageBytes = 256 << 10;
constexpr size_t kMaxLineBytes = 4096;

int64_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : static_cast<int64_t>(size);
}

constexpr char kBegin[] = "begin\t";

// At which position of the log the file begins, by its first line.
int64_t BeginOf(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  int64_t begin = 0;
  if (!std::getline(in, line) || !absl::StartsWith(line, kBegin)) return 0;
  return absl::SimpleAtoi(line.substr(sizeof(kBegin) - 1), &begin) && begin > 0 ? begin : 0;
}

// time TAB attempt TAB rank TAB text
bool ParseLine(const std::string& line, v1::LogLine* out) {
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits('\t', 3));
  double time = 0;
  int attempt = 0;
  int rank = 0;
  if (fields.size() != 4 || !absl::SimpleAtod(fields[0], &time) || !absl::SimpleAtoi(fields[1], &attempt) ||
      !absl::SimpleAtoi(fields[2], &rank)) {
    return false;
  }
  out->set_time(time);
  out->set_attempt(attempt);
  out->set_rank(rank);
  out->set_text(fields[3]);
  return true;
}

// One line of what a rank wrote, which need not be text.
std::string Clean(const std::string& line) {
  std::string text = ValidUtf8(line, kMaxLineBytes);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string LogFiles::Path(const std::string& job) const { return absl::StrCat(jobs_dir_, "/", job, "/ranks.log"); }

LogFiles::Files& LogFiles::Open(const std::string& job) {
  auto [it, inserted] = files_.try_emplace(job);
  if (inserted) {
    it->second.current_bytes = SizeOf(Path(job));
    it->second.old_bytes = SizeOf(Path(job) + ".1");
    it->second.begin = BeginOf(it->second.old_bytes > 0 ? Path(job) + ".1" : Path(job));
  }
  return it->second;
}

absl::Status LogFiles::Append(const v1::RankId& id, const v1::RankLog& log) {
  Files& files = Open(id.job());
  std::string text;
  if (const int64_t begin = files.begin + files.old_bytes; files.current_bytes == 0 && begin > 0)
    absl::StrAppend(&text, kBegin, begin, "\n");
  for (const std::string& line : log.lines()) {
    absl::StrAppend(&text, absl::StrFormat("%.3f", log.time()), "\t", id.attempt(), "\t", id.rank(), "\t", Clean(line),
                    "\n");
  }
  const std::string path = Path(id.job());
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  std::ofstream out(path, std::ios::binary | std::ios::app);
  out << text;
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  files.current_bytes += static_cast<int64_t>(text.size());
  if (files.current_bytes >= max_file_bytes_) {
    std::filesystem::rename(path, path + ".1", ignored);
    files.begin += files.old_bytes;
    files.old_bytes = files.current_bytes;
    files.current_bytes = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<LogFiles::Page> LogFiles::Read(const std::string& job, int64_t position) {
  const Files& files = Open(job);
  Page page;
  page.next = std::max(position, files.begin);
  const int64_t middle = files.begin + files.old_bytes;
  const int64_t end = middle + files.current_bytes;
  if (page.next >= end) {
    page.next = end;  // Of a log that was lost with the coordinator's folder, a position may be beyond it.
    return page;
  }
  const bool old = page.next < middle;
  std::ifstream in(old ? Path(job) + ".1" : Path(job), std::ios::binary);
  in.seekg(page.next - (old ? files.begin : middle));
  std::string text(kPageBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  const size_t last = text.rfind('\n');
  if (last == std::string::npos) {
    // A torn end, or a file that someone else changed: nothing more to read from it.
    page.next = old ? middle : end;
    return page;
  }
  text.resize(last + 1);
  page.next += static_cast<int64_t>(text.size());
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    v1::LogLine parsed;
    if (ParseLine(std::string(line), &parsed)) page.lines.push_back(std::move(parsed));
  }
  return page;
}

void LogFiles::Forget(const std::string& job) {
  std::error_code ignored;
  for (const char* suffix : {"", ".1"}) std::filesystem::remove(Path(job) + suffix, ignored);
  files_.erase(job);
}

}  // namespace tacc::coordinator
