#include "worker/data/shards.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "json/parse_json.h"
#include "machine/tacc_python.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "shards are little-endian and read as they are");

constexpr int kForReading = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // A pipe that nobody writes would be waited for.
constexpr char kIndexName[] = "index.json";
constexpr char kFormat[] = "tacc-data";
constexpr int64_t kVersion = 1;
constexpr char kMagic[8] = {'t', 'a', 'c', 'c', 'd', 'a', 't', 'a'};
constexpr int64_t kHeaderBytes = 64;
constexpr int64_t kColumnBytes = 32;
constexpr int64_t kMaxColumns = 16;
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr int64_t kMaxVocabSize = 1 << 26;

// The first 64 bytes of a shard; `num_columns` column descriptors follow.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t num_columns;
  uint64_t num_tokens;
  uint8_t zero[40];
};
static_assert(sizeof(Header) == kHeaderBytes);

struct Column {
  char name[16];  // Padded with zero bytes.
  uint64_t element_bytes;
  uint64_t offset;  // From the start of the file.
};
static_assert(sizeof(Column) == kColumnBytes);

std::string PrepareAdvice(const std::string& path) {
  return absl::StrCat("prepare it with: ", WithTaccPython("python -m tacc data prepare --tokenizer MODEL_DIR --input "),
                      ShellWord(path), " --out ", ShellWord(path + ".tacc"));
}

// NotFound and PermissionDenied, else Unavailable.
absl::StatusCode CodeOf(int error) {
  if (error == ENOTDIR) return absl::StatusCode::kNotFound;
  const absl::StatusCode code = absl::ErrnoToStatusCode(error);
  const bool is_kept = code == absl::StatusCode::kNotFound || code == absl::StatusCode::kPermissionDenied;
  return is_kept ? code : absl::StatusCode::kUnavailable;
}

// What to say of a folder or file that has no index.
absl::Status NotPrepared(const std::string& dir) {
  std::error_code error;
  if (!fs::exists(dir, error)) {
    return error ? absl::Status(CodeOf(error.value()), absl::StrCat(dir, ": ", error.message()))
                 : absl::NotFoundError(absl::StrCat(dir, ": no such folder"));
  }
  std::string path = dir;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (!fs::is_directory(dir, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(dir, ": is a file, not a prepared data folder; if it is raw text, ", PrepareAdvice(path)));
  }
  int num_entries = 0;
  for (fs::directory_iterator entry(dir, error), end; !error && entry != end && num_entries < 1000;
       entry.increment(error)) {
    ++num_entries;
    if (entry->path().extension() == ".safetensors" || entry->path().filename() == "config.json") {
      return absl::InvalidArgumentError(absl::StrCat(dir, ": has no ", kIndexName,
                                                     "; it looks like a model, not like data; give the folder that ",
                                                     WithTaccPython("`python -m tacc data prepare --out` wrote")));
    }
  }
  if (error) return absl::Status(CodeOf(error.value()), absl::StrCat(dir, ": cannot be listed: ", error.message()));
  if (num_entries == 0) return absl::NotFoundError(absl::StrCat(dir, ": the folder is empty; ", PrepareAdvice("TEXT")));
  return absl::InvalidArgumentError(
      absl::StrCat(dir, ": has no ", kIndexName, "; it looks like raw text; ", PrepareAdvice(path)));
}

// Reads typed fields of one JSON object; notes what is missing or of another type.
template <typename Problems>
class Fields {
 public:
  Fields(const Json& object, std::string where, Problems* problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  void Count(const char* key, int64_t* value) {
    const Json* field = Find(key);
    if (field == nullptr) return;
    if (!field->is_number_unsigned() || field->get<uint64_t>() > INT64_MAX) {
      problems_->push_back(absl::StrCat(where_, key, " = ", field->dump(), "; it must be an integer of at least 0"));
      return;
    }
    *value = field->get<int64_t>();
  }

  void Text(const char* key, std::string* value) {
    const Json* field = Find(key);
    if (field == nullptr) return;
    if (!field->is_string()) {
      problems_->push_back(absl::StrCat(where_, key, " = ", field->dump(), "; it must be a text"));
      return;
    }
    *value = field->get<std::string>();
  }

  const Json* Find(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      problems_->push_back(absl::StrCat(where_, key, " is missing"));
      return nullptr;
    }
    return &*found;
  }

