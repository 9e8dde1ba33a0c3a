#include "graph/planner/report/explain_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/ir/topology.h"
#include "graph/planner/report/words.h"

namespace tacc::graph {
namespace {

// Parts of less than this of the larger step or memory are told together.
constexpr double kWorthALine = 0.002;

// A part of a step or of a memory, of the layout that is taken and of the one that is asked for.
struct Part {
  std::string name;
  double taken = 0, asked = 0;
  double more() const { return asked - taken; }
};

using Named = std::vector<std::pair<std::string, double>>;

// In the order of the first list, then what only the second has.
std::vector<Part> Joined(const Named& taken, const Named& asked) {
  std::vector<Part> parts;
  const auto at = [&](const std::string& name) -> Part& {
    for (Part& part : parts) {
      if (part.name == name) return part;
    }
    return parts.emplace_back(Part{name});
  };
  for (const auto& [name, value] : taken) at(name).taken += value;
  for (const auto& [name, value] : asked) at(name).asked += value;
  return parts;
}

// Where the seconds of the step go, on the slowest stage; they add up to it.
Named PartsOfStep(const Finalist& finalist, const OpTable& ops) {
  const int stage = finalist.slowest_stage();
  const StageTimes& times = finalist.simulation.stages[stage];
  Named parts;
  for (const ComputeRow& row : ComputeOf(finalist, stage, ops)) parts.push_back({row.kind, row.seconds});
  parts.push_back({"slowed by communication beside it", times.contention_seconds});
  const std::vector<CommunicationRow> rows = CommunicationOf(finalist, stage);
  double exposed = 0;
  for (const CommunicationRow& row : rows) exposed += row.exposed;
  // Of collectives that run at once each is exposed; the rank waits only once.
  const double scale = exposed > 0 ? times.exposed_seconds / exposed : 0;
  for (const CommunicationRow& row : rows)
    parts.push_back(
        {absl::StrCat("waiting for ", row.op, " of ", Name(row.cargo), " over ", row.axes), row.exposed * scale});
  // Of one stage what is left of the step is what rounding leaves.
  constexpr double kRounding = 1e-9;
  if (times.idle_seconds > kRounding * finalist.simulation.step_seconds)
    parts.push_back({"nothing to do (pipeline)", times.idle_seconds});
  return parts;
}

// The same of a candidate without programs.
Named PartsOfStep(const Candidate& candidate) {
  const StageTimes& times = candidate.times;
  return {{"computation", candidate.plan.step_seconds - times.exposed_seconds - times.idle_seconds},
          {"waiting for communication", times.exposed_seconds},
          {"nothing to do (pipeline)", times.idle_seconds}};
}

Named PartsOfMemory(const Candidate& candidate) {
  Named parts;
  for (const MemoryKind& kind : MemoryKinds(candidate)) parts.push_back({kind.name, static_cast<double>(kind.bytes)});
  return parts;
}

std::string Signed(double value, std::string (*text_of)(double)) {
  return absl::StrCat(value < 0 ? "-" : "+", text_of(std::fabs(value)));
}

// The parts as lines of a table, the small ones as one, and their sum.
std::string Table(const std::string& what, std::vector<Part> parts, std::string (*text_of)(double)) {
  Part total{"together"}, small{"all smaller ones"};
  for (const Part& part : parts) {
    total.taken += part.taken;
    total.asked += part.asked;
  }
  const double least = kWorthALine * std::max(total.taken, total.asked);
  const auto is_small = [&](const Part& part) { return part.taken < least && part.asked < least; };
  for (const Part& part : parts) {
    if (!is_small(part)) continue;
    small.taken += part.taken;
    small.asked += part.asked;
  }
  parts.erase(std::remove_if(parts.begin(), parts.end(), is_small), parts.end());
  if (small.taken > 0 || small.asked > 0) parts.push_back(small);
  parts.push_back(total);
  auto width = static_cast<int>(what.size());
  for (const Part& part : parts) width = std::max(width, static_cast<int>(part.name.size()));
  std::string text = absl::StrFormat("  %-*s  %10s  %10s  %11s\n", width, what, "taken", "asked", "difference");
  for (const Part& part : parts) {
    absl::StrAppendFormat(&text, "  %-*s  %10s  %10s  %11s\n", width, part.name, text_of(part.taken),
                          text_of(part.asked), Signed(part.more(), text_of));
  }
  return text;
}

// "0.31 s more matrix products, 1.20 s more waiting for ...": the largest differences of one sign.
std::string LargestOf(std::vector<Part> parts, double sign, double least, std::string (*text_of)(double)) {
  std::stable_sort(parts.begin(), parts.end(),
                   [&](const Part& a, const Part& b) { return sign * a.more() > sign * b.more(); });
  std::vector<std::string> texts;
  for (const Part& part : parts) {
    if (texts.size() == 3 || sign * part.more() < least) break;
    texts.push_back(absl::StrCat(part.name, " (", Signed(part.more(), text_of), ")"));
  }
  return absl::StrJoin(texts, ", ");
}

std::string LayoutText(const Candidate& c) {
  return absl::StrCat(MeshText(c.layout), "; ", HowText(c.layout) == "-" ? "" : absl::StrCat(HowText(c.layout), "; "),
                      c.layout.micro_batch, " x ", c.layout.accumulation, " samples");
}

// What is more, then what is less.
std::string Differences(const std::vector<Part>& parts, double total, std::string (*text_of)(double)) {
  const double least = kWorthALine * total;
  const std::string more = LargestOf(parts, 1, least, text_of), less = LargestOf(parts, -1, least, text_of);
  std::string text;
  if (!more.empty()) absl::StrAppend(&text, " More: ", more, ".");
  if (!less.empty()) absl::StrAppend(&text, " Less: ", less, ".");
  return text;
}

absl::Status SetOne(const std::string& name, const std::string& value, PlanRequest& request) {
  std::vector<std::pair<absl::string_view, std::optional<int64_t>*>> numbers = {
      {"num_micro_batches", &request.num_micro_batches}, {"per_device_train_batch_size", &request.micro_batch}};
  for (Axis axis : kJobAxes) numbers.emplace_back(Name(axis), &request.sizes[axis]);
  int64_t number = 0;
  const bool is_number = absl::SimpleAtoi(value, &number) && number > 0;
  for (const auto& [known, field] : numbers) {
    if (name != known) continue;
    if (!is_number)
      return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, "; wanted a whole number from 1"));
    *field = number;
    return absl::OkStatus();
  }
  if (name == "gc" || name == "reduce_each_micro_batch") {
    if (value != "true" && value != "false")
      return absl::InvalidArgumentError(absl::StrCat(name, " = ", value, "; wanted true or false"));
    if (name == "gc") {
      request.recompute_units = value == "true" ? PlanRequest::kAllUnits : 0;
    } else {
      request.reduce_each_micro_batch = value == "true";
    }
    return absl::OkStatus();
  }
  if (name == "zero_stage") {
    if (!is_number || number > 3)
      return absl::InvalidArgumentError(absl::StrCat("zero_stage = ", value, "; wanted 1, 2 or 3"));
    request.zero_stage = number;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is not known; known: ", JobAxisNames(),
                   ", gc, zero_stage, reduce_each_micro_batch, num_micro_batches, per_device_train_batch_size"));
}

}  // namespace

