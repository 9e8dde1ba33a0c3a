#include "worker/rank/tuning/attention_choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/agreement.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

// Always works.
constexpr char kPlainCores[] = "tiles";

std::vector<AttentionChoice> ParseAttention(const std::string& text) {
  std::vector<AttentionChoice> choices;
  for (const json& choice : json::parse(text)) {
    choices.push_back({choice["shape"], choice["backend"], {}});
    for (const json& timing : choice["timings"]) {
      choices.back().timings.push_back({timing["backend"], timing.value("forward_seconds", 0.0),
                                        timing.value("backward_seconds", 0.0), timing.value("refused", std::string()),
                                        timing.value("failed", false), timing.value("workspace_bytes", int64_t{0})});
    }
  }
  return choices;
}

// A shape's backends over the ranks that have it.
class SlowestRank {
 public:
  void Add(const AttentionChoice& of_rank, size_t rank) {
    ++num_ranks_;
    for (const AttentionTiming& timing : of_rank.timings) {
      const auto found = std::find_if(merged_.begin(), merged_.end(),
                                      [&](const Merged& m) { return m.timing.backend == timing.backend; });
      Merged& merged = found == merged_.end() ? merged_.emplace_back(Merged{{timing.backend}}) : *found;
      merged.timing.forward_seconds = std::max(merged.timing.forward_seconds, timing.forward_seconds);
      merged.timing.backward_seconds = std::max(merged.timing.backward_seconds, timing.backward_seconds);
      merged.timing.workspace_bytes = std::max(merged.timing.workspace_bytes, timing.workspace_bytes);
      merged.timing.failed |= timing.failed;
      if (timing.refused.empty()) continue;
      if (merged.num_refused++ == 0) {
        merged.first_to_refuse = rank;
        merged.timing.refused = timing.refused;
      }
    }
  }

  std::vector<AttentionTiming> Timings() const {
    std::vector<AttentionTiming> timings;
    for (const Merged& merged : merged_) {
      timings.push_back(merged.timing);
      if (merged.num_refused > 0 && merged.num_refused < num_ranks_)
        timings.back().refused = absl::StrCat("rank ", merged.first_to_refuse, ": ", merged.timing.refused);
    }
    return timings;
  }

 private:
  struct Merged {
    AttentionTiming timing;
    int num_refused = 0;
    size_t first_to_refuse = 0;
  };
  int num_ranks_ = 0;
  std::vector<Merged> merged_;
};

std::string Choose(const std::string& shape, const std::vector<AttentionTiming>& timings, const AttentionRule& rule) {
  const auto works = [&](const std::string& backend) {
    return std::any_of(timings.begin(), timings.end(), [&](const AttentionTiming& timing) {
      return timing.backend == backend && timing.refused.empty();
    });
  };
  if (works(rule.wanted)) return rule.wanted;
  if (const auto before = rule.earlier.find(shape); before != rule.earlier.end() && works(before->second))
    return before->second;
  std::string chosen = kPlainCores;
  double least = std::numeric_limits<double>::infinity();
  for (const AttentionTiming& timing : timings) {
    if (!timing.refused.empty()) continue;
    const double seconds = timing.forward_seconds + timing.backward_seconds;
    if (rule.order == AttentionOrder::kFastest && seconds >= least) continue;
    least = seconds;
    chosen = timing.backend;
  }
  return chosen;
}

}  // namespace

absl::StatusOr<std::vector<AttentionChoice>> AgreeOnAttention(Collectives& collectives,
                                                              const std::vector<AttentionChoice>& mine,
                                                              const AttentionRule& rule) {
  TACC_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      GatherTexts(collectives, AttentionJson(mine).dump(-1, ' ', false, json::error_handler_t::replace)));
  std::map<std::string, SlowestRank> shapes;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    for (const AttentionChoice& choice : ParseAttention(texts[rank])) shapes[choice.shape].Add(choice, rank);
  }
  std::vector<AttentionChoice> agreed;
  for (const auto& [shape, slowest] : shapes) {
    const std::vector<AttentionTiming> timings = slowest.Timings();
    agreed.push_back({shape, Choose(shape, timings, rule), timings});
  }
  return agreed;
}

std::vector<std::string> AttentionWarnings(const std::vector<AttentionChoice>& choices, const std::string& wanted) {
  std::vector<std::string> warnings;
  for (const AttentionChoice& choice : choices) {
    const std::string begin = absl::StrCat("attention ", choice.shape, " is computed by ", choice.backend);
    if (!wanted.empty() && choice.backend != wanted) {
      const auto found = std::find_if(choice.timings.begin(), choice.timings.end(),
                                      [&](const AttentionTiming& timing) { return timing.backend == wanted; });
      const bool is_known = found != choice.timings.end();
      warnings.push_back(absl::StrCat(begin, ", not by ", wanted, " as --attention says: ",
                                      is_known ? found->refused : "there is no such backend"));
    }
    for (const AttentionTiming& timing : choice.timings) {
      if (timing.failed && timing.backend != wanted)
        warnings.push_back(absl::StrCat(begin, "; ", timing.backend, " failed: ", timing.refused));
    }
  }
  return warnings;
}

json AttentionJson(const std::vector<AttentionChoice>& choices) {
  json list = json::array();
  for (const AttentionChoice& choice : choices) {
    json timings = json::array();
    for (const AttentionTiming& timing : choice.timings) {
      timings.push_back({{"backend", timing.backend}});
      if (timing.forward_seconds > 0) timings.back()["forward_seconds"] = timing.forward_seconds;
      if (timing.backward_seconds > 0) timings.back()["backward_seconds"] = timing.backward_seconds;
      if (timing.workspace_bytes > 0) timings.back()["workspace_bytes"] = timing.workspace_bytes;
      if (!timing.refused.empty()) timings.back()["refused"] = timing.refused;
      if (timing.failed) timings.back()["failed"] = true;
    }
    list.push_back({{"shape", choice.shape}, {"backend", choice.backend}, {"timings", std::move(timings)}});
  }
  return list;
}

std::string InWords(const AttentionChoice& choice) {
  std::string rest;
  for (const AttentionTiming& timing : choice.timings) {
    absl::StrAppend(&rest, rest.empty() ? "" : "; ", timing.backend);
    if (!timing.refused.empty()) {
      absl::StrAppend(&rest, timing.failed ? " failed: " : " refused: ", timing.refused);
    } else if (timing.forward_seconds > 0) {
      absl::StrAppendFormat(&rest, " forward %.3f ms, backward %.3f ms", timing.forward_seconds * 1e3,
                            timing.backward_seconds * 1e3);
    }
  }
  return absl::StrCat("attention ", choice.shape, ": ", choice.backend,
                      rest.empty() ? "" : absl::StrCat(" (", rest, ")"));
}

}  // namespace tacc::worker