 private:
  const Json& object_;
  std::string where_;
  Problems* problems_;
};

// Reads the whole range. DataLoss: the file ends too early; codes of CodeOf: the system cannot read it.
absl::Status ReadFully(int file, void* data, int64_t count, int64_t offset) {
  char* out = static_cast<char*>(data);
  while (count > 0) {
    const ssize_t got = pread(file, out, count, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::Status(CodeOf(errno), absl::StrCat("read failed: ", std::strerror(errno)));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("the file ends at byte ", offset, ", ", count, " bytes too early"));
    }
    out += got;
    offset += got;
    count -= got;
  }
  return absl::OkStatus();
}

// Reads index.json of a folder of prepared data, as long as it is one. False: problems says why not.
bool ReadIndexJson(const std::string& dir, const std::string& path, Json* index,
                   std::vector<Dataset::Problem>* problems) {
  std::error_code error;
  const bool is_file = fs::is_regular_file(path, error);
  if (!is_file && (!error || CodeOf(error.value()) == absl::StatusCode::kNotFound)) {
    const absl::Status status = NotPrepared(dir);
    problems->push_back({std::string(status.message()), status.code()});
    return false;
  }
  const uintmax_t bytes = is_file ? fs::file_size(path, error) : 0;
  if (error) {
    problems->push_back({absl::StrCat(path, ": ", error.message()), CodeOf(error.value())});
    return false;
  }
  if (bytes > kMaxIndexBytes) {
    problems->push_back(absl::StrCat(path, ": ", bytes, " bytes, larger than any index"));
    return false;
  }
  std::string text(bytes, '\0');
  const int file = open(path.c_str(), kForReading);
  const absl::Status read = file < 0
                                ? absl::Status(CodeOf(errno), absl::StrCat("cannot be opened: ", std::strerror(errno)))
                                : ReadFully(file, text.data(), static_cast<int64_t>(bytes), 0);
  if (file >= 0) close(file);
  if (!read.ok() && !absl::IsDataLoss(read)) {
    problems->push_back({absl::StrCat(path, ": ", read.message(), "; check its permissions"), read.code()});
    return false;
  }
  if (!IsWithinJsonLimits(text)) {
    problems->push_back(absl::StrCat(path, ": nested deeper than ", kMaxJsonDepth, " levels; prepare the data again"));
    return false;
  }
  try {
    *index = Json::parse(text);
  } catch (const Json::parse_error& error) {  // Its own text would quote the bytes, which may be no UTF-8.
    problems->push_back(absl::StrCat(path, ": not valid JSON at byte ", error.byte, "; prepare the data again"));
    return false;
  } catch (const Json::out_of_range&) {
    problems->push_back(absl::StrCat(path, ": a number is too large; prepare the data again"));
    return false;
  }
  if (!index->is_object() || index->value("format", Json()) != Json(kFormat)) {
    problems->push_back(absl::StrCat(path, ": not the index of prepared data (no \"format\": \"", kFormat, "\"); ",
                                     PrepareAdvice(dir)));
    return false;
  }
  if (index->value("version", Json()) != Json(kVersion)) {
    problems->push_back(absl::StrCat(
        path, ": format version ", index->value("version", Json()).dump(), ", this program reads version ", kVersion,
        WithTaccPython("; prepare the data again with this version's `python -m tacc data prepare`")));
    return false;
  }
  return true;
}

