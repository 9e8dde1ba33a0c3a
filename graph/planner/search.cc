#include "graph/planner/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/axis.h"
#include "graph/ir/divisors.h"
#include "graph/ir/status_macros.h"
#include "graph/planner/axis_rules.h"
#include "page/numbers.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxMicroBatch = 16, kMaxChunks = 8;
// Of a step on a worker, as of `dist.pp.num_micro_batches`: each is simulated.
constexpr int64_t kMaxMicroBatches = 65536;

enum class Suggestions { kNone, kNearest };
absl::StatusOr<SearchResult> SearchMeshes(const ModelWork& model, const SearchRequest& r, Suggestions suggestions);

// What is asked of the search, and what it refuses.
struct Asked {
  const ModelWork& model;
  const SearchRequest& request;
  Suggestions suggestions;

  // "FIELD = 3 REASON; nearest legal values: 2 and 4": of `values`, in ascending order, the nearest on each side with
  // which the search takes the request.
  absl::Status Illegal(absl::string_view field, int64_t value, absl::string_view reason,
                       const std::vector<int64_t>& values) const;
  // The values that an axis may take, or an error about the one that is asked for.
  absl::StatusOr<std::vector<int64_t>> Values(absl::string_view field, const std::optional<int64_t>& asked,
                                              absl::string_view reason, std::vector<int64_t> legal) const;
  // Whether the search takes the request with this value.
  bool Takes(absl::string_view field, int64_t value) const;
};

std::vector<int64_t> Where(const std::vector<int64_t>& values, const std::function<bool(int64_t)>& legal) {
  std::vector<int64_t> kept;
  for (int64_t v : values) {
    if (legal(v)) kept.push_back(v);
  }
  return kept;
}

std::string SizeField(Axis axis) { return absl::StrCat("dist.", Name(axis), ".size"); }

struct Field {
  const char* name;
  std::optional<int64_t> SearchRequest::*value;
};
constexpr Field kMicroBatch = {"train.per_device_train_batch_size", &SearchRequest::micro_batch};
constexpr Field kNumMicroBatches = {"dist.pp.num_micro_batches", &SearchRequest::num_micro_batches};
constexpr char kGlobalBatch[] = "train.global_batch_size";

bool Asked::Takes(absl::string_view field, int64_t value) const {
  SearchRequest trial = request;
  trial.num_best = 1;
  if (field == kGlobalBatch) trial.global_batch = value;
  for (Axis axis : kJobAxes) {
    if (field == SizeField(axis)) trial.sizes[axis] = value;
  }
  for (const Field& f : {kMicroBatch, kNumMicroBatches}) {
    if (field == f.name) trial.*f.value = value;
  }
  return SearchMeshes(model, trial, Suggestions::kNone).ok();
}

absl::Status Asked::Illegal(absl::string_view field, int64_t value, absl::string_view reason,
                            const std::vector<int64_t>& values) const {
  const std::string refusal = absl::StrCat(field, " = ", value, " ", reason);
  if (suggestions == Suggestions::kNone) return absl::InvalidArgumentError(refusal);
  std::vector<int64_t> nearest;
  const auto takes = [&](int64_t v) { return Takes(field, v); };
  const auto end_below = std::lower_bound(values.begin(), values.end(), value);
  const auto below = std::find_if(std::make_reverse_iterator(end_below), values.rend(), takes);
  if (below != values.rend()) nearest.push_back(*below);
  const auto above = std::find_if(std::upper_bound(values.begin(), values.end(), value), values.end(), takes);
  if (above != values.end()) nearest.push_back(*above);
  return absl::InvalidArgumentError(absl::StrCat(
      refusal, nearest.empty() ? "; as the rest of the job is, no other value of it is legal either"
                               : absl::StrCat("; nearest legal values: ", absl::StrJoin(nearest, " and "))));
}

absl::StatusOr<std::vector<int64_t>> Asked::Values(absl::string_view field, const std::optional<int64_t>& asked,
                                                   absl::string_view reason, std::vector<int64_t> legal) const {
  if (!asked.has_value()) return legal;
  if (!std::binary_search(legal.begin(), legal.end(), *asked)) return Illegal(field, *asked, reason, legal);
  return std::vector<int64_t>{*asked};
}

