#include "graph/planner/search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

constexpr int64_t kMaxMicroBatch = 16;

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d * d != n) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

// "dist.tp.size = 3 REASON; nearest legal values: 2 and 4".
absl::Status Illegal(absl::string_view field, int64_t value, absl::string_view reason,
                     const std::vector<int64_t>& legal) {
  std::vector<int64_t> nearest;
  auto above = std::upper_bound(legal.begin(), legal.end(), value);
  if (above != legal.begin()) nearest.push_back(*(above - 1));
  if (above != legal.end()) nearest.push_back(*above);
  return absl::InvalidArgumentError(
      absl::StrCat(field, " = ", value, " ", reason,
                   nearest.empty() ? "" : "; nearest legal values: ", absl::StrJoin(nearest, " and ")));
}

// The values that an axis may take, or an error about the one that is asked for.
absl::StatusOr<std::vector<int64_t>> Values(absl::string_view field, const std::optional<int64_t>& asked,
                                            absl::string_view reason, std::vector<int64_t> legal) {
  if (!asked.has_value()) return legal;
  if (!std::binary_search(legal.begin(), legal.end(), *asked)) return Illegal(field, *asked, reason, legal);
  return std::vector<int64_t>{*asked};
}

std::vector<int64_t> Where(const std::vector<int64_t>& values, const std::function<bool(int64_t)>& legal) {
  std::vector<int64_t> kept;
  for (int64_t v : values) {
    if (legal(v)) kept.push_back(v);
  }
  return kept;
}

struct Axes {
  std::vector<int64_t> pp, fsdp, ep, cp, tp;
};

absl::StatusOr<Axes> LegalAxes(const ModelWork& model, const SearchRequest& r) {
  const int64_t devices = r.cluster.num_devices(), per_node = r.cluster.machine.devices_per_node;
  const std::vector<int64_t> divisors = Divisors(devices);
  const std::string of_devices = absl::StrCat("does not divide the ", devices, " devices");
  for (const auto& [field, asked] :
       {std::pair("dist.pp.size", r.pp), std::pair("dist.dp.size", r.dp), std::pair("dist.fsdp.size", r.fsdp),
        std::pair("dist.ep.size", r.ep), std::pair("dist.cp.size", r.cp), std::pair("dist.tp.size", r.tp)}) {
    TACC_RETURN_IF_ERROR(Values(field, asked, of_devices, divisors).status());
  }
  Axes axes;
  TACC_ASSIGN_OR_RETURN(axes.pp,
                        Values("dist.pp.size", r.pp, absl::StrCat("is more than the ", model.num_layers, " layers"),
                               Where(divisors, [&](int64_t v) { return v == 1 || v <= model.num_layers; })));
  TACC_ASSIGN_OR_RETURN(
      axes.tp,
      Values("dist.tp.size", r.tp, absl::StrCat("does not divide the ", model.num_heads, " attention heads"),
             Where(divisors, [&](int64_t v) { return v == 1 || (model.num_heads > 0 && model.num_heads % v == 0); })));
  // Between nodes tensor parallelism is legal, but only when asked for: every layer would wait for the network.
  if (!r.tp.has_value()) axes.tp = Where(axes.tp, [&](int64_t v) { return v <= per_node; });
  TACC_ASSIGN_OR_RETURN(
      axes.cp,
      Values("dist.cp.size", r.cp, absl::StrCat("does not cut ", model.seq_len, " tokens into two equal blocks a rank"),
             Where(divisors, [&](int64_t v) { return v == 1 || model.seq_len % (2 * v) == 0; })));
  if (!r.cp.has_value()) axes.cp = Where(axes.cp, [&](int64_t v) { return v == 1 || model.seq_len / v >= 1024; });
  TACC_ASSIGN_OR_RETURN(
      axes.ep, Values("dist.ep.size", r.ep,
                      model.num_experts > 0 ? absl::StrCat("does not divide the ", model.num_experts, " experts")
                                            : "is given for a model without experts",
                      Where(divisors, [&](int64_t v) {
                        return v == 1 || (model.num_experts > 0 && model.num_experts % v == 0);
                      })));
  axes.fsdp = r.fsdp.has_value() ? std::vector<int64_t>{*r.fsdp} : divisors;
  return axes;
}

class Searcher {
 public:
  Searcher(const ModelWork& model, const SearchRequest& request) : model_(model), r_(request) {
    for (const UnitWork& unit : model.units) {
      for (const PhaseWork* phase : {&unit.forward, &unit.backward}) {
        for (const KernelWork& k : phase->kernels) flops_ += static_cast<double>(unit.count) * k.flops;
      }
    }
    if (r_.recompute.has_value()) {
      recompute_ = {*r_.recompute};
    } else {
      recompute_ = {false, true};
    }
  }

