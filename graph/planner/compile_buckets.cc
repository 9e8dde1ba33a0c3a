#include "graph/planner/compile_buckets.h"

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/input_axes.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/cost/analyze.h"

namespace tacc::graph {
namespace {

absl::Status ForLength(int64_t seq_len, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("data.client.buckets: the model does not take samples of ", seq_len,
                                                  " tokens: ", status.message()));
}

absl::StatusOr<ForwardModel> Build(const ForwardBuilder& model, int64_t rows, int64_t seq_len) {
  absl::StatusOr<ForwardModel> built = model(rows, seq_len);
  if (!built.ok()) return ForLength(seq_len, built.status());
  if (ExtentOf(built->forward, InputAxis::kSequence) != seq_len) {
    return absl::InvalidArgumentError(
        "data.client.buckets: the model has one length, for no input of its graph has the dim S; leave the field out, "
        "or export the model so that it takes any length");
  }
  return built;
}

absl::StatusOr<double> FlopsOfSample(const PlanRequest& request, const Candidate& candidate, const ForwardModel& model,
                                     const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ModelWork work,
                        AnalyzeModel(model.forward, model.units, candidate.plan.compute_dtype, ops,
                                     candidate.plan.residual_dtype, ExpertParallelOptions()));
  return work.model_flops;
}

}  // namespace

absl::Status CheckBuckets(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  for (const int64_t seq_len : request.buckets) TACC_RETURN_IF_ERROR(Build(model, 1, seq_len).status());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Bucket>> CompileBuckets(const PlanRequest& request, const Candidate& candidate,
                                                   const std::vector<Program>& longest, const ForwardBuilder& model,
                                                   const OpTable& ops) {
  std::vector<Bucket> buckets;
  if (request.buckets.empty()) return buckets;
  const auto places = std::make_shared<const StatePlaces>(PlacesOf(longest));
  const int64_t rows = candidate.plan.micro_batch * candidate.plan.num_data_ranks();
  TACC_ASSIGN_OR_RETURN(const ForwardModel whole, Build(model, 1, request.seq_len));
  TACC_ASSIGN_OR_RETURN(const double whole_flops, FlopsOfSample(request, candidate, whole, ops));
  for (const int64_t seq_len : request.buckets) {
    const auto begin = std::chrono::steady_clock::now();
    Bucket& bucket = buckets.emplace_back();
    bucket.seq_len = seq_len;
    TACC_ASSIGN_OR_RETURN(const ForwardModel forward, Build(model, rows, seq_len));
    Plan plan = candidate.plan;
    plan.seq_len = seq_len;
    absl::StatusOr<Compiled> compiled = CompilePlan(request, plan, forward, ops, {}, places);
    if (!compiled.ok()) return ForLength(seq_len, compiled.status());
    bucket.stages = std::move(compiled->stages);
    for (Program& program : bucket.stages) program.seq_len = seq_len;
    TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, Build(model, 1, seq_len));
    TACC_ASSIGN_OR_RETURN(const double flops, FlopsOfSample(request, candidate, one_row, ops));
    bucket.model_flops = candidate.model_flops * flops / whole_flops;
    bucket.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return buckets;
}

}  // namespace tacc::graph