// Reads the list of shards; returns their tokens. What is wrong is added to problems.
int64_t ReadShards(const Json& shards, const std::string& path, DatasetInfo* info,
                   std::vector<Dataset::Problem>* problems) {
  int64_t total_tokens = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string where = absl::StrCat(path, ": shards[", i, "]");
    if (!shards[i].is_object()) {
      problems->push_back(absl::StrCat(where, " must be an object"));
      continue;
    }
    ShardInfo shard;
    Fields inside(shards[i], absl::StrCat(where, "."), problems);
    inside.Text("name", &shard.name);
    inside.Count("num_tokens", &shard.num_tokens);
    inside.Count("num_documents", &shard.num_documents);
    inside.Count("num_bytes", &shard.num_bytes);
    inside.Text("sha256", &shard.sha256);
    if (absl::StrContains(shard.name, "/") || shard.name == "..") {
      problems->push_back(
          absl::StrCat(where, ".name = \"", shard.name, "\"; it must be a file name inside the folder"));
    }
    if (shard.num_tokens > (int64_t{1} << 40) || total_tokens > (int64_t{1} << 60)) {
      problems->push_back(absl::StrCat(where, ".num_tokens = ", shard.num_tokens, " is too large"));
      break;
    }
    total_tokens += shard.num_tokens;
    info->shards.push_back(std::move(shard));
  }
  return total_tokens;
}

}  // namespace

bool Dataset::ReadIndex(const std::string& dir, DatasetInfo* info, std::vector<Problem>* problems) {
  const std::string path = absl::StrCat(dir, "/", kIndexName);
  Json index;
  if (!ReadIndexJson(dir, path, &index, problems)) return false;
  const size_t problems_before = problems->size();
  Fields fields(index, absl::StrCat(path, ": "), problems);
  fields.Count("seq_len", &info->seq_len);
  fields.Count("num_tokens", &info->num_tokens);
  fields.Count("num_documents", &info->num_documents);
  fields.Count("max_token_id", &info->max_token_id);
  fields.Text("fingerprint", &info->fingerprint);
  if (const Json* tokenizer = fields.Find("tokenizer"); tokenizer != nullptr && tokenizer->is_object()) {
    Fields inside(*tokenizer, absl::StrCat(path, ": tokenizer."), problems);
    inside.Text("fingerprint", &info->tokenizer_fingerprint);
    inside.Count("vocab_size", &info->vocab_size);
    inside.Text("eos_token", &info->eos_token);
    inside.Count("eos_token_id", &info->eos_token_id);
  } else if (tokenizer != nullptr) {
    problems->push_back(absl::StrCat(path, ": tokenizer must be an object"));
  }
  const Json* shards = fields.Find("shards");
  if (shards != nullptr && !shards->is_array()) problems->push_back(absl::StrCat(path, ": shards must be a list"));
  if (problems->size() > problems_before) return false;

  const int64_t total_tokens = ReadShards(*shards, path, info, problems);
  if (problems->size() == problems_before && total_tokens != info->num_tokens) {
    problems->push_back(absl::StrCat(path, ": num_tokens = ", info->num_tokens, ", but its shards have ", total_tokens,
                                     " tokens; prepare the data again"));
  }
  if (info->vocab_size > kMaxVocabSize) {
    problems->push_back(absl::StrCat(path, ": tokenizer.vocab_size = ", info->vocab_size, "; at most ", kMaxVocabSize));
  }
  if (problems->size() == problems_before && info->max_token_id >= std::max<int64_t>(info->vocab_size, 1)) {
    problems->push_back(absl::StrCat(path, ": max_token_id = ", info->max_token_id,
                                     " is not below vocab_size = ", info->vocab_size, "; prepare the data again"));
  }
  return problems->size() == problems_before;
}

