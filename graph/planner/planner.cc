#include "graph/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/axis.h"
#include "graph/ir/divisors.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/topology.h"
#include "graph/passes/partition/expert_parallel.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/stages/stages.h"
#include "graph/planner/batch_statistics.h"
#include "graph/planner/compose.h"
#include "graph/planner/cost/analyze.h"
#include "graph/planner/lessons.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/targets/targets.h"
#include "page/numbers.h"

namespace tacc::graph {
namespace {

// Layouts that may become programs, of all and of a mesh, and how often others are looked for when none of them fits.
constexpr size_t kMaxFinalists = 512, kMaxOfAMesh = 32;
constexpr int kMaxRounds = 6;
// Layers that are compiled to compare candidates, once one fits, and until then: it is what planning takes its time
// for.
constexpr int64_t kMaxCompiledLayers = 160, kMaxCompiledLayersIfNoneFits = 640;

// Whether the best with the residual stream in bf16 is taken instead of the best without; notes in `narrow` what that
// saves.
bool TakeNarrow(const Candidate& wide, Candidate& narrow) {
  if (!narrow.fits) return false;
  narrow.narrow_residual_saves_seconds =
      wide.fits ? wide.plan.step_seconds - narrow.plan.step_seconds : std::numeric_limits<double>::infinity();
  return narrow.narrow_residual_saves_seconds >= kNarrowResidualMustEarn * wide.plan.step_seconds;
}

double Worth(const Layout& l, double step_seconds) {
  const int kinds =
      (l.sizes[Axis::kPp] > 1) + (l.sizes[Axis::kEp] > 1) + (l.sizes[Axis::kCp] > 1) + (l.sizes[Axis::kTp] > 1);
  return step_seconds * (1 + kKindMustEarn * kinds);
}

// Whether it may be taken: buffers that may be too small change results.
bool MayTake(const Candidate& c) { return !c.overflow_risk.has_value() || c.overflow_risk->is_asked_for; }

bool Better(const Candidate& a, const Candidate& b) {
  if (MayTake(a) != MayTake(b)) return MayTake(a);
  if (a.fits != b.fits) return a.fits;
  return a.fits ? Worth(a) < Worth(b) : a.plan.total_bytes < b.plan.total_bytes;
}

class Planner {
 public:
  Planner(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops, const ForwardModel& one_row,
          DType residual)
      : request_(request),
        model_(model),
        ops_(ops),
        one_row_(one_row),
        precision_(Precision(request)),
        residual_(residual) {}

  absl::Status Check() {
    TACC_ASSIGN_OR_RETURN(SearchRequest search, MakeSearch());
    search.available_bytes = 0;
    search.num_best = 1;
    TACC_RETURN_IF_ERROR(Search(work_, search).status());
    return CheckSplitPoints();
  }

  // Cuts the model at the job's split points, before any layout is tried: each would fail by them.
  absl::Status CheckSplitPoints() {
    if (request_.split_points.empty()) return absl::OkStatus();
    TACC_ASSIGN_OR_RETURN(const SearchRequest search, MakeSearch());
    if (search.sizes[Axis::kPp] == 1) return absl::OkStatus();
    StageOptions stages;
    stages.num_chunks = static_cast<int>(search.chunks.value_or(1));
    stages.split_points = request_.split_points;
    const Graph& forward = one_row_.forward;
    return CutPoints(forward, static_cast<int>(forward.nodes.size()), ops_, stages,
                     static_cast<int>(search.sizes[Axis::kPp].value_or(1)) * stages.num_chunks)
        .status();
  }

  absl::StatusOr<bool> MayFit() {
    TACC_ASSIGN_OR_RETURN(SearchRequest search, MakeSearch());
    search.num_best = 1;
    TACC_ASSIGN_OR_RETURN(const SearchResult found, Search(work_, search));
    return !found.best.empty();
  }

  absl::StatusOr<std::vector<Scored>> All() {
    TACC_ASSIGN_OR_RETURN(SearchRequest search, MakeSearch());
    search.num_best = search.num_of_a_mesh = std::numeric_limits<size_t>::max();
    TACC_ASSIGN_OR_RETURN(SearchResult found, Search(work_, search));
    return std::move(found.best);
  }

