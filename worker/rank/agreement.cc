#include "worker/rank/agreement.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/failure_codes.h"

namespace tacc::worker {
namespace {

constexpr size_t kMaxCodeBytes = 32;
constexpr size_t kMaxMessageBytes = 1024;

// What the ranks send each other of an error: its failure code and its message, each up to a zero byte.
struct Words {
  char code[kMaxCodeBytes] = {};
  char message[kMaxMessageBytes] = {};
};
static_assert(sizeof(Words) % sizeof(uint64_t) == 0);

void Copy(absl::string_view text, char* to, size_t size) {
  std::memcpy(to, text.data(), std::min(text.size(), size - 1));
}

}  // namespace

absl::Status AgreeOnStatus(Collectives& collectives, const absl::Status& mine) {
  TACC_ASSIGN_OR_RETURN(const auto codes, collectives.GatherHost({static_cast<uint64_t>(mine.code())}));
  const auto failed = std::find_if(codes.begin(), codes.end(), [](const auto& code) { return code[0] != 0; });
  if (failed == codes.end()) return absl::OkStatus();
  const size_t rank = static_cast<size_t>(failed - codes.begin());
  // The text travels only when there is one to tell.
  Words words;
  Copy(GivenFailureCode(mine), words.code, kMaxCodeBytes);
  Copy(mine.message(), words.message, kMaxMessageBytes);
  std::vector<uint64_t> text(sizeof(words) / sizeof(uint64_t));
  std::memcpy(text.data(), &words, sizeof(words));
  TACC_ASSIGN_OR_RETURN(const auto texts, collectives.GatherHost(text));
  if (collectives.world() == 1) return mine;
  std::memcpy(&words, texts[rank].data(), sizeof(words));
  const absl::Status theirs(static_cast<absl::StatusCode>((*failed)[0]),
                            absl::StrCat("rank ", rank, ": ", words.message));
  return words.code[0] == 0 ? theirs : WithFailureCode(theirs, words.code);
}

absl::StatusOr<std::vector<std::string>> GatherTexts(Collectives& collectives, const std::string& mine) {
  TACC_ASSIGN_OR_RETURN(const auto sizes, collectives.GatherHost({mine.size()}));
  size_t largest = 0;
  for (const auto& size : sizes) largest = std::max<size_t>(largest, size[0]);
  std::vector<uint64_t> padded((largest + sizeof(uint64_t) - 1) / sizeof(uint64_t), 0);
  if (!mine.empty()) std::memcpy(padded.data(), mine.data(), mine.size());
  TACC_ASSIGN_OR_RETURN(const auto all, collectives.GatherHost(padded));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < all.size(); ++rank)
    texts.emplace_back(reinterpret_cast<const char*>(all[rank].data()), sizes[rank][0]);
  return texts;
}

}  // namespace tacc::worker
