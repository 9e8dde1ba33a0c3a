#include "graph/ops/op.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ops/torch/torch_ops.h"

namespace tacc::graph {
namespace {

const char* KindName(AttrKind kind) {
  constexpr const char* kNames[] = {"a whole number",          "a number",          "true or false",  "a word",
                                    "a list of whole numbers", "a list of numbers", "a list of words"};
  return kNames[static_cast<int>(kind)];
}

bool HasKind(const Attr& attr, AttrKind kind) {
  const auto* ints = std::get_if<std::vector<int64_t>>(&attr);
  const bool empty_list = ints != nullptr && ints->empty();
  switch (kind) {
    case AttrKind::kInt:
      return std::holds_alternative<int64_t>(attr);
    case AttrKind::kFloat:
      return std::holds_alternative<double>(attr) || std::holds_alternative<int64_t>(attr);
    case AttrKind::kBool:
      return std::holds_alternative<bool>(attr);
    case AttrKind::kString:
      return std::holds_alternative<std::string>(attr);
    case AttrKind::kInts:
      return ints != nullptr;
    case AttrKind::kFloats:
      return std::holds_alternative<std::vector<double>>(attr) || empty_list;
    case AttrKind::kStrings:
      return std::holds_alternative<std::vector<std::string>>(attr) || empty_list;
  }
  return false;
}

// Attributes may ask for tensors of any size; text that is parsed has the same limit.
absl::Status CheckSizes(const std::vector<TensorType>& results) {
  constexpr int64_t kMaxElements = int64_t{1} << 50;
  for (const TensorType& type : results) {
    int64_t elements = 1;
    for (int64_t d : type.dims) {
      if (d > 0 && elements > kMaxElements / d) {
        return absl::InvalidArgumentError(absl::StrCat("the result ", type.ToString(), " has more than 2^50 elements"));
      }
      elements *= d;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAttrs(const OpDef& op, const Attrs& attrs) {
  for (const AttrSpec& spec : op.attrs) {
    if (spec.presence == AttrSpec::kRequired && attrs.count(spec.name) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(op.name, ": attribute ", spec.name, " (", KindName(spec.kind), ") is missing"));
    }
  }
  for (const auto& [key, value] : attrs) {
    const AttrSpec* spec = nullptr;
    for (const AttrSpec& s : op.attrs) {
      if (key == s.name) spec = &s;
    }
    if (spec == nullptr) {
      std::vector<std::string> names;
      for (const AttrSpec& s : op.attrs) names.push_back(s.name);
      return absl::InvalidArgumentError(absl::StrCat(op.name, ": unknown attribute ", key, "; it takes ",
                                                     names.empty() ? "none" : absl::StrJoin(names, ", ")));
    }
    if (!HasKind(value, spec->kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat(op.name, ": attribute ", key, "=", Print(value), "; wanted ", KindName(spec->kind)));
    }
    if (key == "dtype") TACC_RETURN_IF_ERROR(ParseDType(std::get<std::string>(value)).status());
  }
  return absl::OkStatus();
}

}  // namespace

OpTable::OpTable() {
  AddLeafOps(*this);
  AddElementwiseOps(*this);
  AddShapeOps(*this);
  AddMatmulOps(*this);
  AddConvolutionOps(*this);
  AddPoolOps(*this);
  AddChannelOps(*this);
  AddNormOps(*this);
  AddRotaryOps(*this);
  AddAttentionOps(*this);
  AddTokenOps(*this);
  AddExpertOps(*this);
  AddDispatchOps(*this);
  AddIndexingOps(*this);
  AddAtenOps(*this);
  AddOptimizerOps(*this);
  AddMatrixOptimizerOps(*this);
  AddCollectiveOps(*this);
}

const OpDef* OpTable::Find(absl::string_view name) const {
  auto it = ops_.find(std::string(name));
  return it == ops_.end() ? nullptr : &it->second;
}

void OpTable::Add(OpDef op) {
  std::string name = op.name;
  ops_.insert_or_assign(std::move(name), std::move(op));
}

absl::StatusOr<std::vector<TensorType>> InferTypes(const OpDef& op, const Attrs& attrs,
                                                   const std::vector<TensorType>& operands) {
  const int n = static_cast<int>(operands.size());
  if (n < op.min_operands || (op.max_operands >= 0 && n > op.max_operands)) {
    return absl::InvalidArgumentError(absl::StrCat(op.name, " takes ", op.min_operands,
                                                   op.max_operands < 0 ? " or more"
                                                   : op.max_operands == op.min_operands
                                                       ? ""
                                                       : absl::StrCat(" to ", op.max_operands),
                                                   " operands, got ", n));
  }
  TACC_RETURN_IF_ERROR(CheckAttrs(op, attrs));
  if (op.infer == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(op.name, ": its type is declared, not inferred"));
  OpCall call{&attrs, operands, {}};
  auto results = op.infer(call);
  if (absl::Status status = results.ok() ? CheckSizes(*results) : results.status(); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(op.name, ": ", status.message()));
  }
  return results;
}

AxisList DimAxes(const Factor& factor, int64_t extent, const AxisList& axes, const Mesh& mesh) {
  if (factor.groups == 0 || extent != factor.groups || extent == factor.size) return axes;
  AxisList taken;
  int64_t shards = 1;
  for (int axis : axes) {
    shards *= mesh.axes[axis].size;
    if (extent % shards != 0) break;
    taken.push_back(axis);
  }
  return taken;
}

OpCall CallOf(const Graph& graph, const Node& node) {
  OpCall call{&node.attrs, {}, {}};
  for (ValueId v : node.operands) call.operands.push_back(graph.values[v].type);
  for (ValueId v : node.results) call.results.push_back(graph.values[v].type);
  return call;
}

OpCall LogicalCallOf(const Graph& graph, const Node& node) {
  OpCall call{&node.attrs, {}, {}};
  auto logical = [&](ValueId v) {
    const Value& value = graph.values[v];
    return value.placement.has_value() ? value.placement->global : value.type;
  };
  for (ValueId v : node.operands) call.operands.push_back(logical(v));
  for (ValueId v : node.results) call.results.push_back(logical(v));
  return call;
}

int64_t TouchedBytes(const OpDef& def, const OpCall& call) {
  if (def.touched_bytes) return def.touched_bytes(call);
  int64_t bytes = 0;
  for (const TensorType& type : call.operands) bytes += type.bytes();
  for (const TensorType& type : call.results) bytes += type.bytes();
  return bytes;
}

int64_t WorkspaceBytes(const OpDef& def, const OpCall& call, const Target& target, Parts parts) {
  int64_t bytes = def.workspace_bytes ? def.workspace_bytes(call, target) : 0;
  if (def.first_part < 0 || parts == Parts::kInARow) return bytes;
  for (size_t i = def.first_part; i < call.operands.size(); ++i) bytes += call.operands[i].bytes();
  return bytes + kScratchAlignment;
}

}  // namespace tacc::graph