  absl::StatusOr<Candidate> MeasureLayout(const Layout& layout, Programs of = Programs::kComposed) {
    TACC_RETURN_IF_ERROR(CheckBatchStatistics(one_row_.forward, request_, layout));
    Candidate candidate;
    candidate.layout = layout;
    candidate.num_parameters = one_row_.num_parameters;
    candidate.num_trained_parameters = one_row_.num_parameters - one_row_.num_frozen_parameters;
    TACC_ASSIGN_OR_RETURN(candidate.optimizer_bytes_of_element,
                          OptimizerBytesOfElement(one_row_.forward, request_.training));
    candidate.model_flops = work_.model_flops * static_cast<double>(layout.global_batch());
    TACC_ASSIGN_OR_RETURN(candidate.plan, MakePlan(layout));
    if (const ExpertParallelOptions experts = ExpertsOf(layout); !BuffersSuffice(one_row_.forward, experts)) {
      candidate.overflow_risk = {OverflowAtRandom(one_row_.forward, experts), experts.buffer_factor, AsksForOverflow()};
      // What is left out is not computed.
      candidate.model_flops -=
          candidate.overflow_risk->share_at_random * ExpertFlops() * static_cast<double>(layout.global_batch());
    }
    TACC_RETURN_IF_ERROR(Measure(candidate, of == Programs::kWhole ? MeasurePlan : ComposePlan));
    return candidate;
  }

  absl::StatusOr<Planned> Run() {
    TACC_RETURN_IF_ERROR(CheckSplitPoints());
    TACC_ASSIGN_OR_RETURN(const SearchRequest search, MakeSearch());
    for (int round = 0; round < kMaxRounds; ++round) {
      TACC_ASSIGN_OR_RETURN(SearchResult found, Search(work_, search));
      const bool none_fits = found.best.empty();
      if (none_fits) {
        Try(*found.smallest);
      } else {
        TryInTurn(found.best, search.available_bytes);
      }
      if (round == 0) TakeLosers(found, search.available_bytes);
      if (none_fits || AnyFits()) break;
      if (round + 1 == kMaxRounds || compiled_layers_ >= kMaxCompiledLayersIfNoneFits) {
        Try(*found.smallest);
        break;
      }
    }
    if (planned_.candidates.empty()) return first_error_;
    TACC_RETURN_IF_ERROR(Settle());
    if (work_.num_experts > 0 && !AsksForOverflow()) ShowOverflowing(search);
    DropLosersThatAreCandidates();
    return std::move(planned_);
  }

 private:
  // Makes candidates of them, that first which promises most by what was learned from those before, until none may cost
  // less than the best that fits.
  void TryInTurn(std::vector<Scored> open, double available_bytes) {
    while (!open.empty()) {
      const Candidate* best = Best();
      const auto may_cost_less = [&](const Scored& s) {
        return best == nullptr || WorthOf(s) * lessons_.LeastStepFactor(s.layout) < Worth(*best);
      };
      std::vector<double> hopes;
      for (const Scored& s : open)
        hopes.push_back(may_cost_less(s) ? WorthOf(s) * lessons_.HopedStepFactor(s.layout)
                                         : std::numeric_limits<double>::infinity());
      const auto least = open.begin() + (std::min_element(hopes.begin(), hopes.end()) - hopes.begin());
      if (!may_cost_less(*least)) return;
      if (compiled_layers_ >= (best != nullptr ? kMaxCompiledLayers : kMaxCompiledLayersIfNoneFits)) return;
      const Scored next = *least;
      open.erase(least);
      if (available_bytes <= 0 || next.memory.total() * lessons_.HopedMemoryFactor(next.layout) <= available_bytes)
        Try(next);
    }
  }

  // The candidate that is best so far; none that fits: null.
  const Candidate* Best() const {
    const auto best = std::min_element(planned_.candidates.begin(), planned_.candidates.end(), Better);
    return best != planned_.candidates.end() && best->fits ? &*best : nullptr;
  }

