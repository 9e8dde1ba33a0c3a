// Ops of partitioned graphs. Logically each is the identity: types are inferred as the operand's, and placements tell
// what moves.
//   all_gather      over=[axes] dim=d   dim d is no longer split over the axes, its minor ones
//   reduce_scatter  over=[axes] dim=d   a sum pending on the axes becomes whole, and dim d split over them, minor
//   all_reduce      over=[axes]         a sum pending on the axes becomes whole
//   all_to_all      over=[axes] split_dim=s concat_dim=c   the axes move from dim c to dim s
//   shard_slice     over=[axes] dim=d   the rank keeps its own part of dim d; no communication
//   mask_padding                        padding becomes zero on all dims; no communication
//   wait                                the result of a collective started with async=true, which is not usable before
// Between the stages of a pipeline, which run different programs: never merged or removed, as the others count on them.
//   stage_sum       stages=[s,...]      the sum over the stages' values; each of them has this line
// A message goes from a stash to the stash of the same name on the rank of another
// stage that has the same coordinates else. It is under way from the call that has `send` or `recv` to the call that
// has `finish`: until then the stash must not change (send) or be read (recv). A channel has one sender, one receiver,
// and keeps the order of messages.
//   send "stash/V"    to=stage channel=n
//   recv "stash/V"    from=stage channel=n
//   finish "stash/V"  channel=n
#include "graph/ops/facts.h"

namespace tacc::graph {
namespace {

OpDef Identity(const char* name) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = 1;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> { return Types{call.in(0)}; };
  return op;
}

OpDef Collective(const char* name, std::vector<AttrSpec> attrs) {
  OpDef op = Identity(name);
  op.is_collective = true;
  op.attrs = std::move(attrs);
  op.attrs.push_back({"over", AttrKind::kStrings});
  op.attrs.push_back({"async", AttrKind::kBool, AttrSpec::kOptional});
  return op;
}

// dtype=: of the sum, when the summands travel in a narrower one.
OpDef Reduction(const char* name) {
  OpDef op = Collective(name, {{"dtype", AttrKind::kString, AttrSpec::kOptional}});
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    return Types{{DTypeAttr(call, call.in(0).dtype), call.in(0).dims}};
  };
  return op;
}

// Start or end of a message; what moves is a state's.
OpDef MessageOp(const char* name, std::vector<AttrSpec> attrs) {
  OpDef op;
  op.name = name;
  op.num_results = 0;
  op.has_side_effect = true;
  op.is_collective = true;
  op.attrs = std::move(attrs);
  op.attrs.push_back({"channel", AttrKind::kInt});
  op.infer = [](const OpCall&) -> absl::StatusOr<Types> { return Types{}; };
  return op;
}

}  // namespace

void AddCollectiveOps(OpTable& table) {
  table.Add(Collective("all_gather", {{"dim", AttrKind::kInt}}));
  OpDef reduce_scatter = Reduction("reduce_scatter");
  reduce_scatter.attrs.push_back({"dim", AttrKind::kInt});
  table.Add(reduce_scatter);
  OpDef all_reduce = Reduction("all_reduce");
  all_reduce.reuses = ReuseIfSameType(0);
  table.Add(all_reduce);
  table.Add(Collective("all_to_all", {{"split_dim", AttrKind::kInt}, {"concat_dim", AttrKind::kInt}}));

  OpDef shard_slice = Identity("shard_slice");
  shard_slice.attrs = {{"over", AttrKind::kStrings}, {"dim", AttrKind::kInt}};
  table.Add(shard_slice);

  OpDef mask_padding = Identity("mask_padding");
  mask_padding.reuses = ReuseIfSameType(0);
  table.Add(mask_padding);

  OpDef wait = Identity("wait");
  wait.aliases = [](const OpCall&) { return std::vector<int>{0}; };
  table.Add(wait);

  OpDef stage_sum = Identity("stage_sum");
  stage_sum.is_collective = true;
  stage_sum.has_side_effect = true;
  stage_sum.attrs = {{"stages", AttrKind::kInts}};
  stage_sum.reuses = ReuseIfSameType(0);
  table.Add(stage_sum);

  table.Add(MessageOp("send", {{"to", AttrKind::kInt}}));
  table.Add(MessageOp("recv", {{"from", AttrKind::kInt}}));
  table.Add(MessageOp("finish", {}));
}

}  // namespace tacc::graph
