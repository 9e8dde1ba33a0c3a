#include "coordinator/core/hang.h"

#include <tuple>

#include "absl/strings/str_cat.h"

namespace tacc::coordinator {
namespace {

std::tuple<int64_t, int, int> Position(const v1::RankSample& sample) {
  return {sample.step(), sample.call(), sample.node()};
}

}  // namespace

std::optional<std::string> FindHang(const JobState& job, double timeout_seconds, const DescribeInstruction& describe) {
  const AttemptState& attempt = *job.attempt;
  int last = -1;     // Rank that is furthest, in a collective.
  int missing = -1;  // Rank that is least far.
  for (size_t i = 0; i < attempt.ranks.size(); ++i) {
    const auto& sample = attempt.ranks[i].sample;
    if (!sample.has_value() || sample->still_seconds() < timeout_seconds) return std::nullopt;
    const int rank = static_cast<int>(i);
    if (sample->waits_for_ranks() && (last < 0 || Position(*sample) > Position(*attempt.ranks[last].sample)))
      last = rank;
    if (missing < 0) {
      missing = rank;
      continue;
    }
    const v1::RankSample& least = *attempt.ranks[missing].sample;
    const bool behind = Position(*sample) < Position(least);
    const bool outside = Position(*sample) == Position(least) && least.waits_for_ranks() && !sample->waits_for_ranks();
    if (behind || outside) missing = rank;
  }
  if (last < 0) return std::nullopt;
  const v1::RankSample& waits = *attempt.ranks[last].sample;
  const v1::RankSample& least = *attempt.ranks[missing].sample;
  const std::string instruction = describe(job, waits.call(), waits.node());
  const std::string where = absl::StrCat(instruction, " of step ", waits.step());
  if (Position(least) == Position(waits) && least.waits_for_ranks()) {
    return absl::StrCat("no progress for ", timeout_seconds, " s: all ranks wait in ", where,
                        "; the network between the workers may be down");
  }
  int waiting = 0;
  for (const RankState& rank : attempt.ranks)
    waiting += Position(*rank.sample) == Position(waits) && rank.sample->waits_for_ranks();
  return absl::StrCat("no progress for ", timeout_seconds, " s: rank ", missing, " on ", attempt.ranks[missing].worker,
                      " did not enter ", where, ", where ", waiting, waiting == 1 ? " rank waits" : " ranks wait",
                      "; it stands at ", describe(job, least.call(), least.node()), " of step ", least.step());
}

std::optional<std::string> FindStartHang(const JobState& job, double timeout_seconds) {
  const AttemptState& attempt = *job.attempt;
  bool all_wait = true;
  for (size_t i = 0; i < attempt.ranks.size(); ++i) {
    const RankState& rank = attempt.ranks[i];
    if (rank.ready) continue;
    const bool still = rank.sample.has_value() && rank.sample->still_seconds() >= timeout_seconds;
    if (still && !rank.sample->waits_for_ranks()) {
      return absl::StrCat("no progress for ", timeout_seconds, " s: rank ", i, " on ", rank.worker, " stands still ",
                          rank.sample->activity());
    }
    all_wait = all_wait && still;
  }
  if (!all_wait) return std::nullopt;
  return absl::StrCat("no progress for ", timeout_seconds,
                      " s: all ranks have loaded and cannot meet; the network between the workers may be down");
}

}  // namespace tacc::coordinator
