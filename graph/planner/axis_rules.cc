#include "graph/planner/axis_rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

bool Divides(int64_t size, int64_t whole) { return size == 1 || (whole > 0 && whole % size == 0); }

// Parts of a stage, at least.
int64_t LeastParts(const SearchRequest& request) {
  return request.schedule == PipelineSchedule::kInterleaved ? request.chunks.value_or(2) : 1;
}

bool TpSplits(const ModelWork& model, const SearchRequest&, int64_t size) { return Divides(size, model.num_heads); }
std::string TpReason(const ModelWork& model, const SearchRequest&) {
  return absl::StrCat("does not divide the ", model.num_heads, " attention heads");
}
// Between nodes it is legal, but only when asked for: every layer would wait for the network.
bool TpTried(const ModelWork&, const SearchRequest& request, int64_t size) {
  return size <= std::max<int64_t>(request.cluster.machine.devices_per_node, 1);
}

bool CpSplits(const ModelWork& model, const SearchRequest&, int64_t size) {
  return size == 1 || (model.seq_len > 0 && model.seq_len % (2 * size) == 0);
}
std::string CpReason(const ModelWork& model, const SearchRequest&) {
  return absl::StrCat("does not cut ", model.seq_len, " tokens into two equal blocks a rank");
}
bool CpTried(const ModelWork& model, const SearchRequest&, int64_t size) {
  return size == 1 || model.seq_len / size >= kMinTokens;
}

bool PpSplits(const ModelWork& model, const SearchRequest& request, int64_t size) {
  return size == 1 || !request.cuts_between_layers || size * LeastParts(request) <= model.num_layers;
}
std::string PpReason(const ModelWork& model, const SearchRequest& request) {
  const int64_t parts = LeastParts(request);
  return absl::StrCat(parts == 1 ? "is" : absl::StrCat("stages of ", parts, " parts (interleaved) are"),
                      " more than the ", model.num_layers, " layers");
}

bool EpSplits(const ModelWork& model, const SearchRequest&, int64_t size) { return Divides(size, model.num_experts); }
std::string EpReason(const ModelWork& model, const SearchRequest&) {
  return model.num_experts > 0 ? absl::StrCat("does not divide the ", model.num_experts, " experts")
                               : "is given for a model without experts";
}

}  // namespace

const std::array<AxisRule, kJobAxes.size() - 1> kAxisRules = {{
    {.axis = Axis::kTp, .splits = TpSplits, .reason = TpReason, .tried = TpTried, .by_shardings = true},
    {.axis = Axis::kCp, .splits = CpSplits, .reason = CpReason, .tried = CpTried, .by_shardings = true},
    {.axis = Axis::kPp, .splits = PpSplits, .reason = PpReason, .tried = nullptr},
    {.axis = Axis::kEp, .splits = EpSplits, .reason = EpReason, .tried = nullptr},
    {.axis = Axis::kFsdp, .splits = nullptr, .reason = nullptr, .tried = nullptr},
}};

}  // namespace tacc::graph