// The sizes that each axis may take, alone; whether they go together, CanLayOut says.
using LegalSizes = PerAxis<std::vector<int64_t>>;

absl::StatusOr<LegalSizes> LegalSizesOf(const Asked& asked) {
  const SearchRequest& r = asked.request;
  const std::vector<int64_t> divisors = Divisors(r.cluster.num_devices());
  const std::string of_devices = absl::StrCat("does not divide the ", r.cluster.num_devices(), " workers");
  for (Axis axis : kJobAxes) {
    TACC_RETURN_IF_ERROR(asked.Values(SizeField(axis), r.sizes[axis], of_devices, divisors).status());
  }
  LegalSizes legal;
  for (const AxisRule& rule : kAxisRules) {
    const bool splits_here = rule.splits != nullptr && !rule.by_shardings;
    const bool is_open = !r.sizes[rule.axis].has_value();
    const auto is_legal = [&](int64_t size) {
      return (!splits_here || rule.splits(asked.model, r, size)) &&
             (!is_open || rule.tried == nullptr || rule.tried(asked.model, r, size));
    };
    TACC_ASSIGN_OR_RETURN(legal[rule.axis],
                          asked.Values(SizeField(rule.axis), r.sizes[rule.axis],
                                       splits_here ? rule.reason(asked.model, r) : "", Where(divisors, is_legal)));
  }
  return legal;
}

// All meshes of so many devices: `layout` with each choice of legal sizes for the axes of `rules`, and what they leave
// for dp.
void ForEachMesh(std::span<const AxisRule> rules, const LegalSizes& legal, int64_t devices, Layout layout,
                 const std::function<void(const Layout&)>& visit) {
  if (rules.empty()) {
    layout.sizes[Axis::kDp] = devices;
    return visit(layout);
  }
  for (int64_t size : legal[rules[0].axis]) {
    if (devices % size != 0) continue;
    layout.sizes[rules[0].axis] = size;
    ForEachMesh(rules.subspan(1), legal, devices / size, layout, visit);
  }
}

absl::Status CanLayOut(const Asked& asked, const Layout& l) {
  const SearchRequest& r = asked.request;
  if (r.can_lay_out) return r.can_lay_out(l);
  for (const AxisRule& rule : kAxisRules) {
    const int64_t size = l.sizes[rule.axis];
    if (!rule.by_shardings || rule.splits(asked.model, r, size)) continue;
    return asked.Illegal(
        SizeField(rule.axis), size, rule.reason(asked.model, r),
        Where(Divisors(r.cluster.num_devices()), [&](int64_t v) { return rule.splits(asked.model, r, v); }));
  }
  return absl::OkStatus();
}

