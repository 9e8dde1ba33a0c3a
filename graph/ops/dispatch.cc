// dispatch_slots dispatch combine: slots of tokens in buffers of a fixed size, one for each range of experts, so that
// they can be sent to the ranks that hold these. Dims: B samples, S tokens a sample, K slots of a token, G groups of
// S/G tokens in a row, D destinations (equally large ranges of experts), C rows of a buffer, N features.
//
// A buffer belongs to one group of one sample, so what overflows does not depend on how samples and groups lie on
// ranks.
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

absl::Status WantSlots(absl::string_view name, const TensorType& slots) {
  return slots.dtype == DType::kI32 && slots.rank() == 3 ? absl::OkStatus()
                                                         : Wanted(name, slots, "i32 elements and dims [B,S,K]");
}

struct Buffers {
  int64_t groups, destinations, capacity;
};

absl::StatusOr<Buffers> BuffersOf(const OpCall& call, int64_t seq) {
  const Buffers b{call.attr<int64_t>("groups"), call.attr<int64_t>("destinations"), call.attr<int64_t>("capacity")};
  if (b.groups < 1 || b.destinations < 1 || b.capacity < 1) {
    return absl::InvalidArgumentError(absl::StrCat("groups=", b.groups, " destinations=", b.destinations,
                                                   " capacity=", b.capacity, "; wanted 1 or more each"));
  }
  if (seq % b.groups != 0)
    return absl::InvalidArgumentError(absl::StrCat("groups=", b.groups, " does not divide ", seq, " tokens"));
  return b;
}

// Samples and groups may be split; the rest belongs to a group. A padded sample or group would overflow.
struct GroupFactors {
  Rule rule;
  int batch, group;

  GroupFactors(int64_t batch_size, int64_t groups) {
    batch = rule.AddFactor(batch_size);
    group = rule.AddFactor(groups);
    for (Factor& factor : rule.factors) factor.even = true;
  }
  std::vector<int> slots() const { return {batch, group, Rule::kNone}; }
  std::vector<int> buffers() const { return {batch, group, Rule::kNone, Rule::kNone}; }
};

std::vector<int> With(std::vector<int> factors, int last) {
  factors.push_back(last);
  return factors;
}

std::vector<AttrSpec> BufferAttrs() {
  return {{"groups", AttrKind::kInt}, {"destinations", AttrKind::kInt}, {"capacity", AttrKind::kInt}};
}

// ids [B,S,K] -> places i32[B,S,K], ids of the rows i32[B,G,D,C], overflow f32[]. A slot whose expert lies in the d-th
// range goes to the next row c of its group's d-th buffer: its place is d C + c; or, when that is full, -1, and
// overflow counts it. Rows that nothing went to have the id -1.
void AddDispatchSlots(OpTable& table) {
  OpDef op;
  op.name = "dispatch_slots";
  op.min_operands = op.max_operands = 1;
  op.num_results = 3;
  op.attrs = BufferAttrs();
  op.attrs.push_back({"num_experts", AttrKind::kInt});
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& ids = call.in(0);
    TACC_RETURN_IF_ERROR(WantSlots("ids", ids));
    TACC_ASSIGN_OR_RETURN(const Buffers b, BuffersOf(call, ids.dims[1]));
    const int64_t num_experts = call.attr<int64_t>("num_experts");
    if (num_experts < 1 || num_experts % b.destinations != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_experts=", num_experts, "; wanted a multiple of destinations=", b.destinations));
    }
    return Types{ids, {DType::kI32, {ids.dims[0], b.groups, b.destinations, b.capacity}}, {DType::kF32, {}}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    GroupFactors f(call.in(0).dims[0], call.out(1).dims[1]);
    f.rule.in = {f.slots()};
    f.rule.out = {f.slots(), f.buffers(), {}};
    return f.rule;
  };
  op.workspace_bytes = [](const OpCall& call, const Target& target) { return target.DispatchSlotsBytes(call.out(1)); };
  table.Add(op);
}

