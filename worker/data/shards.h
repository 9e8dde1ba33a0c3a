// A data folder, as written by `python -m tacc data prepare`: `index.json` and shards of token ids. docs/data.md is the
// format. A folder is one stream of tokens, the shards one after the other; sample k of length seq_len is the tokens
// [k*seq_len, (k+1)*seq_len), across shard borders; what is left at the end is not used.
#ifndef TACC_WORKER_DATA_SHARDS_H_
#define TACC_WORKER_DATA_SHARDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failpoint/failpoint.h"

namespace tacc::worker {

struct ShardInfo {
  std::string name;  // File name in the data folder.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // Documents that begin in it.
  int64_t num_bytes = 0;
  std::string sha256;  // Of the whole file, hex.
};

// index.json.
struct DatasetInfo {
  int64_t seq_len = 0;  // The length that a job uses when it gives none.
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  int64_t max_token_id = 0;           // The largest in the stream.
  std::string fingerprint;            // Hex; two folders with equal fingerprints hold the same stream.
  std::string tokenizer_fingerprint;  // SHA-256 of tokenizer.json, hex.
  int64_t vocab_size = 0;             // The tokenizer's; every id is below.
  std::string eos_token;
  int64_t eos_token_id = 0;
  std::vector<ShardInfo> shards;
};

// "8000000 tokens, FINGERPRINT": which stream of tokens it is, as jobs and checkpoints name it in `identity.data`.
std::string IdentityOf(const DatasetInfo& info);

// An open data folder. Reads with pread, not mmap: a file cut short under a running job is an error, not a signal, and
// pages of the corpus do not count as memory of the process. Const methods may be called from any thread.
class Dataset {
 public:
  // Opens every shard and checks index, headers and sizes; reads no tokens. An error has one line per problem, each
  // naming the file, and what to do; raw text gets the command that prepares it. InvalidArgument: something was read
  // and is wrong. NotFound, PermissionDenied, Unavailable: all that is wrong is that files are not there or cannot be
  // read, which may pass. `failpoints` may be null, else it must outlive the object: `read_data` fails reads of tokens.
  static absl::StatusOr<std::unique_ptr<Dataset>> Open(const std::string& dir, Failpoints* failpoints = nullptr);
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  const std::string& dir() const { return dir_; }
  const DatasetInfo& info() const { return info_; }
  int64_t NumSamples(int64_t seq_len) const { return info_.num_tokens / seq_len; }

  // Writes the token ids [first, first + count) of the stream. OutOfRange beyond the stream; DataLoss, with the shard
  // named, for a file that ends too early or an id that is not below vocab_size; NotFound, PermissionDenied,
  // Unavailable when the system cannot read.
  absl::Status ReadTokens(int64_t first, int64_t count, int32_t* tokens) const;

  // Whether a shard has the column loss_mask.
  bool has_loss_mask() const { return has_loss_mask_; }
  // As ReadTokens: 0 where the token is never a target, else non-zero. 1 in shards without the column.
  absl::Status ReadLossMask(int64_t first, int64_t count, uint8_t* mask) const;

  // Whether a shard has the column segment: documents are apart.
  bool has_segments() const { return has_segments_; }
  // As ReadTokens: a number that differs from the one before where a document begins. 0 in shards without the column.
  absl::Status ReadSegments(int64_t first, int64_t count, uint8_t* segments) const;

  // What is wrong with the folder, as a line for people.
  struct Problem {
    Problem(std::string text, absl::StatusCode code = absl::StatusCode::kInvalidArgument)
        : text(std::move(text)), code(code) {}
    std::string text;
    absl::StatusCode code;
  };

 private:
  struct Shard {
    std::string path;
    int file = -1;
    int64_t first_token = 0;
    int64_t num_tokens = 0;
    int64_t token_bytes = 0;  // 2 or 4.
    int64_t tokens_offset = 0;
    int64_t loss_mask_offset = 0;  // 0: no such column.
    int64_t segment_offset = 0;    // As well.
  };

  Dataset() = default;
  // Reads the index; false when the shards cannot be looked at.
  static bool ReadIndex(const std::string& dir, DatasetInfo* info, std::vector<Problem>* problems);
  // Opens one shard and checks its header.
  static void OpenShard(const ShardInfo& info, Shard* shard, std::vector<Problem>* problems);
  // Reads all of the range of a shard's file.
  absl::Status Read(const Shard& shard, void* data, int64_t count, int64_t offset) const;
  // Reads a column of one byte an element, `absent` where a shard lacks it.
  absl::Status ReadBytes(int64_t Shard::*offset, uint8_t absent, int64_t first, int64_t count, uint8_t* bytes) const;
  // Index of the shard that holds the token.
  size_t FindShard(int64_t token) const;

  std::string dir_;
  Failpoints* failpoints_ = nullptr;
  DatasetInfo info_;
  std::vector<Shard> shards_;
  bool has_loss_mask_ = false;
  bool has_segments_ = false;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_SHARDS_H_
