#include "graph/passes/partition/factor_axes.h"

#include <algorithm>
#include <utility>

#include "graph/passes/partition/axis_list.h"

namespace tacc::graph {
namespace {

bool IsHeld(const std::vector<AxisList>& axes, int axis) {
  return std::any_of(axes.begin(), axes.end(), [axis](const AxisList& a) { return Contains(a, axis); });
}

// May the factor be split over one more axis?
bool MaySplit(const Factor& factor, const Mesh& mesh, AxisList axes, int axis) {
  axes.push_back(axis);
  if (factor.even && IsPadded(factor.size, axes, mesh)) return false;
  if (factor.groups == 0) return true;
  const AxisList of_groups = DimAxes(factor, factor.groups, axes, mesh);
  return of_groups.size() == axes.size() || NumShards(mesh, of_groups) == factor.groups;
}

// Axes that a factor could not take go to where it says, if they divide that.
void Move(const FactorProposal& proposal, const Rule& rule, const Mesh& mesh, std::vector<AxisList>& axes) {
  for (size_t d = 0; d < proposal.dims->size(); ++d) {
    const int f = (*proposal.factors)[d];
    const int to = f == Rule::kNone ? -1 : rule.factors[f].move_to;
    if (to < 0) continue;
    for (int axis : (*proposal.dims)[d]) {
      AxisList moved = axes[to];
      moved.push_back(axis);
      if (!IsHeld(axes, axis) && MaySplit(rule.factors[to], mesh, axes[to], axis) &&
          !IsPadded(rule.factors[to].size, moved, mesh))
        axes[to] = std::move(moved);
    }
  }
}

}  // namespace

void TakeProposal(const FactorProposal& proposal, const Rule& rule, const Mesh& mesh, std::vector<AxisList>& axes) {
  for (size_t d = 0; d < proposal.dims->size(); ++d) {
    const int f = (*proposal.factors)[d];
    const AxisList& wanted = (*proposal.dims)[d];
    if (f == Rule::kNone || (rule.factors[f].replicate && !rule.factors[f].expandable) ||
        rule.factors[f].one_per_shard_of >= 0 || !IsPrefix(axes[f], wanted))
      continue;
    for (size_t k = axes[f].size(); k < wanted.size(); ++k) {
      if (IsHeld(axes, wanted[k]) || !MaySplit(rule.factors[f], mesh, axes[f], wanted[k])) break;
      axes[f].push_back(wanted[k]);
    }
  }
}

std::vector<AxisList> ChooseFactorAxes(const Rule& rule, const Mesh& mesh, std::vector<FactorProposal> proposals) {
  std::stable_sort(proposals.begin(), proposals.end(), [](const FactorProposal& a, const FactorProposal& b) {
    return a.from_weight != b.from_weight ? a.from_weight : a.bytes > b.bytes;
  });
  std::vector<AxisList> axes(rule.factors.size());
  for (const FactorProposal& proposal : proposals) TakeProposal(proposal, rule, mesh, axes);
  for (const FactorProposal& proposal : proposals) Move(proposal, rule, mesh, axes);
  for (size_t f = 0; f < axes.size(); ++f) {
    const int whole = rule.factors[f].one_per_shard_of;
    if (whole < 0) continue;
    if (NumShards(mesh, axes[whole]) != rule.factors[f].size) axes[whole].clear();
    axes[f] = axes[whole];
  }
  return axes;
}

}  // namespace tacc::graph
