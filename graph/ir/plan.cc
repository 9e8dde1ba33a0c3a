#include "graph/ir/plan.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"

namespace tacc::graph {
namespace {

constexpr char kHeader[] = "tacc.plan 1";

struct IntField {
  const char* key;
  int64_t Plan::*field;
};
constexpr IntField kIntFields[] = {{"seq_len", &Plan::seq_len},
                                   {"micro_batch", &Plan::micro_batch},
                                   {"accumulation", &Plan::accumulation},
                                   {"num_chunks", &Plan::num_chunks},
                                   {"threads", &Plan::threads},
                                   {"prefetch_units", &Plan::prefetch_units},
                                   {"zero_stage", &Plan::zero_stage},
                                   {"reduce_each_micro_batch", &Plan::reduce_each_micro_batch},
                                   {"keeps_copies", &Plan::keeps_copies},
                                   {"kept_units", &Plan::kept_units},
                                   {"recompute_units", &Plan::recompute_units},
                                   {"total_bytes", &Plan::total_bytes}};

absl::Status ParseMesh(const std::vector<std::string>& words, Mesh* mesh) {
  for (size_t i = 1; i < words.size(); ++i) {
    const std::vector<std::string> parts = absl::StrSplit(words[i], '=');
    Mesh::Axis axis;
    if (parts.size() != 2 || parts[0].empty() || !absl::SimpleAtoi(parts[1], &axis.size) || axis.size < 1) {
      return absl::InvalidArgumentError(absl::StrCat("'", words[i], "' is no mesh axis; wanted name=size"));
    }
    axis.name = parts[0];
    mesh->axes.push_back(axis);
  }
  return absl::OkStatus();
}

absl::Status ParseLine(const std::vector<std::string>& words, Plan* plan) {
  if (words[0] == "mesh") return ParseMesh(words, &plan->mesh);
  if (words.size() != 2) return absl::InvalidArgumentError("wanted one key and one value");
  if (words[0] == "compute_dtype") {
    TACC_ASSIGN_OR_RETURN(plan->compute_dtype, ParseDType(words[1]));
    return absl::OkStatus();
  }
  if (words[0] == "residual_dtype") {
    TACC_ASSIGN_OR_RETURN(plan->residual_dtype, ParseDType(words[1]));
    return absl::OkStatus();
  }
  if (words[0] == "schedule") {
    TACC_ASSIGN_OR_RETURN(plan->schedule, ParsePipelineSchedule(words[1]));
    return absl::OkStatus();
  }
  if (words[0] == "step_seconds") {
    if (absl::SimpleAtod(words[1], &plan->step_seconds)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", words[1], "' is not a number"));
  }
  for (const IntField& field : kIntFields) {
    if (words[0] != field.key) continue;
    if (absl::SimpleAtoi(words[1], &(plan->*field.field))) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("'", words[1], "' is not a whole number"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown key '", words[0], "'"));
}

}  // namespace

absl::string_view Name(PipelineSchedule schedule) {
  constexpr const char* kNames[] = {"1f1b", "interleaved", "zero_bubble"};
  return kNames[static_cast<int>(schedule)];
}

absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name) {
  for (const PipelineSchedule schedule :
       {PipelineSchedule::k1F1B, PipelineSchedule::kInterleaved, PipelineSchedule::kZeroBubble}) {
    if (name == Name(schedule)) return schedule;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no schedule; wanted 1f1b, interleaved or zero_bubble"));
}

std::string PrintPlan(const Plan& plan) {
  std::string out =
      absl::StrCat(kHeader, "\nmesh ", plan.mesh.ToString(), "\ncompute_dtype ", Name(plan.compute_dtype),
                   "\nresidual_dtype ", Name(plan.residual_dtype), "\nschedule ", Name(plan.schedule), "\n");
  for (const IntField& field : kIntFields) absl::StrAppend(&out, field.key, " ", plan.*field.field, "\n");
  absl::StrAppend(&out, "step_seconds ", Print(Attr(plan.step_seconds)), "\n");
  return out;
}

absl::StatusOr<Plan> ParsePlan(absl::string_view text) {
  Plan plan;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines[0] != kHeader) return absl::InvalidArgumentError(absl::StrCat("plan line 1: wanted '", kHeader, "'"));
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const std::vector<std::string> words = absl::StrSplit(lines[i], ' ', absl::SkipEmpty());
    if (absl::Status status = ParseLine(words, &plan); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("plan line ", i + 1, ": ", status.message()));
    }
  }
  return plan;
}

}  // namespace tacc::graph
