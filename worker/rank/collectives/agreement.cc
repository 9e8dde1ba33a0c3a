#include "worker/rank/collectives/agreement.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/protocol/failure_codes.h"

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

absl::StatusOr<std::vector<uint64_t>> GatherLargest(Collectives& collectives, std::vector<uint64_t> values) {
  // Each rank takes the largest of a part of them.
  const size_t world = static_cast<size_t>(collectives.world()), rank = static_cast<size_t>(collectives.rank());
  const size_t part = (values.size() + world - 1) / world;
  const auto first = [&](size_t of_rank) { return std::min(values.size(), of_rank * part); };
  const size_t begin = first(rank), size = first(rank + 1) - begin;
  const auto region = [](std::vector<uint64_t>& in, size_t at, size_t count) {
    return Flat(in.data() + at, static_cast<int64_t>(count * sizeof(uint64_t)));
  };
  std::vector<uint64_t> of_ranks(world * size);
  CollectiveCall exchange;
  exchange.kind = CollectiveCall::Kind::kExchange;
  exchange.me = collectives.rank();
  for (size_t r = 0; r < world; ++r) {
    exchange.members.push_back(static_cast<int>(r));
    exchange.send.push_back(region(values, first(r), first(r + 1) - first(r)));
    exchange.receive.push_back(region(of_ranks, r * size, size));
  }
  TACC_RETURN_IF_ERROR(collectives.Run(exchange));
  for (size_t i = 0; i < of_ranks.size(); ++i) {
    uint64_t& largest = values[begin + i % size];
    largest = std::max(largest, of_ranks[i]);
  }
  CollectiveCall gather;
  gather.kind = CollectiveCall::Kind::kAllGather;
  gather.me = exchange.me;
  gather.members = exchange.members;
  gather.receive = exchange.send;
  gather.send = {gather.receive[rank]};
  TACC_RETURN_IF_ERROR(collectives.Run(gather));
  return values;
}

absl::StatusOr<std::vector<SharedText>> GatherSharedTexts(Collectives& collectives, const std::string& mine) {
  // A fingerprint and a size stand for a text.
  const std::string fingerprint = graph::Fingerprint(mine);
  TACC_ASSIGN_OR_RETURN(const auto marks, collectives.GatherHost({std::stoull(fingerprint, nullptr, 16), mine.size()}));
  std::map<std::vector<uint64_t>, size_t> index;
  std::vector<SharedText> texts;
  for (size_t rank = 0; rank < marks.size(); ++rank) {
    const auto [it, is_new] = index.try_emplace(marks[rank], texts.size());
    if (is_new) texts.push_back({std::string(marks[rank][1], '\0'), static_cast<int>(rank), 0});
    ++texts[it->second].num_ranks;
  }
  // Its first rank says what it is, the others zeros.
  const auto num_words = [](const SharedText& text) {
    return (text.text.size() + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  };
  std::vector<uint64_t> words;
  for (const SharedText& text : texts) {
    const size_t begin = words.size();
    words.resize(begin + num_words(text), 0);
    if (text.first_rank == collectives.rank() && !mine.empty()) std::memcpy(&words[begin], mine.data(), mine.size());
  }
  TACC_ASSIGN_OR_RETURN(words, GatherLargest(collectives, std::move(words)));
  size_t begin = 0;
  for (SharedText& text : texts) {
    if (!text.text.empty()) std::memcpy(text.text.data(), &words[begin], text.text.size());
    begin += num_words(text);
  }
  return texts;
}

}  // namespace tacc::worker
