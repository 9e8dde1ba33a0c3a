#include "worker/rank/collectives/bind_collective.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/sum_kernels.h"

namespace tacc::worker {
namespace {

using graph::Range;
using kernels::TensorView;

int64_t Extent(const Range& range) { return range.end - range.begin; }

absl::Status Bug(const graph::Node& node, const std::string& what) {
  return absl::InternalError(absl::StrCat(node.op.name(), ": ", what));
}

// The rows [begin, end) of dim `dim`, counted from the view's start.
Region SliceOf(const TensorView& view, int dim, int64_t begin, int64_t end) {
  const int64_t inner = view.dims.Product(dim + 1, view.dims.rank()) * kernels::SizeOf(view.dtype);
  Region region;
  region.data = view.as<char>() + begin * inner;
  region.runs = view.dims.Product(0, dim);
  region.run_bytes = (end - begin) * inner;
  region.stride_bytes = view.dims[dim] * inner;
  if (region.run_bytes == 0) region.runs = 0;
  if (region.runs == 0) region.run_bytes = region.stride_bytes = 0;
  return region;
}

Region Whole(const TensorView& view) {
  const int64_t bytes = view.bytes();
  return {view.as<char>(), bytes > 0 ? 1 : 0, bytes, bytes};
}

bool Overlap(const TensorView& a, const TensorView& b) {
  return a.as<char>() < b.as<char>() + b.bytes() && b.as<char>() < a.as<char>() + a.bytes();
}

// The ranks that have `rank`'s coordinates but on the axes of `over`, ascending.
absl::StatusOr<std::vector<int>> Members(const graph::Node& node, const graph::Mesh& mesh, int64_t rank) {
  std::vector<char> varies(mesh.axes.size(), 0);
  for (const std::string& name : graph::GetAttr<std::vector<std::string>>(node.attrs, "over")) {
    const int axis = mesh.Find(name);
    if (axis < 0) return Bug(node, absl::StrCat("the mesh has no axis '", name, "'"));
    varies[axis] = 1;
  }
  const int stage_axis = mesh.Find(graph::kStageAxis);
  const auto stages = graph::GetAttr<std::vector<int64_t>>(node.attrs, "stages");
  if (!stages.empty()) {
    if (stage_axis < 0) return Bug(node, absl::StrCat("the mesh has no axis '", graph::kStageAxis, "'"));
    varies[stage_axis] = 1;
  }
  const std::vector<int64_t> mine = mesh.Coordinates(rank);
  std::vector<int> members;
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    const std::vector<int64_t> theirs = mesh.Coordinates(r);
    bool is_member = true;
    for (size_t i = 0; i < theirs.size(); ++i) is_member = is_member && (varies[i] || theirs[i] == mine[i]);
    if (!stages.empty() && std::find(stages.begin(), stages.end(), theirs[stage_axis]) == stages.end()) continue;
    if (is_member) members.push_back(static_cast<int>(r));
  }
  return members;
}

absl::StatusOr<int> DimAttr(const graph::Node& node, const char* name, const TensorView& view) {
  const int64_t dim = graph::GetAttr<int64_t>(node.attrs, name, -1);
  if (dim < 0 || dim >= view.dims.rank())
    return Bug(node, absl::StrCat(name, " = ", dim, " is not a dim of the operand"));
  return static_cast<int>(dim);
}

// The common part of two logical ranges; empty ranges lie at the start of `a`.
Range Common(const Range& a, const Range& b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : Range{a.begin, a.begin};
}

}  // namespace

std::vector<Range> RangesOf(const graph::Value& value, const graph::Mesh& mesh, int64_t rank) {
  std::vector<Range> ranges;
  const std::vector<int64_t> coordinates = mesh.Coordinates(rank);
  for (size_t d = 0; d < value.type.dims.size(); ++d) {
    if (value.placement.has_value()) {
      ranges.push_back(
          graph::LocalRange(value.placement->global.dims[d], value.placement->sharding.dims[d], mesh, coordinates));
    } else {
      ranges.push_back({0, value.type.dims[d]});
    }
  }
  return ranges;
}