  static double WorthOf(const Scored& scored) { return Worth(scored.layout, scored.step.seconds); }

  // Makes it a candidate, if it is none.
  void Try(const Scored& scored) {
    for (const Candidate& c : planned_.candidates) {
      if (c.layout == scored.layout) return;
    }
    absl::StatusOr<Candidate> candidate = MeasureLayout(scored.layout);
    if (!candidate.ok()) {
      // What no job asked for need not be possible.
      first_error_.Update(candidate.status());
      planned_.losers.push_back({scored, false, absl::StrCat("cannot be compiled: ", candidate.status().message())});
      return;
    }
    const auto bytes = static_cast<double>(candidate->memory.arena_bytes + candidate->memory.workspace_bytes);
    lessons_.Add(scored.layout, candidate->plan.step_seconds / scored.step.seconds, bytes / scored.memory.total());
    planned_.candidates.push_back(*std::move(candidate));
  }

  // Analyzes the model into work_, and makes the search for it.
  absl::StatusOr<SearchRequest> MakeSearch() {
    TACC_RETURN_IF_ERROR(Analyze());
    SearchRequest search = SearchRequestOf(request_, static_cast<int64_t>(one_row_.units.size()), precision_);
    TACC_ASSIGN_OR_RETURN(search.execution.optimizer_bytes,
                          OptimizerBytesOfElement(one_row_.forward, request_.training));
    // Weight and gradient read, weight and its copy written, states both.
    search.execution.update_traffic_bytes = 14 + 2 * search.execution.optimizer_bytes;
    TACC_RETURN_IF_ERROR(KeepTogether(one_row_.forward, request_.world, search));
    TACC_RETURN_IF_ERROR(SetOrder(search.base));
    search.num_best = kMaxFinalists;
    search.num_of_a_mesh = kMaxOfAMesh;
    search.can_lay_out = [this](const Layout& layout) -> absl::Status {
      const ExpertParallelOptions experts = ExpertsOf(layout);
      if (!AsksForOverflow() && !BuffersSuffice(one_row_.forward, experts)) {
        return absl::InvalidArgumentError(
            absl::StrCat("dist.ep.size = ", layout.sizes[Axis::kEp],
                         " may leave tokens without an expert at dist.ep.buffer_factor = ", experts.buffer_factor,
                         "; set the one or the other to have it"));
      }
      return MakePlan(layout).status();
    };
    search.memory_factor = [this](const Layout& layout) { return lessons_.HopedMemoryFactor(layout); };
    return search;
  }

  absl::Status Analyze() {
    const auto analyze = [&](const ExpertParallelOptions& experts) {
      return AnalyzeModel(one_row_.forward, one_row_.units, precision_, ops_, residual_, experts);
    };
    TACC_ASSIGN_OR_RETURN(work_, analyze({}));
    for (const int64_t ranks : Divisors(std::gcd(work_.num_experts, request_.world))) {
      if (ranks == 1 || ranks != request_.sizes[Axis::kEp].value_or(ranks)) continue;
      absl::StatusOr<ModelWork> work = analyze(ExpertsOf({.sizes = {{Axis::kEp, ranks}}}));
      if (!work.ok()) continue;  // Where a job asks for it, its programs say why.
      work_.over_expert_ranks.push_back(*std::move(work));
    }
    return absl::OkStatus();
  }

  // FLOPs of a sample's products by expert.
  double ExpertFlops() const {
    double flops = 0;
    for (const UnitWork& unit : work_.units) {
      for (const PhaseWork* phase : {&unit.forward, &unit.backward}) {
        for (const KernelWork& k : phase->kernels)
          flops += k.groups.size > 0 ? static_cast<double>(unit.count) * k.flops : 0;
      }
    }
    return flops;
  }

  // Whether tokens may go without an expert: a layout that the job does not ask for changes no result.
  bool AsksForOverflow() const {
    return request_.sizes[Axis::kEp].has_value() || request_.expert_buffer_factor.has_value();
  }

