#include "worker/checkpoint/folder_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxWriterBytes = 64 << 10;

std::string WriterPath(const std::string& dir) { return absl::StrCat(dir, "/", kWriterFileName); }

template <typename T>
T WriterField(const Json& json, const char* name) {
  const auto value = json.find(name);
  if (value == json.end()) return T();
  if constexpr (std::is_same_v<T, std::string>) return value->is_string() ? value->template get<T>() : T();
  if constexpr (std::is_same_v<T, bool>) return value->is_boolean() && value->template get<bool>();
  if constexpr (std::is_same_v<T, double>) return value->is_number() ? value->template get<T>() : T();
}

// -1: no whole number from 0 to `max`.
int64_t WholeField(const Json& json, const char* name, int64_t max) {
  const auto value = json.find(name);
  if (value == json.end()) return 0;
  if (!value->is_number_integer()) return -1;
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(max)) return -1;
  const int64_t number = value->get<int64_t>();
  return number < 0 ? -1 : number;
}

}  // namespace

absl::StatusOr<absl::optional<FolderWriter>> ReadFolderWriter(const std::string& dir) {
  const absl::StatusOr<std::string> text = ReadSmallFile(WriterPath(dir), kMaxWriterBytes);
  if (absl::IsNotFound(text.status()) || absl::IsInvalidArgument(text.status())) return absl::nullopt;
  if (!text.ok()) return text.status();
  const Json json = ParseOrderedJson(*text);
  if (!json.is_object()) return absl::nullopt;
  FolderWriter writer;
  writer.service = WriterField<std::string>(json, "service");
  writer.job = WriterField<std::string>(json, "job");
  writer.attempt = WholeField(json, "attempt", kMaxAttempt);
  writer.last_attempt = WholeField(json, "last_attempt", kMaxAttempt);
  writer.host = WriterField<std::string>(json, "host");
  writer.pid = WholeField(json, "pid", std::numeric_limits<int32_t>::max());
  writer.since = WriterField<double>(json, "since");
  writer.renewed = WriterField<double>(json, "renewed");
  writer.has_ended = WriterField<bool>(json, "ended");
  writer.locked_boot = WriterField<std::string>(json, "locked_boot");
  if (writer.service.empty() || writer.attempt < 0 || writer.last_attempt < 0 || writer.pid < 0) return absl::nullopt;
  return writer;
}

absl::Status WriteFolderWriter(const std::string& dir, FolderWriter writer) {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = 0;
  writer.renewed = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const std::string text = Json({{"service", writer.service},
                                 {"job", writer.job},
                                 {"attempt", writer.attempt},
                                 {"last_attempt", writer.last_attempt},
                                 {"host", host},
                                 {"pid", getpid()},
                                 {"since", writer.since},
                                 {"renewed", writer.renewed},
                                 {"ended", writer.has_ended},
                                 {"locked_boot", writer.locked_boot}})
                               .dump(-1, ' ', false, Json::error_handler_t::replace);
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random))
    return ErrnoStatus(errno, absl::StrCat(WriterPath(dir), ": no random numbers"));
  const std::string temporary = absl::StrCat(dir, "/", kTemporaryWriterPrefix, absl::Hex(random, absl::kZeroPad16));
  // Who asks may be another user, if the umask lets one.
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(WriterPath(dir), ": cannot be written"));
  const ssize_t num_written = write(fd, text.data(), text.size());
  int error = num_written < 0 ? errno : 0;
  if (close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && num_written < static_cast<ssize_t>(text.size())) error = ENOSPC;
  if (error == 0 && rename(temporary.c_str(), WriterPath(dir).c_str()) == 0) return absl::OkStatus();
  if (error == 0) error = errno;
  unlink(temporary.c_str());
  return ErrnoStatus(error, absl::StrCat(WriterPath(dir), ": cannot be written"));
}

std::string FolderUser(const std::string& dir, const FolderWriter& writer, const std::string& service) {
  const std::string since =
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::UnixEpoch() + absl::Seconds(writer.since), absl::UTCTimeZone());
  return absl::StrCat("checkpoint.dir ", dir, " is used by job ", writer.job,
                      writer.service == service ? "" : " of another service", " (",
                      writer.attempt > 0 ? absl::StrCat("attempt ", writer.attempt, ", ") : "", "pid ", writer.pid,
                      " on ", writer.host, ", since ", since, ")");
}

}  // namespace tacc::worker