void Dataset::OpenShard(const ShardInfo& info, Shard* shard, std::vector<Problem>* problems) {
  const auto problem = [&](const std::string& what, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    // What cannot be read now is not therefore wrong.
    const char* advice =
        code == absl::StatusCode::kInvalidArgument ? "; copy the folder again or prepare the data again" : "";
    problems->push_back({absl::StrCat(shard->path, ": ", what, advice), code});
  };
  // A file that ends too early has been read and is wrong.
  const auto unread = [&](const absl::Status& status) {
    problem(std::string(status.message()),
            absl::IsDataLoss(status) ? absl::StatusCode::kInvalidArgument : status.code());
  };
  shard->file = open(shard->path.c_str(), kForReading);
  if (shard->file < 0) {
    const char* advice = errno == EMFILE ? "; all shards are open at a time: give it a higher limit (ulimit -Hn)" : "";
    return problem(absl::StrCat("cannot be opened: ", std::strerror(errno), advice), CodeOf(errno));
  }
  struct stat status;
  if (fstat(shard->file, &status) != 0) return problem(std::strerror(errno), CodeOf(errno));
  if (!S_ISREG(status.st_mode)) return problem("is not a file");
  if (status.st_size != info.num_bytes) {
    return problem(absl::StrCat(status.st_size, " bytes, but the index says ", info.num_bytes,
                                status.st_size < info.num_bytes ? " (cut short)" : ""));
  }
  Header header;
  if (absl::Status read = ReadFully(shard->file, &header, sizeof(header), 0); !read.ok()) return unread(read);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0)
    return problem("not a shard of tokens (its first 8 bytes are not `taccdata`)");
  if (header.version != kVersion) {
    return problem(absl::StrCat("format version ", header.version, ", this program reads version ", kVersion));
  }
  if (static_cast<int64_t>(header.num_tokens) != info.num_tokens) {
    return problem(absl::StrCat("the header says ", header.num_tokens, " tokens, the index ", info.num_tokens));
  }
  if (header.num_columns < 1 || header.num_columns > kMaxColumns) {
    return problem(
        absl::StrCat("the header says ", header.num_columns, " columns; 1 to ", kMaxColumns, " are possible"));
  }
  std::vector<Column> columns(header.num_columns);
  absl::Status read = ReadFully(shard->file, columns.data(), columns.size() * kColumnBytes, kHeaderBytes);
  if (!read.ok()) return unread(read);
  const int64_t data_begin = kHeaderBytes + static_cast<int64_t>(columns.size()) * kColumnBytes;
  for (const Column& column : columns) {
    const std::string name(column.name, strnlen(column.name, sizeof(column.name)));
    const bool is_tokens = name == "tokens", is_loss_mask = name == "loss_mask", is_segment = name == "segment";
    if (!is_tokens && !is_loss_mask && !is_segment) continue;  // A column this version does not know.
    if (is_tokens ? column.element_bytes != 2 && column.element_bytes != 4 : column.element_bytes != 1) {
      return problem(absl::StrCat("column ", name, " has elements of ", column.element_bytes, " bytes; ",
                                  is_tokens ? "2 or 4" : "1", " wanted"));
    }
    const uint64_t column_bytes = header.num_tokens * column.element_bytes;
    if (column.offset < static_cast<uint64_t>(data_begin) || column.offset > static_cast<uint64_t>(info.num_bytes) ||
        column_bytes > info.num_bytes - column.offset) {
      return problem(absl::StrCat("column ", name, ": ", column_bytes, " bytes at offset ", column.offset,
                                  " do not fit a file of ", info.num_bytes, " bytes"));
    }
    if (is_tokens) {
      shard->token_bytes = static_cast<int64_t>(column.element_bytes);
      shard->tokens_offset = static_cast<int64_t>(column.offset);
    } else {
      (is_segment ? shard->segment_offset : shard->loss_mask_offset) = static_cast<int64_t>(column.offset);
    }
  }
  if (shard->token_bytes == 0) problem("has no column `tokens`");
}

std::string IdentityOf(const DatasetInfo& info) { return absl::StrCat(info.num_tokens, " tokens, ", info.fingerprint); }

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::Open(const std::string& dir, Failpoints* failpoints) {
  std::unique_ptr<Dataset> dataset(new Dataset());
  dataset->dir_ = dir;
  dataset->failpoints_ = failpoints;
  std::vector<Problem> problems;
  if (ReadIndex(dir, &dataset->info_, &problems)) {
    int64_t first_token = 0;
    for (const ShardInfo& info : dataset->info_.shards) {
      Shard& shard = dataset->shards_.emplace_back();
      shard.path = absl::StrCat(dir, "/", info.name);
      shard.first_token = first_token;
      shard.num_tokens = info.num_tokens;
      first_token += info.num_tokens;
      OpenShard(info, &shard, &problems);
      dataset->has_loss_mask_ |= shard.loss_mask_offset != 0;
      dataset->has_segments_ |= shard.segment_offset != 0;
    }
  }
  if (problems.empty()) return dataset;
  absl::StatusCode code = problems[0].code;
  std::vector<std::string> lines;
  for (const Problem& problem : problems) {
    lines.push_back(problem.text);
    if (problem.code == absl::StatusCode::kInvalidArgument) code = problem.code;
  }
  return absl::Status(code, absl::StrJoin(lines, "\n"));
}

