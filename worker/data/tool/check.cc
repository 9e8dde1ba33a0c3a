#include "worker/data/tool/check.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "json/parse_json.h"
#include "machine/tacc_python.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc::worker {
namespace {

using Json = nlohmann::json;

std::string PrepareAgain(const std::string& model) {
  return WithTaccPython(
      absl::StrCat("prepare the data with the model's tokenizer: python -m tacc data prepare --tokenizer ",
                   model.empty() ? "MODEL_DIR" : ShellWord(model), " --input TEXT --out NEW_DIR"));
}

std::optional<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;  // A pipe would be waited for.
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

Json ReadJson(const std::string& path) {
  const std::optional<std::string> text = ReadFile(path);
  return text ? ParseJson(*text) : Json();
}

std::string Sha256Of(const std::string& bytes) {
  Sha256 sha256;
  sha256.Update(bytes.data(), bytes.size());
  return sha256.HexDigest();
}

int64_t IntegerOr(const Json& object, const char* key, int64_t otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : otherwise;
}

// What decides the ids of a text: not the settings of truncation, padding and decoding, nor the layout of the file.
// Merges may be written as "a b" or as ["a", "b"].
Json EncodingOf(const Json& tokenizer) {
  Json encoding = Json::object();
  for (const char* key : {"added_tokens", "normalizer", "pre_tokenizer", "model"})
    encoding[key] = tokenizer.value(key, Json());
  if (encoding["model"].is_object() && encoding["model"].contains("merges") && encoding["model"]["merges"].is_array()) {
    for (Json& merge : encoding["model"]["merges"]) {
      if (!merge.is_string()) continue;
      const std::string text = merge.get<std::string>();
      const size_t space = text.find(' ');
      if (space != std::string::npos) merge = Json::array({text.substr(0, space), text.substr(space + 1)});
    }
  }
  return encoding;
}

// Opens a folder, adding its problems, one a line.
std::unique_ptr<Dataset> Open(const std::string& dir, std::vector<std::string>* problems) {
  absl::StatusOr<std::unique_ptr<Dataset>> dataset = Dataset::Open(dir);
  if (dataset.ok()) return *std::move(dataset);
  for (absl::string_view line : absl::StrSplit(dataset.status().message(), '\n'))
    problems->push_back(std::string(line));
  return nullptr;
}

void CheckTokenizer(const Dataset& dataset, const std::string& model, std::vector<std::string>* problems) {
  const std::string path = absl::StrCat(model, "/tokenizer.json");
  const std::optional<std::string> text = ReadFile(path);
  if (!text) return;  // A model without a tokenizer of its own.
  const std::string fingerprint = Sha256Of(*text);
  if (fingerprint == dataset.info().tokenizer_fingerprint) return;
  // Another file may still be the same tokenizer: compare what encodes.
  const Json wanted = ParseJson(*text);
  for (const char* place : {"/tokenizer/tokenizer.json", "/../tokenizer/tokenizer.json"}) {
    const std::optional<std::string> copy = ReadFile(absl::StrCat(dataset.dir(), place));
    if (!copy || Sha256Of(*copy) != dataset.info().tokenizer_fingerprint) continue;
    const Json used = ParseJson(*copy);
    if (wanted.is_object() && used.is_object() && EncodingOf(wanted) == EncodingOf(used)) return;
  }
  problems->push_back(absl::StrCat(dataset.dir(), ": prepared with another tokenizer (fingerprint ",
                                   dataset.info().tokenizer_fingerprint.substr(0, 12), ", vocabulary of ",
                                   dataset.info().vocab_size, ") than the model's ", path, " (fingerprint ",
                                   fingerprint.substr(0, 12), "); ", PrepareAgain(model)));
}

// Reads every shard and compares its SHA-256 with the index.
absl::Status VerifyChecksums(const Dataset& dataset) {
  for (const ShardInfo& shard : dataset.info().shards) {
    const std::string path = absl::StrCat(dataset.dir(), "/", shard.name);
    const absl::StatusOr<FileHash> hash = HashFile(path);
    if (!hash.ok()) return hash.status();
    if (hash->sha256 != shard.sha256) {
      return absl::DataLossError(absl::StrCat(path, ": damaged: its SHA-256 is ", hash->sha256, ", the index says ",
                                              shard.sha256, "; copy the folder again or prepare the data again"));
    }
  }
  return absl::OkStatus();
}

// The largest id that the model takes, plus one; 0 when its configuration does not say.
int64_t ModelVocabSize(const Json& config) {
  return std::max(IntegerOr(config, "vocab_size", 0), IntegerOr(config, "embedding_size", 0));
}

// The longest sample that the model takes; 0 when its configuration does not say.
int64_t ModelSeqLen(const Json& config) {
  for (const char* key :
       {"max_position_embeddings", "max_sequence_length", "n_positions", "model_max_length", "seq_length"}) {
    if (const int64_t length = IntegerOr(config, key, 0); length > 0) return length;
  }
  return 0;
}

}  // namespace

