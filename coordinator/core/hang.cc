#include "coordinator/core/hang.h"

#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::coordinator {
namespace {

std::tuple<int64_t, int, int> Position(const v1::RankSample& sample) {
  return {sample.step(), sample.call(), sample.node()};
}

// Ranks of one stage, which run one program.
struct StageRanks {
  int last = -1;     // The one that is furthest, of those in a collective.
  int missing = -1;  // The one that is least far.
};

}  // namespace

std::optional<std::string> FindHang(const JobState& job, double timeout_seconds, const DescribeInstruction& describe) {
  const std::vector<RankState>& ranks = job.attempt->ranks;
  const auto sample = [&ranks](int rank) -> const v1::RankSample& { return *ranks[rank].sample; };
  std::vector<StageRanks> stages(job.summary.NumStages());
  int waiter = -1;  // A rank in a collective.
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (!ranks[rank].sample.has_value() || sample(rank).still_seconds() < timeout_seconds) return std::nullopt;
    StageRanks& stage = stages[job.summary.StageOf(rank)];
    if (sample(rank).waits_for_ranks()) {
      if (stage.last < 0 || Position(sample(rank)) > Position(sample(stage.last))) stage.last = rank;
      if (waiter < 0) waiter = rank;
    }
    if (stage.missing < 0) {
      stage.missing = rank;
      continue;
    }
    const v1::RankSample& least = sample(stage.missing);
    const bool behind = Position(sample(rank)) < Position(least);
    const bool outside =
        Position(sample(rank)) == Position(least) && least.waits_for_ranks() && !sample(rank).waits_for_ranks();
    if (behind || outside) stage.missing = rank;
  }
  if (waiter < 0) return std::nullopt;
  const auto place = [&](int rank) {
    return absl::StrCat(describe(job, rank, sample(rank).call(), sample(rank).node()), " of step ",
                        sample(rank).step());
  };
  const std::string head = absl::StrCat("no progress for ", timeout_seconds, " s: ");
  for (const StageRanks& stage : stages) {
    const v1::RankSample& least = sample(stage.missing);
    if (least.waits_for_ranks() && Position(least) == Position(sample(stage.last))) continue;
    // What it is missing from: a collective of its own stage, or what others wait for.
    const int last = stage.last >= 0 ? stage.last : waiter;
    int waiting = 0;
    for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
      waiting += job.summary.StageOf(rank) == job.summary.StageOf(last) && sample(rank).waits_for_ranks() &&
                 Position(sample(rank)) == Position(sample(last));
    }
    return absl::StrCat(head, "rank ", stage.missing, " on ", ranks[stage.missing].worker, " did not enter ",
                        place(last), ", where ", waiting, waiting == 1 ? " rank waits" : " ranks wait",
                        "; it stands at ", place(stage.missing));
  }
  std::vector<std::string> places;
  for (const StageRanks& stage : stages) places.push_back(place(stage.last));
  return absl::StrCat(head, "all ranks wait in ", absl::StrJoin(places, " and "),
                      "; the network between the workers may be down");
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