Dataset::~Dataset() {
  for (const Shard& shard : shards_) {
    if (shard.file >= 0) close(shard.file);
  }
}

absl::Status Dataset::Read(const Shard& shard, void* data, int64_t count, int64_t offset) const {
  const int error = failpoints_ == nullptr ? 0 : failpoints_->Errno("read_data");
  const absl::Status status = error != 0
                                  ? absl::Status(CodeOf(error), absl::StrCat("read failed: ", std::strerror(error)))
                                  : ReadFully(shard.file, data, count, offset);
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat(shard.path, ": ", status.message()));
}

size_t Dataset::FindShard(int64_t token) const {
  const auto after = std::upper_bound(shards_.begin(), shards_.end(), token,
                                      [](int64_t value, const Shard& shard) { return value < shard.first_token; });
  return after - shards_.begin() - 1;
}

absl::Status Dataset::ReadTokens(int64_t first, int64_t count, int32_t* tokens) const {
  if (first < 0 || count < 0 || first > info_.num_tokens - count) {
    return absl::OutOfRangeError(
        absl::StrCat(dir_, ": tokens [", first, ", ", first + count, ") of ", info_.num_tokens));
  }
  uint16_t narrow[8192];
  for (size_t i = count > 0 ? FindShard(first) : 0; count > 0; ++i) {
    const Shard& shard = shards_[i];
    for (int64_t left = std::min(count, shard.first_token + shard.num_tokens - first); left > 0;) {
      const bool is_narrow = shard.token_bytes == 2;
      const int64_t piece = is_narrow ? std::min<int64_t>(left, std::size(narrow)) : left;
      const int64_t offset = shard.tokens_offset + (first - shard.first_token) * shard.token_bytes;
      void* const target = is_narrow ? static_cast<void*>(narrow) : tokens;
      if (absl::Status status = Read(shard, target, piece * shard.token_bytes, offset); !status.ok()) return status;
      if (is_narrow) std::copy_n(narrow, piece, tokens);
      // As unsigned, so that an id of 2^31 and more is too large, not negative.
      uint32_t largest = 0;
      for (int64_t k = 0; k < piece; ++k) largest = std::max(largest, static_cast<uint32_t>(tokens[k]));
      if (largest >= info_.vocab_size) {
        return absl::DataLossError(absl::StrCat(shard.path, ": damaged: token id ", largest, " near byte ", offset,
                                                " is not below vocab_size = ", info_.vocab_size,
                                                "; copy it again or prepare the data again"));
      }
      tokens += piece;
      first += piece;
      left -= piece;
      count -= piece;
    }
  }
  return absl::OkStatus();
}

absl::Status Dataset::ReadLossMask(int64_t first, int64_t count, uint8_t* mask) const {
  return ReadBytes(&Shard::loss_mask_offset, 1, first, count, mask);
}

absl::Status Dataset::ReadSegments(int64_t first, int64_t count, uint8_t* segments) const {
  return ReadBytes(&Shard::segment_offset, 0, first, count, segments);
}

absl::Status Dataset::ReadBytes(int64_t Shard::*offset, uint8_t absent, int64_t first, int64_t count,
                                uint8_t* bytes) const {
  if (first < 0 || count < 0 || first > info_.num_tokens - count) {
    return absl::OutOfRangeError(
        absl::StrCat(dir_, ": tokens [", first, ", ", first + count, ") of ", info_.num_tokens));
  }
  for (size_t i = count > 0 ? FindShard(first) : 0; count > 0; ++i) {
    const Shard& shard = shards_[i];
    const int64_t piece = std::min(count, shard.first_token + shard.num_tokens - first);
    if (shard.*offset == 0) {
      std::fill_n(bytes, piece, absent);
    } else {
      absl::Status status = Read(shard, bytes, piece, shard.*offset + (first - shard.first_token));
      if (!status.ok()) return status;
    }
    bytes += piece;
    first += piece;
    count -= piece;
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