  // The best layout of a mesh, by time among those that fit, else by memory.
  void Mesh(Layout l) {
    ++result_.num_meshes;
    const int64_t rows = r_.global_batch / l.batch_ranks();
    std::optional<Scored> best, smallest;
    // Weights, gradients and optimizer alone.
    Layout least = l;
    least.micro_batch = least.accumulation = 1;
    least.recompute = true;
    const MemoryEstimate floor = EstimateMemory(model_, least, r_.execution);
    if (!Fits(floor.weights + floor.gradients + floor.optimizer)) {
      ++result_.num_pruned;
      losers_.push_back(
          {l, {}, absl::StrCat("does not fit at any micro-batch: ", DescribeMemory(floor)), floor.total()});
      return;
    }
    for (int64_t micro_batch : Divisors(rows)) {
      if (r_.micro_batch.has_value() ? micro_batch != *r_.micro_batch : micro_batch > kMaxMicroBatch) continue;
      l.micro_batch = micro_batch;
      l.accumulation = rows / micro_batch;
      for (const auto& [schedule, chunks] : Schedules(l)) {
        l.schedule = schedule;
        l.chunks = chunks;
        if (LeastSeconds(l) > cutoff_ && (best.has_value() || smallest.has_value())) {
          ++result_.num_pruned;
          continue;
        }
        for (bool recompute : recompute_) {
          l.recompute = recompute;
          for (bool reshard : {true, false}) {
            if (!reshard && l.fsdp == 1) continue;
            l.reshard = reshard;
            Scored scored{l, {}, EstimateMemory(model_, l, r_.execution)};
            if (!Fits(scored.memory.total())) {
              ++result_.num_pruned;
              if (!smallest.has_value() || scored.memory.total() < smallest->memory.total()) smallest = scored;
              continue;
            }
            scored.step = EstimateStep(model_, r_.cluster, l, r_.execution);
            ++result_.num_layouts;
            if (!best.has_value() || scored.step.seconds < best->step.seconds) best = scored;
            Keep(scored);
          }
        }
      }
    }
    if (best.has_value()) {
      losers_.push_back({best->layout, best->step, "", 0});
    } else if (smallest.has_value()) {
      losers_.push_back({smallest->layout,
                         {},
                         absl::StrCat("does not fit: ", DescribeMemory(smallest->memory)),
                         smallest->memory.total()});
    }
  }

  SearchResult Finish() {
    std::stable_sort(result_.best.begin(), result_.best.end(), Faster);
    if (result_.best.size() > r_.num_best) result_.best.resize(r_.num_best);
    std::stable_sort(losers_.begin(), losers_.end(), [](const Entry& a, const Entry& b) {
      const bool fits_a = a.why.empty(), fits_b = b.why.empty();
      if (fits_a != fits_b) return fits_a;
      return fits_a ? a.step.seconds < b.step.seconds : a.bytes < b.bytes;
    });
    for (Entry& entry : losers_) {
      if (!result_.best.empty() && entry.layout.mesh() == result_.best[0].layout.mesh()) continue;
      if (entry.why.empty()) entry.why = WhySlower(entry.step, result_.best[0].step);
      result_.losers.push_back({entry.layout, std::move(entry.why)});
    }
    return std::move(result_);
  }

 private:
  struct Entry {
    Layout layout;
    StepEstimate step;
    std::string why;
    double bytes = 0;
  };

  static bool Faster(const Scored& a, const Scored& b) { return a.step.seconds < b.step.seconds; }

  bool Fits(double bytes) const { return r_.available_bytes <= 0 || bytes <= r_.available_bytes; }

  std::vector<std::pair<Schedule1F1B, int64_t>> Schedules(const Layout& l) const {
    std::vector<std::pair<Schedule1F1B, int64_t>> schedules = {{Schedule1F1B::kPlain, 1}};
    if (l.pp == 1) return schedules;
    schedules.push_back({Schedule1F1B::kZeroBubble, 1});
    // Interleaving hands out micro-batches in rounds of the stages, and layers evenly to the parts.
    if (l.accumulation % l.pp == 0 && model_.num_layers % l.pp == 0) {
      for (int64_t chunks : Divisors(model_.num_layers / l.pp)) {
        if (chunks > 1 && chunks <= 8) schedules.push_back({Schedule1F1B::kInterleaved, chunks});
      }
    }
    return schedules;
  }

  double LeastSeconds(const Layout& l) const {
    const Machine& m = r_.cluster.machine;
    const double peak = m.PeakFlops(r_.execution.compute) * m.matmul_fraction;
    const double products = flops_ * static_cast<double>(r_.global_batch) / static_cast<double>(l.num_ranks()) / peak;
    const double bubble =
        static_cast<double>(l.pp - 1) /
        static_cast<double>(l.accumulation * l.chunks * (l.schedule == Schedule1F1B::kZeroBubble ? 3 : 1));
    return products * (1 + bubble);
  }

