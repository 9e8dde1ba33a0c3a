#include "worker/rank/agreement.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

constexpr size_t kMaxMessageBytes = 1024;

}  // namespace

absl::Status AgreeOnStatus(Collectives& collectives, const absl::Status& mine) {
  TACC_ASSIGN_OR_RETURN(const auto codes, collectives.GatherHost({static_cast<uint64_t>(mine.code())}));
  const auto failed = std::find_if(codes.begin(), codes.end(), [](const auto& code) { return code[0] != 0; });
  if (failed == codes.end()) return absl::OkStatus();
  const size_t rank = static_cast<size_t>(failed - codes.begin());
  // The text travels only when there is one to tell.
  std::vector<uint64_t> text(kMaxMessageBytes / sizeof(uint64_t), 0);
  const absl::string_view message = mine.message().substr(0, kMaxMessageBytes - 1);
  std::memcpy(text.data(), message.data(), message.size());
  TACC_ASSIGN_OR_RETURN(const auto texts, collectives.GatherHost(text));
  if (collectives.world() == 1) return mine;
  return absl::Status(static_cast<absl::StatusCode>((*failed)[0]),
                      absl::StrCat("rank ", rank, ": ", reinterpret_cast<const char*>(texts[rank].data())));
}

}  // namespace tacc::worker