CheckResult CheckData(const CheckRequest& request) {
  CheckResult result;
  std::vector<std::string>& problems = result.problems;
  const Json config = request.model.empty() ? Json() : ReadJson(absl::StrCat(request.model, "/config.json"));
  const int64_t vocab_size = request.vocab_size > 0 ? request.vocab_size : ModelVocabSize(config);

  const std::unique_ptr<Dataset> train = Open(request.data, &problems);
  const std::unique_ptr<Dataset> eval = request.eval.empty() ? nullptr : Open(request.eval, &problems);
  int64_t seq_len = request.seq_len;
  if (seq_len == 0 && train != nullptr) {
    seq_len = train->info().seq_len;
    if (const int64_t longest = ModelSeqLen(config); longest > 0) seq_len = std::min(seq_len, longest);
  }
  if (seq_len < 2) {
    if (train != nullptr) {
      problems.push_back(absl::StrCat("seq_len = ", seq_len, "; it must be at least 2 tokens: each but the first is ",
                                      "predicted; set data.seq_len, or prepare the data again with a longer one"));
    }
    return result;
  }

  for (const Dataset* dataset : {train.get(), eval.get()}) {
    if (dataset == nullptr) continue;
    const DatasetInfo& info = dataset->info();
    const int64_t num_samples = dataset->NumSamples(seq_len);
    const int64_t wanted = dataset == train.get() ? std::max<int64_t>(request.global_batch_size, 1) : 1;
    if (num_samples < wanted) {
      const std::string what =
          wanted == 1 ? "one sample is needed"
                      : absl::StrCat("one global batch needs ", wanted, " (", wanted * seq_len, " tokens)");
      problems.push_back(absl::StrCat(dataset->dir(), ": too little data: ", info.num_tokens, " tokens make ",
                                      num_samples, " samples of seq_len = ", seq_len, ", but ", what,
                                      "; prepare more text, or lower seq_len",
                                      wanted == 1 ? "" : " or global_batch_size"));
    }
    if (vocab_size > 0 && info.max_token_id >= vocab_size) {
      problems.push_back(absl::StrCat(dataset->dir(), ": holds the token id ", info.max_token_id,
                                      ", but the model's vocabulary has ", vocab_size, " (ids 0 to ", vocab_size - 1,
                                      "); ", PrepareAgain(request.model)));
    }
    if (!request.model.empty()) CheckTokenizer(*dataset, request.model, &problems);
    if (!request.tokenizer_fingerprint.empty() && request.tokenizer_fingerprint != info.tokenizer_fingerprint) {
      problems.push_back(absl::StrCat(dataset->dir(), ": prepared with the tokenizer of fingerprint ",
                                      info.tokenizer_fingerprint, ", wanted ", request.tokenizer_fingerprint, "; ",
                                      PrepareAgain("")));
    }
    if (request.depth == CheckRequest::Depth::kEveryByte) {
      if (const absl::Status verified = VerifyChecksums(*dataset); !verified.ok())
        problems.push_back(std::string(verified.message()));
    }
  }
  if (train == nullptr) return result;
  if (eval != nullptr && eval->info().tokenizer_fingerprint != train->info().tokenizer_fingerprint &&
      request.model.empty()) {
    problems.push_back(absl::StrCat(eval->dir(), ": prepared with another tokenizer (fingerprint ",
                                    eval->info().tokenizer_fingerprint.substr(0, 12), ") than ", train->dir(), " (",
                                    train->info().tokenizer_fingerprint.substr(0, 12),
                                    "); prepare both with one tokenizer"));
  }
  result.summary = {{"vocab_size", train->info().vocab_size},
                    {"seq_len", seq_len},
                    {"num_tokens", train->info().num_tokens},
                    {"num_samples", train->NumSamples(seq_len)},
                    {"eval_tokens", eval == nullptr ? 0 : eval->info().num_tokens},
                    {"separate_documents", train->has_segments()},
                    {"fingerprint", train->info().fingerprint}};
  return result;
}

}  // namespace tacc::worker