  void Keep(const Scored& scored) {
    std::vector<Scored>& best = result_.best;
    best.push_back(scored);
    if (best.size() < 2 * r_.num_best) return;
    std::nth_element(best.begin(), best.begin() + static_cast<int64_t>(r_.num_best) - 1, best.end(), Faster);
    best.resize(r_.num_best);
    cutoff_ = best.back().step.seconds;
  }

  // "1.31x as slow; mostly tensor communication (+0.52 s) and bubble (+0.11 s)".
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
    std::string why = absl::StrFormat("%.3g s, %.2fx the best", loser.seconds, loser.seconds / best.seconds);
    for (size_t i = 0; i < 2 && more[i].first > 0.01 * (loser.seconds - best.seconds) && more[i].first > 0; ++i) {
      absl::StrAppend(&why, i == 0 ? ": " : ", ", absl::StrFormat("%s +%.2g s", more[i].second, more[i].first));
    }
    return why;
  }

  const ModelWork& model_;
  const SearchRequest& r_;
  double flops_ = 0;  // of a sample
  std::vector<bool> recompute_;
  double cutoff_ = std::numeric_limits<double>::infinity();
  std::vector<Entry> losers_;
  SearchResult result_;
};

}  // namespace

absl::StatusOr<SearchResult> Search(const ModelWork& model, const SearchRequest& r) {
  TACC_ASSIGN_OR_RETURN(const Axes axes, LegalAxes(model, r));
  const int64_t devices = r.cluster.num_devices();
  Searcher searcher(model, r);
  int64_t legal_batch_ranks = 0, meshes = 0;
  for (int64_t tp : axes.tp) {
    for (int64_t cp : axes.cp) {
      for (int64_t pp : axes.pp) {
        if (devices % (tp * cp * pp) != 0) continue;
        const int64_t batch_ranks = devices / (tp * cp * pp);
        if (r.global_batch % (batch_ranks * r.micro_batch.value_or(1)) != 0) continue;
        legal_batch_ranks = std::max(legal_batch_ranks, batch_ranks);
        for (int64_t ep : axes.ep) {
          if (batch_ranks % ep != 0) continue;
          for (int64_t fsdp : axes.fsdp) {
            if ((batch_ranks / ep) % fsdp != 0) continue;
            Layout l;
            l.pp = pp;
            l.dp = batch_ranks / ep / fsdp;
            l.fsdp = fsdp;
            l.ep = ep;
            l.cp = cp;
            l.tp = tp;
            if (r.dp.has_value() && l.dp != *r.dp) continue;
            ++meshes;
            searcher.Mesh(l);
          }
        }
      }
    }
  }
  if (meshes == 0) {
    auto axis = [](absl::string_view name, const std::optional<int64_t>& size) {
      return size.has_value() ? absl::StrCat(" ", name, "=", *size) : std::string();
    };
    const int64_t granule = devices * r.micro_batch.value_or(1);
    const int64_t below = r.global_batch / granule * granule;
    return absl::InvalidArgumentError(absl::StrCat(
        "no mesh of ", devices, " devices fits", axis("pp", r.pp), axis("dp", r.dp), axis("fsdp", r.fsdp),
        axis("ep", r.ep), axis("cp", r.cp), axis("tp", r.tp), axis("micro-batch", r.micro_batch),
        " with train.global_batch_size = ", r.global_batch,
        ": the sizes must multiply to the devices, and dp x fsdp x ep x the micro-batch must divide the batch; batches "
        "that fit any mesh: ",
        below > 0 ? absl::StrCat(below, " and ") : "", below + granule));
  }
  return searcher.Finish();
}

std::string DescribeMemory(const MemoryEstimate& m) {
  auto gib = [](double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); };
  return absl::StrCat(gib(m.total()), " (weights ", gib(m.weights + m.copies), ", gradients ", gib(m.gradients),
                      ", optimizer ", gib(m.optimizer), ", activations ", gib(m.activations), ", temporaries ",
                      gib(m.temporaries), ")");
}

std::string DescribeStep(const StepEstimate& e) {
  const std::pair<const char*, double> parts[] = {{"compute", e.compute - e.recompute},
                                                  {"recomputation", e.recompute},
                                                  {"tensor", e.tensor},
                                                  {"context", e.context},
                                                  {"expert", e.expert},
                                                  {"data", e.data},
                                                  {"sends", e.sends},
                                                  {"imbalance", e.imbalance},
                                                  {"bubble", e.bubble},
                                                  {"update", e.update}};
  std::string text;
  for (const auto& [name, seconds] : parts) {
    const double percent = 100 * seconds / e.seconds;
    if (percent >= 0.05) absl::StrAppend(&text, text.empty() ? "" : ", ", name, absl::StrFormat(" %.1f %%", percent));
  }
  return text;
}

}  // namespace tacc::graph