absl::StatusOr<CollectiveCall> BindCollective(const graph::Graph& graph, const graph::Node& node,
                                              const graph::Mesh& mesh, int64_t rank, const TensorView& in,
                                              const TensorView& out) {
  const graph::Value& from = graph.values[node.operands[0]];
  const graph::Value& to = graph.values[node.results[0]];
  if (!from.placement.has_value() || !to.placement.has_value()) return Bug(node, "operand and result need placements");
  CollectiveCall call;
  TACC_ASSIGN_OR_RETURN(call.members, Members(node, mesh, rank));
  call.me = static_cast<int>(std::find(call.members.begin(), call.members.end(), rank) - call.members.begin());
  call.across_stages = node.op == graph::Op::kStageSum;
  call.send_dtype = in.dtype;
  call.receive_dtype = out.dtype;
  const size_t n = call.members.size();

  const bool sums =
      node.op == graph::Op::kAllReduce || node.op == graph::Op::kReduceScatter || node.op == graph::Op::kStageSum;
  if (sums && (!CanSum(in.dtype) || !CanRound(SumType(in.dtype), out.dtype))) {
    return absl::UnimplementedError(
        absl::StrCat(node.op.name(), " of ", kernels::Name(in.dtype), " into ", kernels::Name(out.dtype)));
  }

  if (node.op == graph::Op::kAllReduce || node.op == graph::Op::kStageSum) {
    if (in.data != out.data && Overlap(in, out)) return Bug(node, "operand and result overlap");
    if (in.data == out.data && in.dtype != out.dtype) return Bug(node, "another type cannot be written in place");
    call.kind = CollectiveCall::Kind::kAllReduce;
    call.send = {Whole(in)};
    call.receive = {Whole(out)};
    return call;
  }
  if (Overlap(in, out) && n > 1) return Bug(node, "operand and result overlap");
  const std::vector<Range> mine_in = RangesOf(from, mesh, rank);
  const std::vector<Range> mine_out = RangesOf(to, mesh, rank);
  call.send.resize(n);
  call.receive.resize(n);

  if (node.op == graph::Op::kAllGather) {
    TACC_ASSIGN_OR_RETURN(const int dim, DimAttr(node, "dim", in));
    if (in.dtype != out.dtype) return Bug(node, "operand and result differ in dtype");
    call.kind = CollectiveCall::Kind::kAllGather;
    call.send = {SliceOf(in, dim, 0, Extent(mine_in[dim]))};
    for (size_t i = 0; i < n; ++i) {
      const Range part = Common(RangesOf(from, mesh, call.members[i])[dim], mine_out[dim]);
      call.receive[i] = SliceOf(out, dim, part.begin - mine_out[dim].begin, part.end - mine_out[dim].begin);
      if (part.begin == part.end) call.receive[i] = Region();
    }
    return call;
  }
  if (node.op == graph::Op::kReduceScatter) {
    TACC_ASSIGN_OR_RETURN(const int dim, DimAttr(node, "dim", in));
    call.kind = CollectiveCall::Kind::kReduceScatter;
    for (size_t i = 0; i < n; ++i) {
      const Range part = Common(mine_in[dim], RangesOf(to, mesh, call.members[i])[dim]);
      if (part.begin < part.end)
        call.send[i] = SliceOf(in, dim, part.begin - mine_in[dim].begin, part.end - mine_in[dim].begin);
    }
    call.receive = {SliceOf(out, dim, 0, Extent(mine_out[dim]))};
    return call;
  }
  if (node.op == graph::Op::kAllToAll) {
    TACC_ASSIGN_OR_RETURN(const int split, DimAttr(node, "split_dim", in));
    TACC_ASSIGN_OR_RETURN(const int concat, DimAttr(node, "concat_dim", in));
    if (in.dtype != out.dtype) return Bug(node, "operand and result differ in dtype");
    // A piece is a slice of two dims; as long as the concatenated one is whole in the operand's local part it is a
    // slice of `split`, and a slice of `concat` in the result. Padding of either would make it a box.
    for (const auto& [value, d] :
         {std::pair{&from, concat}, std::pair{&from, split}, std::pair{&to, split}, std::pair{&to, concat}}) {
      if (graph::IsPadded(value->placement->global.dims[d], value->placement->sharding.dims[d], mesh)) {
        return absl::UnimplementedError(absl::StrCat("all_to_all of padded dims: ", value->placement->global.ToString(),
                                                     " over ", value->placement->sharding.ToString(mesh)));
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const Range sent = RangesOf(to, mesh, call.members[i])[split];
      call.send[i] = SliceOf(in, split, sent.begin - mine_in[split].begin, sent.end - mine_in[split].begin);
      const Range taken = RangesOf(from, mesh, call.members[i])[concat];
      call.receive[i] = SliceOf(out, concat, taken.begin - mine_out[concat].begin, taken.end - mine_out[concat].begin);
    }
    return call;
  }
  if (node.op == graph::Op::kRotateBlocks) {
    TACC_ASSIGN_OR_RETURN(const int dim, DimAttr(node, "dim", in));
    const int64_t extent = from.placement->global.dims[dim], block = graph::GetAttr<int64_t>(node.attrs, "block");
    if (n < 2 || graph::IsPadded(extent, from.placement->sharding.dims[dim], mesh) || mine_in != mine_out ||
        Extent(mine_in[dim]) != block) {
      return Bug(node, "wanted one whole block on each rank of two or more");
    }
    for (size_t i = 0; i < n; ++i) {
      const int64_t theirs = RangesOf(to, mesh, call.members[i])[dim].begin;
      if (theirs == (mine_in[dim].begin + block) % extent) call.send[i] = Whole(in);
      if ((theirs + block) % extent == mine_out[dim].begin) call.receive[i] = Whole(out);
    }
    return call;
  }
  return Bug(node, "not a collective");
}

absl::StatusOr<CollectiveCall> BindMessage(const graph::Node& node, const graph::Mesh& mesh, int64_t rank,
                                           const TensorView& state) {
  const bool is_send = node.op == graph::Op::kSend;
  const int axis = mesh.Find(graph::kStageAxis);
  const int64_t stage = graph::GetAttr<int64_t>(node.attrs, is_send ? "to" : "from", -1);
  if (axis < 0 || stage < 0 || stage >= mesh.axes[axis].size)
    return Bug(node, absl::StrCat("no stage ", stage, " in the mesh ", mesh.ToString()));
  CollectiveCall call;
  call.kind = is_send ? CollectiveCall::Kind::kSend : CollectiveCall::Kind::kReceive;
  call.members = {static_cast<int>(rank + (stage - mesh.Coordinates(rank)[axis]) * mesh.Stride(axis))};
  call.channel = static_cast<uint32_t>(graph::GetAttr<int64_t>(node.attrs, "channel"));
  (is_send ? call.send : call.receive) = {Whole(state)};
  return call;
}

absl::StatusOr<LocalCopy> BindShardSlice(const graph::Graph& graph, const graph::Node& node, const graph::Mesh& mesh,
                                         int64_t rank, const TensorView& in, const TensorView& out) {
  TACC_ASSIGN_OR_RETURN(const int dim, DimAttr(node, "dim", in));
  const Range mine_in = RangesOf(graph.values[node.operands[0]], mesh, rank)[dim];
  const Range mine_out = RangesOf(graph.values[node.results[0]], mesh, rank)[dim];
  if (mine_out.begin < mine_in.begin || mine_out.end > mine_in.end)
    return Bug(node, "the result is not a part of the operand");
  return LocalCopy{SliceOf(in, dim, mine_out.begin - mine_in.begin, mine_out.end - mine_in.begin),
                   SliceOf(out, dim, 0, Extent(mine_out))};
}

std::vector<Region> PaddingOf(const graph::Value& value, const graph::Mesh& mesh, int64_t rank,
                              const TensorView& view) {
  std::vector<Region> padding;
  const std::vector<Range> ranges = RangesOf(value, mesh, rank);
  for (int d = 0; d < view.dims.rank(); ++d) {
    if (Extent(ranges[d]) < view.dims[d]) padding.push_back(SliceOf(view, d, Extent(ranges[d]), view.dims[d]));
  }
  return padding;
}

}  // namespace tacc::worker