// The sizes that are asked for make no mesh of all the devices.
absl::Status NoMesh(const SearchRequest& r) {
  const int64_t devices = r.cluster.num_devices();
  std::vector<std::string> sizes;
  int64_t product = 1;
  for (Axis axis : kJobAxes) {
    const std::optional<int64_t>& size = r.sizes[axis];
    if (!size.has_value()) continue;
    sizes.push_back(absl::StrCat(SizeField(axis), " ", *size));
    product *= *size;
  }
  const std::string given = absl::StrCat(absl::StrJoin(sizes, " x "), " = ", product);
  if (devices % product != 0) {
    return absl::InvalidArgumentError(absl::StrCat(given, " does not divide the ", devices,
                                                   " workers; the product may be ",
                                                   absl::StrJoin(Divisors(devices), ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat(given, ", but there are ", devices,
                                                 " workers, and nothing else of this "
                                                 "model can be split over ",
                                                 devices / product,
                                                 "; leave out one of the sizes, or make them multiply to ", devices));
}

// The batch cannot be dealt out to any of the meshes, whose samples go to so many ranks.
absl::Status BatchDoesNotFit(const Asked& asked, const std::set<int64_t>& batch_ranks) {
  const SearchRequest& r = asked.request;
  const int64_t devices = r.cluster.num_devices(), batch = r.global_batch;
  const auto workers = [&](absl::string_view ranks, bool all) {
    return absl::StrCat(ranks, all ? " workers" : " groups of workers");
  };
  for (const int64_t ranks : batch_ranks) {
    if (batch % ranks != 0) continue;
    const int64_t rows = batch / ranks;
    const bool micro = r.micro_batch.has_value() && rows % *r.micro_batch != 0;
    const bool both = r.micro_batch.has_value() && !micro;
    return asked.Illegal(
        micro ? kMicroBatch.name : kNumMicroBatches.name, micro ? *r.micro_batch : *r.num_micro_batches,
        absl::StrCat(micro ? "does" : "do", " not divide the ", rows, " samples of a worker (global_batch_size ", batch,
                     " over ", workers(absl::StrCat(ranks), ranks == devices),
                     both ? absl::StrCat(", train.per_device_train_batch_size ", *r.micro_batch) : "", ")"),
        both ? std::vector<int64_t>{rows / *r.micro_batch} : Divisors(rows));
  }
  std::set<int64_t> batches;
  for (const int64_t ranks : batch_ranks) {
    const int64_t granule = ranks * r.micro_batch.value_or(1) * r.num_micro_batches.value_or(1);
    // Interleaved stages take micro-batches in rounds.
    const int64_t tries = r.schedule == PipelineSchedule::kInterleaved ? devices : 1;
    for (int64_t i = -tries + 1; i <= tries; ++i) {
      if (const int64_t multiple = (batch / granule + i) * granule; multiple > 0) batches.insert(multiple);
    }
  }
  return asked.Illegal(kGlobalBatch, batch,
                       absl::StrCat("does not divide over ", workers(absl::StrJoin(batch_ranks, " or "),
                                                                     batch_ranks == std::set<int64_t>{devices})),
                       {batches.begin(), batches.end()});
}

// The sizes of a micro-batch that are tried for so many samples of a worker, in samples; none: each makes too many.
std::vector<int64_t> MicroBatches(const SearchRequest& r, int64_t rows) {
  std::vector<int64_t> sizes;
  if (r.micro_batch.has_value()) {
    sizes = {*r.micro_batch};
  } else if (r.num_micro_batches.has_value()) {
    sizes = {rows / *r.num_micro_batches};
  } else {
    sizes = Where(Divisors(rows), [](int64_t v) { return v <= kMaxMicroBatch; });
  }
  return Where(sizes, [rows](int64_t v) { return rows / v <= kMaxMicroBatches; });
}

// On each mesh, whose samples go to so many ranks, a step has too many micro-batches.
absl::Status TooManyMicroBatches(const Asked& asked, const std::set<int64_t>& batch_ranks) {
  const SearchRequest& r = asked.request;
  const int64_t ranks = *batch_ranks.rbegin(), rows = r.global_batch / ranks;
  if (r.micro_batch.has_value()) {
    return asked.Illegal(
        kMicroBatch.name, *r.micro_batch,
        absl::StrCat("makes ", rows / *r.micro_batch, " micro-batches a step of the ", rows,
                     " samples of a worker (global_batch_size ", r.global_batch, "); at most ", kMaxMicroBatches),
        Divisors(rows));
  }
  return asked.Illegal(kGlobalBatch, r.global_batch,
                       absl::StrCat("makes more than ", kMaxMicroBatches, " micro-batches a step of the ", rows,
                                    " samples of a worker, of ", kMaxMicroBatch,
                                    " samples at most; train.per_device_train_batch_size may be more"),
                       {ranks * kMaxMicroBatches, ranks * kMaxMicroBatches * kMaxMicroBatch});
}

class Searcher {
 public:
  Searcher(const ModelWork& model, const SearchRequest& request) : model_(model), r_(request) {
    for (const UnitWork& unit : model.units) {
      for (const PhaseWork* phase : {&unit.forward, &unit.backward}) {
        for (const KernelWork& k : phase->kernels) flops_ += static_cast<double>(unit.count) * k.flops;
      }
    }
    if (r_.recompute.has_value()) recompute_ = {*r_.recompute};
    if (r_.zero_stage.has_value()) stages_ = {*r_.zero_stage};
    if (r_.reshard.has_value()) reshard_ = {*r_.reshard};
    if (r_.reduce_each_micro_batch.has_value()) reduce_each_ = {*r_.reduce_each_micro_batch};
  }

  // The best layouts of a mesh, by time among those that fit, else by memory.
  void Mesh(Layout l) {
    ++result_.num_meshes;
    const int64_t rows = r_.global_batch / l.batch_ranks();
    std::vector<Scored> best;
    std::optional<Scored> smallest;
    const auto keep_small = [&](const Scored& scored) {
      if (!smallest.has_value() || scored.memory.total() < smallest->memory.total()) smallest = scored;
    };
    const bool hopeless = WeightsAloneFill(l);
    for (int64_t micro_batch : MicroBatches(r_, rows)) {
      l.micro_batch = micro_batch;
      l.accumulation = rows / micro_batch;
      for (const auto& [schedule, chunks] : Schedules(l)) {
        l.schedule = schedule;
        l.chunks = chunks;
        if (smallest.has_value() && (hopeless || LeastSeconds(l) > cutoff_)) {
          ++result_.num_pruned;
          continue;
        }
        for (bool recompute : recompute_) {
          if (hopeless && recompute != static_cast<bool>(recompute_.back())) continue;
          l.recompute = recompute;
          for (const Layout& way : WaysOfSharding(l)) {
            Scored scored{way, {}, EstimateMemory(model_, way, r_.execution)};
            keep_small(scored);
            if (!Fits(scored.memory.total() * MemoryFactor(way))) {
              ++result_.num_pruned;
              if (hopeless) break;  // The first way needs least.
              continue;
            }
            scored.step = EstimateStep(model_, r_.cluster, way, r_.execution);
            ++result_.num_layouts;
            best.insert(std::upper_bound(best.begin(), best.end(), scored, Faster), scored);
            if (best.size() > r_.num_of_a_mesh) best.pop_back();
          }
        }
      }
    }
    if (!smallest.has_value()) return;  // no schedule for it
    if (!result_.smallest.has_value() || smallest->memory.total() < result_.smallest->memory.total())
      result_.smallest = smallest;
    for (const Scored& scored : best) Keep(scored);
    if (!best.empty()) {
      losers_.push_back({best[0], true, ""});
    } else {
      smallest->step = EstimateStep(model_, r_.cluster, smallest->layout, r_.execution);
      losers_.push_back({*smallest, false, absl::StrCat("does not fit: ", DescribeMemory(smallest->memory))});
    }
  }

  absl::StatusOr<SearchResult> Finish() {
    if (losers_.empty()) {
      return absl::InvalidArgumentError(
          "dist.pp.schedule = interleaved needs a number of micro-batches that dist.pp.size divides, and at least "
          "dist.pp.size x dist.pp.num_chunks layers; no layout of this job has both: change train.global_batch_size, "
          "train.per_device_train_batch_size or dist.pp.num_micro_batches, or leave the schedule out");
    }
    if (result_.smallest->step.seconds == 0)
      result_.smallest->step = EstimateStep(model_, r_.cluster, result_.smallest->layout, r_.execution);
    std::stable_sort(result_.best.begin(), result_.best.end(), Faster);
    if (result_.best.size() > r_.num_best) result_.best.resize(r_.num_best);
    std::stable_sort(losers_.begin(), losers_.end(), [](const Loser& a, const Loser& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? Faster(a.scored, b.scored) : a.scored.memory.total() < b.scored.memory.total();
    });
    for (Loser& loser : losers_) {
      if (!result_.best.empty() && loser.scored.layout.mesh() == result_.best[0].layout.mesh()) continue;
      if (loser.fits) loser.why = WhySlower(loser.scored.step, result_.best[0].step);
      result_.losers.push_back(std::move(loser));
    }
    return std::move(result_);
  }

 private:
  static bool Faster(const Scored& a, const Scored& b) { return a.step.seconds < b.step.seconds; }

  bool Fits(double bytes) const { return r_.available_bytes <= 0 || bytes <= r_.available_bytes; }

  double MemoryFactor(const Layout& l) const { return r_.memory_factor ? r_.memory_factor(l) : 1; }

  // Weights, gradients and optimizer alone do not fit.
  bool WeightsAloneFill(Layout l) const {
    l = WaysOfSharding(l)[0];
    l.micro_batch = l.accumulation = 1;
    l.recompute = true;
    const MemoryEstimate floor = EstimateMemory(model_, l, r_.execution);
    return !Fits(floor.weights + floor.gradients + floor.optimizer);
  }

  std::vector<std::pair<PipelineSchedule, int64_t>> Schedules(const Layout& l) const {
    if (l.sizes[Axis::kPp] == 1) return {{PipelineSchedule::k1F1B, 1}};
    const auto wanted = [&](PipelineSchedule schedule) { return r_.schedule.value_or(schedule) == schedule; };
    std::vector<std::pair<PipelineSchedule, int64_t>> schedules;
    for (PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubble}) {
      if (wanted(schedule)) schedules.push_back({schedule, 1});
    }
    // Interleaving hands out micro-batches in rounds of the stages; unless it is asked for, layers evenly to the parts.
    if (!wanted(PipelineSchedule::kInterleaved) || l.accumulation % l.sizes[Axis::kPp] != 0) return schedules;
    if (!r_.cuts_between_layers && !r_.chunks.has_value()) return schedules;  // cut into one part a stage
    if (r_.chunks.has_value()) {
      if (!r_.cuts_between_layers || l.sizes[Axis::kPp] * *r_.chunks <= model_.num_layers)
        schedules.push_back({PipelineSchedule::kInterleaved, *r_.chunks});
      return schedules;
    }
    for (int64_t chunks = 2; chunks <= kMaxChunks && l.sizes[Axis::kPp] * chunks <= model_.num_layers; ++chunks) {
      if (r_.schedule.has_value() || model_.num_layers % (l.sizes[Axis::kPp] * chunks) == 0)
        schedules.push_back({PipelineSchedule::kInterleaved, chunks});
    }
    return schedules;
  }

  // What fsdp and cp may shard in the layout, the way that needs least memory first.
  std::vector<Layout> WaysOfSharding(Layout l) const {
    std::vector<Layout> ways;
    for (int64_t stage : stages_) {
      l.zero_stage = stage;
      for (bool reshard : reshard_) {
        // Without a gather there is nothing to keep; in a pipeline it would be kept for each micro-batch under way.
        if (!reshard && reshard_.size() > 1 && (l.sizes[Axis::kPp] > 1 || stage < 3)) continue;
        l.reshard = reshard;
        for (bool reduce_each : reduce_each_) {
          // One micro-batch's are reduced once anyway.
          if (!reduce_each && reduce_each_.size() > 1 && (l.accumulation == 1 || stage < 3)) continue;
          l.reduce_each_micro_batch = reduce_each;
          ways.push_back(l);
          if (l.shards() == 1) return ways;  // They are all the same.
        }
      }
    }
    return ways;
  }

  double LeastSeconds(const Layout& l) const {
    const Machine& m = r_.cluster.machine;
    const double peak = m.PeakFlops(r_.execution.compute) * m.matmul_fraction;
    const double products = flops_ * static_cast<double>(r_.global_batch) / static_cast<double>(l.num_ranks()) / peak;
    const double bubble =
        static_cast<double>(l.sizes[Axis::kPp] - 1) /
        static_cast<double>(l.accumulation * l.chunks * (l.schedule == PipelineSchedule::kZeroBubble ? 3 : 1));
    return products * (1 + bubble);
  }

  void Keep(const Scored& scored) {
    std::vector<Scored>& best = result_.best;
    best.push_back(scored);
    if (best.size() / 2 < r_.num_best) return;
    std::nth_element(best.begin(), best.begin() + static_cast<int64_t>(r_.num_best) - 1, best.end(), Faster);
    best.resize(r_.num_best);
    cutoff_ = best.back().step.seconds;
  }

  // "2.20 s, 1.31x the lowest estimate: tensor-parallel communication +520 ms, pipeline bubble +110 ms".
  static std::string WhySlower(const StepEstimate& loser, const StepEstimate& best) {
    std::vector<std::pair<double, const char*>> more = {
        {loser.compute - loser.recompute - best.compute + best.recompute, "slower products"},
        {loser.recompute - best.recompute, "recomputation"},
        {loser.tensor - best.tensor, "tensor-parallel communication"},
        {loser.context - best.context, "context-parallel communication"},
        {loser.expert - best.expert, "expert communication"},
        {loser.data - best.data, "exposed weight and gradient traffic"},
        {loser.sends - best.sends, "sends between stages"},
        {loser.imbalance - best.imbalance, "uneven stages"},
        {loser.bubble - best.bubble, "pipeline bubble"},
        {loser.update - best.update, "optimizer update"}};
    std::sort(more.begin(), more.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string why = absl::StrCat(SecondsText(loser.seconds),
                                   absl::StrFormat(", %.2fx the lowest estimate", loser.seconds / best.seconds));
    for (size_t i = 0; i < 2 && more[i].first > 0.01 * (loser.seconds - best.seconds) && more[i].first > 0; ++i) {
      absl::StrAppend(&why, i == 0 ? ": " : ", ", more[i].second, " +", SecondsText(more[i].first));
    }
    return why;
  }

  const ModelWork& model_;
  const SearchRequest& r_;
  double flops_ = 0;  // of a sample
  std::vector<int64_t> stages_ = {3, 2, 1};
  std::vector<char> recompute_ = {false, true}, reshard_ = {true, false}, reduce_each_ = {true, false};
  double cutoff_ = std::numeric_limits<double>::infinity();
  std::vector<Loser> losers_;  // the best of each mesh
  SearchResult result_;
};

absl::StatusOr<SearchResult> SearchMeshes(const ModelWork& model, const SearchRequest& r, Suggestions suggestions) {
  const Asked asked{model, r, suggestions};
  const Asked without_suggestions{model, r, Suggestions::kNone};  // Each of which takes searches of their own.
  TACC_ASSIGN_OR_RETURN(const LegalSizes legal, LegalSizesOf(asked));
  Searcher searcher(model, r);
  bool fits_batch = false;
  std::set<int64_t> batch_ranks, too_many_on;  // of all meshes; of those with too many micro-batches
  std::optional<Layout> refused;               // The first one.
  ForEachMesh(kAxisRules, legal, r.cluster.num_devices(), r.base, [&](const Layout& l) {
    if (l.sizes[Axis::kDp] != r.sizes[Axis::kDp].value_or(l.sizes[Axis::kDp])) return;
    if (!CanLayOut(without_suggestions, l).ok()) {
      if (!refused.has_value()) refused = l;
      return;
    }
    const int64_t ranks = l.batch_ranks();
    batch_ranks.insert(ranks);
    const int64_t granule = ranks * r.micro_batch.value_or(1) * r.num_micro_batches.value_or(1);
    if (r.global_batch % granule != 0) return;
    if (r.micro_batch.has_value() && r.num_micro_batches.has_value() && r.global_batch != granule) return;
    if (MicroBatches(r, r.global_batch / ranks).empty()) {
      too_many_on.insert(ranks);
      return;
    }
    fits_batch = true;
    searcher.Mesh(l);
  });
  if (fits_batch) return searcher.Finish();
  if (!too_many_on.empty()) return TooManyMicroBatches(asked, too_many_on);
  if (!batch_ranks.empty()) return BatchDoesNotFit(asked, batch_ranks);
  if (refused.has_value()) return CanLayOut(asked, *refused);
  return NoMesh(r);
}

}  // namespace

absl::StatusOr<SearchResult> Search(const ModelWork& model, const SearchRequest& request) {
  return SearchMeshes(model, request, Suggestions::kNearest);
}

}  // namespace tacc::graph