// x, places [B,S,K] -> rows [B,G,D,C,N]: each slot's row at its place, zero elsewhere. x has a row a token, [B,S,N], or
// a slot, [B,S,K,N].
void AddDispatch(OpTable& table) {
  OpDef op;
  op.name = "dispatch";
  op.min_operands = op.max_operands = 2;
  op.attrs = BufferAttrs();
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &x = call.in(0), &places = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    TACC_RETURN_IF_ERROR(WantSlots("places", places));
    TACC_ASSIGN_OR_RETURN(const Buffers b, BuffersOf(call, places.dims[1]));
    Dims slot_rows = places.dims, token_rows = {places.dims[0], places.dims[1]};
    for (Dims* rows : {&slot_rows, &token_rows}) rows->push_back(x.rank() == 0 ? 0 : x.dims.back());
    if (x.dims != slot_rows && x.dims != token_rows) {
      return Wanted("x", x, absl::StrCat("a row for each slot or token of places, ", places.ToString()));
    }
    return Types{{x.dtype, {places.dims[0], b.groups, b.destinations, b.capacity, x.dims.back()}}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    GroupFactors f(call.in(1).dims[0], call.out(0).dims[1]);
    const int features = f.rule.AddFactor(call.in(0).dims.back());
    f.rule.in = {With(call.in(0).rank() == 4 ? f.slots() : Leading(f.slots()), features), f.slots()};
    f.rule.out = {With(f.buffers(), features)};
    f.rule.linear_in = {{0}};
    return f.rule;
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    Attrs attrs;
    if (b.type(node.operands[0]).rank() == 3) attrs["sum_slots"] = true;
    const ValueId dy = b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype);
    call.gradients[0] = b.Add("combine", {dy, node.operands[1]}, std::move(attrs));
    return absl::OkStatus();
  };
  table.Add(op);
}

// rows [B,G,D,C,N], places [B,S,K] -> the row at each slot's place, [B,S,K,N], or with sum_slots their sum for each
// token, [B,S,N], in the accumulation type; zero for slots without a place.
void AddCombine(OpTable& table) {
  OpDef op;
  op.name = "combine";
  op.min_operands = op.max_operands = 2;
  op.attrs = {{"sum_slots", AttrKind::kBool, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &rows = call.in(0), &places = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("rows", rows));
    TACC_RETURN_IF_ERROR(WantRank("rows", rows, 5));
    TACC_RETURN_IF_ERROR(WantSlots("places", places));
    if (rows.dims[0] != places.dims[0] || rows.dims[1] < 1 || places.dims[1] % rows.dims[1] != 0) {
      return Wanted("rows", rows, absl::StrCat("the samples and groups of places, ", places.ToString()));
    }
    if (call.attr<bool>("sum_slots"))
      return Types{{AccumulationType(rows.dtype), {places.dims[0], places.dims[1], rows.dims[4]}}};
    return Types{{rows.dtype, {places.dims[0], places.dims[1], places.dims[2], rows.dims[4]}}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    GroupFactors f(call.in(0).dims[0], call.in(0).dims[1]);
    const int features = f.rule.AddFactor(call.in(0).dims[4]);
    f.rule.in = {With(f.buffers(), features), f.slots()};
    f.rule.out = {With(call.attr<bool>("sum_slots") ? Leading(f.slots()) : f.slots(), features)};
    f.rule.linear_in = {{0}};
    return f.rule;
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const Dims rows = b.type(node.operands[0]).dims;
    const ValueId dy = b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype);
    call.gradients[0] = b.Add("dispatch", {dy, node.operands[1]},
                              {{"groups", rows[1]}, {"destinations", rows[2]}, {"capacity", rows[3]}});
    return absl::OkStatus();
  };
  table.Add(op);
}

}  // namespace

void AddDispatchOps(OpTable& table) {
  AddDispatchSlots(table);
  AddDispatch(table);
  AddCombine(table);
}

}  // namespace tacc::graph