bool NamesLayout(const std::string& text) { return absl::StrContains(text, '='); }

absl::Status SetLayout(const std::string& text, PlanRequest& request) {
  std::set<std::string> names;
  for (absl::string_view setting : absl::StrSplit(text, absl::ByAnyChar(", "), absl::SkipEmpty())) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(setting, absl::MaxSplits('=', 1));
    absl::Status status = SetOne(parts.first, parts.second, request);
    if (status.ok() && !names.insert(parts.first).second)
      status = absl::InvalidArgumentError(absl::StrCat(parts.first, " is there twice"));
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("--explain ", text, ": ", status.message()));
  }
  return absl::OkStatus();
}

std::string ExplainLayout(const Finalist& taken, const Candidate& asked, const Finalist* finalist, const OpTable& ops,
                          const std::string& text) {
  const Candidate& pick = taken.candidate;
  std::string out =
      absl::StrCat("taken: ", LayoutText(pick), "\nasked: ", LayoutText(asked), ", the best with ", text, "\n\n");
  if (asked.layout == pick.layout) return absl::StrCat(out, "That is what is taken.\n");
  const double step = pick.plan.step_seconds, other = asked.plan.step_seconds;
  const Machine& machine = taken.cluster.machine;
  const bool whole = finalist != nullptr;
  const std::vector<Part> seconds = Joined(whole ? PartsOfStep(taken, ops) : PartsOfStep(pick),
                                           whole ? PartsOfStep(*finalist, ops) : PartsOfStep(asked));
  const std::vector<Part> bytes = Joined(PartsOfMemory(pick), PartsOfMemory(asked));
  if (!asked.fits)
    absl::StrAppend(&out, "It does not fit: it needs ", BytesText(static_cast<double>(asked.plan.total_bytes)), " of ",
                    BytesText(machine.memory_bytes), ". If it did: ");
  absl::StrAppend(&out, "It takes ", SecondsText(other), " a step, ",
                  absl::StrFormat("%.1f %% ", 100 * std::fabs(other / step - 1)), other >= step ? "more" : "less",
                  " than the ", SecondsText(step), " of what is taken, both simulated.");
  if (asked.fits && other < step)
    absl::StrAppend(&out,
                    " The planner has not taken it because its estimate did not bring it among the few that are "
                    "simulated, or because another kind of parallelism must earn 1 % of the step.");
  absl::StrAppend(&out, Differences(seconds, std::max(step, other), SecondsText), "\n");
  const double total = static_cast<double>(pick.plan.total_bytes), needs = static_cast<double>(asked.plan.total_bytes);
  absl::StrAppend(&out, "It needs ", BytesText(std::fabs(needs - total)), needs >= total ? " more" : " less",
                  " of each ", DeviceWord(taken.cluster), ".", Differences(bytes, std::max(total, needs), BytesText),
                  "\n");
  const double flops = asked.cost.matmul_flops / std::max(pick.cost.matmul_flops, 1.0);
  absl::StrAppend(&out, "Its ranks multiply ", absl::StrFormat("%.2f", flops), " times as many FLOPs",
                  asked.layout.recompute == pick.layout.recompute ? ""
                  : pick.layout.recompute ? " (what is taken computes activations again, it does not)"
                                          : " (it computes activations again, what is taken does not)",
                  " and send ", BytesText(static_cast<double>(asked.cost.sent_bytes)), " a step instead of ",
                  BytesText(static_cast<double>(pick.cost.sent_bytes)), ".\n\n");
  absl::StrAppend(&out, Table("seconds of a step, on the slowest stage", seconds, SecondsText), "\n",
                  Table("bytes of a rank", bytes, BytesText));
  return out;
}

}  // namespace tacc::graph