  ExpertParallelOptions ExpertsOf(const Layout& l) const {
    ExpertParallelOptions experts;
    experts.ranks = l.sizes[Axis::kEp];
    experts.buffer_factor = request_.expert_buffer_factor.value_or(kBufferFactor);
    experts.sequence_groups = l.sizes[Axis::kCp] * l.sizes[Axis::kTp];
    return experts;
  }

  // The best of the layouts that the job would have to ask for becomes a candidate behind those that may be taken.
  void ShowOverflowing(SearchRequest search) {
    search.num_best = 1;
    search.can_lay_out = [this](const Layout& layout) -> absl::Status {
      if (BuffersSuffice(one_row_.forward, ExpertsOf(layout)))
        return absl::InvalidArgumentError("there is room for every token");
      return MakePlan(layout).status();
    };
    std::vector<Candidate>& candidates = planned_.candidates;
    const size_t may_take = candidates.size();
    for (int round = 0; round < kMaxRounds; ++round) {
      const absl::StatusOr<SearchResult> found = Search(work_, search);
      if (!found.ok() || found->best.empty()) return;
      candidates.resize(may_take);
      Try(found->best[0]);
      // What does not fit has taught what such layouts need.
      if (candidates.size() == may_take || candidates.back().fits) return;
    }
  }

  // The order of axes that the job asks for.
  absl::Status SetOrder(Layout& layout) const {
    TACC_ASSIGN_OR_RETURN(const Mesh mesh, InTopology(Layout().mesh(), request_.topology));
    for (size_t i = 0; i < mesh.axes.size(); ++i) layout.order[i] = FindAxis(mesh.axes[i].name)->axis;
    return absl::OkStatus();
  }

  // Errors: InvalidArgument when the model cannot be laid out so.
  absl::StatusOr<Plan> MakePlan(const Layout& l) const {
    Plan plan;
    TACC_ASSIGN_OR_RETURN(const std::vector<Mesh::Axis> tensor_axes, TensorAxes(one_row_.forward, l.sizes[Axis::kTp]));
    TACC_ASSIGN_OR_RETURN(
        const std::vector<Mesh::Axis> context_axes,
        ContextAxes(one_row_.forward, l.sizes[Axis::kCp], request_.sp, tensor_axes, request_.buckets));
    std::vector<Mesh::Axis>& axes = plan.mesh.axes;
    for (Axis axis : {Axis::kPp, Axis::kDp, Axis::kFsdp, Axis::kEp}) {
      const bool is_always_there = axis == Axis::kDp || axis == Axis::kFsdp;
      if (l.sizes[axis] > 1 || is_always_there) axes.push_back({std::string(Name(axis)), l.sizes[axis]});
    }
    axes.insert(axes.end(), context_axes.begin(), context_axes.end());
    axes.insert(axes.end(), tensor_axes.begin(), tensor_axes.end());
    TACC_ASSIGN_OR_RETURN(plan.mesh, InTopology(std::move(plan.mesh), request_.topology));
    PartitionOptions pinned = LayoutOf(plan.mesh, one_row_.residual_module);
    TACC_RETURN_IF_ERROR(ApplyPins(request_.pins, one_row_.forward, pinned));
    plan.compute_dtype = precision_;
    plan.residual_dtype = residual_;
    plan.seq_len = request_.seq_len;
    plan.micro_batch = l.micro_batch;
    plan.accumulation = l.accumulation;
    plan.schedule = l.schedule;
    plan.num_chunks = l.chunks;
    plan.threads = request_.device.threads;
    const auto num_units = static_cast<int64_t>(one_row_.units.size());
    if (l.recompute) plan.recompute_units = std::min(request_.recompute_units.value_or(num_units), num_units);
    plan.zero_stage = l.zero_stage;
    plan.reduce_each_micro_batch = l.reduce_each_micro_batch;
    if (!l.reshard) plan.kept_units = num_units - request_.reshard_units.value_or(0);
    if (plan.kept_units == 0 || l.sizes[Axis::kPp] == 1) return plan;
    return absl::InvalidArgumentError(
        absl::StrCat("dist.fsdp.reshard_after_forward: false does not go with dist.pp.size = ", l.sizes[Axis::kPp],
                     ": weights would be kept for each micro-batch under way; leave it out, or use "
                     "dist.fsdp.zero_stage: 2, which gathers no weights"));
  }

  using Measuring = absl::StatusOr<Measured> (*)(const PlanRequest&, const Plan&, const ForwardModel&, const OpTable&);
  absl::Status Measure(Candidate& c, Measuring measure) {
    const int64_t rows = c.plan.micro_batch * c.plan.num_data_ranks();
    auto [forward, is_new] = forwards_.try_emplace(rows);
    if (is_new) {
      TACC_ASSIGN_OR_RETURN(forward->second, model_(rows, request_.seq_len));
    }
    TACC_ASSIGN_OR_RETURN(Measured measured, measure(request_, c.plan, forward->second, ops_));
    compiled_layers_ += measured.compiled_layers;
    c.memory = measured.memory;
    c.cost = measured.cost;
    c.times = measured.times;
    c.wait_seconds = measured.wait_seconds;
    c.composed = measured.composed;
    c.plan.step_seconds = measured.step_seconds;
    c.plan.total_bytes = c.memory.arena_bytes + c.memory.workspace_bytes + IdleBytes(request_.cluster.machine) +
                         BufferBytes(request_.cluster.machine, c.plan.mesh);
    c.fits = request_.device.memory_bytes == 0 || c.plan.total_bytes <= request_.device.memory_bytes;
    if (!c.composed && (planned_.programs.empty() || Better(c, whole_))) {
      whole_ = c;
      planned_.programs = std::move(measured.programs);
    }
    return absl::OkStatus();
  }

  bool AnyFits() const {
    return std::any_of(planned_.candidates.begin(), planned_.candidates.end(),
                       [](const Candidate& c) { return c.fits; });
  }

  void TakeLosers(SearchResult& found, double available_bytes) {
    planned_.num_meshes = found.num_meshes;
    planned_.num_layouts = found.num_layouts;
    for (Loser& loser : found.losers) {
      const double bytes = loser.scored.memory.total();
      if (loser.fits && available_bytes > 0 && bytes > available_bytes)
        absl::StrAppend(&loser.why, ", and may not fit: ", BytesText(bytes), " of ", BytesText(available_bytes));
      if (!request_.pins.empty()) absl::StrAppend(&loser.why, " (estimated without dist.pins)");
      planned_.losers.push_back(std::move(loser));
    }
  }

  // The first candidate's figures become those of its whole program, with copies of the weights or without.
  absl::Status Settle() {
    std::vector<Candidate>& candidates = planned_.candidates;
    std::stable_sort(candidates.begin(), candidates.end(), Better);
    while (candidates[0].fits) {
      Candidate& best = candidates[0];
      if (std::find(tried_copies_.begin(), tried_copies_.end(), best.layout) == tried_copies_.end()) {
        TACC_RETURN_IF_ERROR(TryCopies(best));
      } else if (best.composed || !IsWhole(best)) {
        planned_.programs.clear();
        TACC_RETURN_IF_ERROR(Measure(best, MeasurePlan));
        if (!best.fits) TACC_RETURN_IF_ERROR(DropCopies(best));
      } else {
        break;
      }
      std::stable_sort(candidates.begin(), candidates.end(), Better);
    }
    return absl::OkStatus();
  }

  // Whether planned_.programs are the candidate's.
  bool IsWhole(const Candidate& c) const {
    return c.layout == whole_.layout && c.plan.keeps_copies == whole_.plan.keeps_copies;
  }

  // Gives `best` copies of its weights, where they fit and earn it. With ZeRO-1 and 2 there are copies anyway; and a
  // processor's memory is not the job's alone, as a GPU's is.
  absl::Status TryCopies(Candidate& best) {
    tried_copies_.push_back(best.layout);
    if (request_.cluster.machine.shares_cores) return absl::OkStatus();
    if (!request_.may_keep_copies || precision_ == DType::kF32 || best.plan.zero_stage < 3) return absl::OkStatus();
    Candidate with = best;
    with.plan.keeps_copies = 1;
    TACC_RETURN_IF_ERROR(Measure(with, ComposePlan));
    with.copies_save_seconds = best.plan.step_seconds - with.plan.step_seconds;
    if (with.fits && with.copies_save_seconds >= kCopiesMustEarn * best.plan.step_seconds) best = with;
    return absl::OkStatus();
  }

  // Takes the copies from `c`, whose whole program does not fit with them: parts may need a little less than the whole.
  absl::Status DropCopies(Candidate& c) {
    if (c.plan.keeps_copies == 0) return absl::OkStatus();
    c.plan.keeps_copies = 0;
    c.copies_save_seconds = 0;
    planned_.programs.clear();
    return Measure(c, MeasurePlan);
  }

  void DropLosersThatAreCandidates() {
    const auto is_candidate = [&](const Loser& loser) {
      return std::any_of(planned_.candidates.begin(), planned_.candidates.end(),
                         [&](const Candidate& c) { return c.layout.mesh() == loser.scored.layout.mesh(); });
    };
    std::vector<Loser>& losers = planned_.losers;
    losers.erase(std::remove_if(losers.begin(), losers.end(), is_candidate), losers.end());
  }

  const PlanRequest& request_;
  const ForwardBuilder& model_;
  const OpTable& ops_;
  const ForwardModel& one_row_;
  const DType precision_, residual_;
  ModelWork work_;
  std::map<int64_t, ForwardModel> forwards_;  // by rows
  Lessons lessons_;
  int64_t compiled_layers_ = 0;
  Planned planned_;
  Candidate whole_;  // of which planned_.programs are
  std::vector<Layout> tried_copies_;
  absl::Status first_error_;
};

}  // namespace

double Worth(const Candidate& candidate) { return Worth(candidate.layout, candidate.plan.step_seconds); }

const MemoryUse& Largest(const std::vector<MemoryUse>& stages) {
  return *std::max_element(stages.begin(), stages.end(), [](const MemoryUse& a, const MemoryUse& b) {
    return a.arena_bytes + a.workspace_bytes < b.arena_bytes + b.workspace_bytes;
  });
}

absl::Status CheckLayout(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  TACC_RETURN_IF_ERROR(CheckLayerCounts(request, static_cast<int64_t>(one_row.units.size())));
  TACC_RETURN_IF_ERROR(Planner(request, model, ops, one_row, Residuals(request)[0]).Check());
  const bool data_is_known = request.num_samples > 0;
  return data_is_known ? MaxSteps(request, GlobalBatch(request)).status() : absl::OkStatus();
}

absl::StatusOr<bool> MayFit(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  // What is narrower fits wherever the wider does.
  return Planner(request, model, ops, one_row, Residuals(request).back()).MayFit();
}

absl::StatusOr<std::vector<Scored>> LegalLayouts(const PlanRequest& request, const ForwardBuilder& model,
                                                 const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  return Planner(request, model, ops, one_row, Residuals(request)[0]).All();
}

absl::StatusOr<std::vector<absl::StatusOr<Candidate>>> MeasureLayouts(const PlanRequest& request,
                                                                      const std::vector<Layout>& layouts, Programs of,
                                                                      const ForwardBuilder& model, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  Planner planner(request, model, ops, one_row, Residuals(request)[0]);
  std::vector<absl::StatusOr<Candidate>> measured;
  for (const Layout& layout : layouts) measured.push_back(planner.MeasureLayout(layout, of));
  return measured;
}

absl::StatusOr<Planned> PlanCandidates(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  TACC_RETURN_IF_ERROR(CheckLayerCounts(request, static_cast<int64_t>(one_row.units.size())));
  const std::vector<DType> residuals = Residuals(request);
  TACC_ASSIGN_OR_RETURN(Planned planned, Planner(request, model, ops, one_row, residuals[0]).Run());
  if (residuals.size() > 1) {
    TACC_ASSIGN_OR_RETURN(Planned narrow, Planner(request, model, ops, one_row, residuals[1]).Run());
    if (TakeNarrow(planned.candidates[0], narrow.candidates[0])) planned = std::move(narrow);
  }
  planned.notes = one_row.notes;
  return planned;
}

}  // namespace tacc::graph
