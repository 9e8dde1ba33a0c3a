// aten, aten_vjp: operators of LibTorch for which there is no op, and their derivatives by its autograd.
//
//   %y = aten %x, %w schema="aten::cumsum.default" args=["%0","#0"] ints=[1]
//        result_dtypes=[f32] result_ranks=[2] result_dims=[B,4]
//   %dx, %dw = aten_vjp %x, %w, %dy ... operands=2 needed=[0,1] given=[0]
//
// `args` are the arguments of the schema in its order; those behind the last have their defaults. %N is operand N, #N
// is entry N of `ints`, [..] a list, `none`, `true`, `false`, a number such as 0.5, or a word (a dtype, "mean"). i%N is
// operand N as complex numbers: its last dim has their real and imaginary parts. Results that are complex are such too.
//
// An operator of another namespace than aten is of a library that the worker gives its ranks. `library` and `source`
// are for people: the library's file and the model's line where the graph was exported. Nothing opens them.
#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/torch/aten_call.h"
#include "graph/ops/torch/torch_ops.h"

namespace tacc::graph {
namespace {

using Ints = std::vector<int64_t>;
using Words = std::vector<std::string>;

const std::vector<AttrSpec> kCallAttrs = {
    {"schema", AttrKind::kString},
    {"args", AttrKind::kStrings},
    {"ints", AttrKind::kInts, AttrSpec::kOptional},
    {"result_dtypes", AttrKind::kStrings},
    {"result_ranks", AttrKind::kInts},
    {"result_dims", AttrKind::kInts},
    {"library", AttrKind::kString, AttrSpec::kOptional},
    {"source", AttrKind::kString, AttrSpec::kOptional},
};

constexpr size_t kMaxNameBytes = 200;
constexpr size_t kMaxWordsBytes = 1024;

bool IsName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxNameBytes && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  });
}

// NAMESPACE::NAME.OVERLOAD.
bool IsSchemaName(absl::string_view schema) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(schema, absl::MaxSplits("::", 1));
  const std::pair<absl::string_view, absl::string_view> name = absl::StrSplit(parts.second, absl::MaxSplits('.', 1));
  return IsName(parts.first) && IsName(name.first) && IsName(name.second);
}

// What is shown to people as it is.
absl::Status CheckWords(const Attrs& attrs, const char* attr) {
  const std::string words = GetAttr<std::string>(attrs, attr);
  const bool is_plain = std::none_of(words.begin(), words.end(), [](char c) {
    return c == '"' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  if (is_plain && words.size() <= kMaxWordsBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(attr, " has ", words.size(), " bytes; wanted at most ", kMaxWordsBytes,
                                                 ", without quotes and control characters"));
}

absl::Status CheckReferences(absl::string_view arg, char mark, int64_t limit, absl::string_view what) {
  for (size_t at = arg.find(mark); at != absl::string_view::npos; at = arg.find(mark, at + 1)) {
    const absl::string_view rest = arg.substr(at + 1);
    int64_t n = -1;
    if (absl::SimpleAtoi(rest.substr(0, rest.find_first_of(",]")), &n) && n >= 0 && n < limit) continue;
    return absl::InvalidArgumentError(absl::StrCat("argument \"", arg, "\"; wanted ", std::string(1, mark),
                                                   "N with N below ", limit, ", the number of ", what));
  }
  return absl::OkStatus();
}

// Operators that compute each row along one dim for itself, and which of their arguments names that dim. rule_test
// proves each: it computes the parts with the definitions of graph/interpreter.
const std::map<std::string, size_t>& RowOperators() {
  static const std::map<std::string, size_t> kDimArgument = {
      {"aten::cummax.default", 1}, {"aten::cummin.default", 1},       {"aten::cumprod.default", 1},
      {"aten::cumsum.default", 1}, {"aten::logcumsumexp.default", 1}, {"aten::sort.default", 1},
      {"aten::topk.default", 2},
  };
  return kDimArgument;
}

// The attribute `name`: ascending numbers below `limit`.
absl::StatusOr<Ints> Subset(const OpCall& call, const char* name, int64_t limit) {
  const Ints list = call.attr<Ints>(name);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] < 0 || list[i] >= limit || (i > 0 && list[i] <= list[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "=", DimsToString(list), "; wanted ascending numbers below ", limit));
    }
  }
  return list;
}

// Every dim whole, or all but one split alike in every operand and result.
Rule AtenRule(const OpCall& call) {
  Rule rule;
  const int64_t row = AtenRowDim(call);
  if (row >= 0) {
    Rule all = PointwiseRule(call, {});
    for (auto* side : {&all.in, &all.out}) {
      for (std::vector<int>& dims : *side) dims[row] = Rule::kNone;
    }
    return all;
  }
  for (const TensorType& type : call.operands) rule.in.emplace_back(type.rank(), Rule::kNone);
  for (const TensorType& type : call.results) rule.out.emplace_back(type.rank(), Rule::kNone);
  return rule;
}

// No bound, since LibTorch says nothing of what its operators take: room for results, which are copied to their places,
// for operands that are converted to f32, and for temporaries of both sizes. What does not fit comes from the system on
// CPUs, where the rank counts it, and is an error on GPUs.
int64_t AtenBytes(const OpCall& call) {
  constexpr int64_t kSmall = 64 << 10;
  int64_t bytes = kSmall;
  for (const auto* types : {&call.operands, &call.results}) {
    for (const TensorType& type : *types) bytes += 3 * type.num_elements() * std::max<int64_t>(ByteSize(type.dtype), 4);
  }
  return bytes;
}

double ResultElements(const OpCall& call) {
  double elements = 0;
  for (const TensorType& type : call.results) elements += static_cast<double>(type.num_elements());
  return elements;
}

absl::Status DeriveAten(VjpCall& call) {
  Builder& b = call.builder;
  std::vector<ValueId> operands = call.node.operands;
  Ints needed, given;
  for (size_t i = 0; i < call.node.operands.size(); ++i) {
    if (call.needs(static_cast<int>(i)) && IsFloating(b.type(call.node.operands[i]).dtype))
      needed.push_back(static_cast<int64_t>(i));
  }
  for (size_t r = 0; r < call.cotangents.size(); ++r) {
    const DType dtype = b.type(call.node.results[r]).dtype;
    if (call.cotangents[r] == kNoValue || !IsFloating(dtype)) continue;
    given.push_back(static_cast<int64_t>(r));
    operands.push_back(b.Cast(call.cotangents[r], dtype));
  }
  if (needed.empty() || given.empty()) return absl::OkStatus();
  Attrs attrs = call.node.attrs;
  attrs["operands"] = static_cast<int64_t>(call.node.operands.size());
  attrs["needed"] = needed;
  attrs["given"] = given;
  const std::vector<ValueId> gradients =
      b.AddMany("aten_vjp", std::move(operands), std::move(attrs), static_cast<int>(needed.size()));
  for (size_t i = 0; i < needed.size(); ++i) call.gradients[needed[i]] = gradients[i];
  return absl::OkStatus();
}

void AddAten(OpTable& table) {
  OpDef op;
  op.name = "aten";
  op.max_operands = -1;
  op.num_results = -1;
  op.attrs = kCallAttrs;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckAtenCall(*call.attrs, static_cast<int64_t>(call.operands.size())));
    return AtenResultTypes(*call.attrs);
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return AtenRule(call); };
  op.derive = DeriveAten;
  op.flops = ResultElements;
  op.workspace_bytes = [](const OpCall& call, const Target&) { return AtenBytes(call); };
  table.Add(op);
}

// Gradients of the operands `needed`, from cotangents of the results `given`, behind the operator's operands.
void AddAtenVjp(OpTable& table) {
  OpDef op;
  op.name = "aten_vjp";
  op.min_operands = 2;
  op.max_operands = -1;
  op.num_results = -1;
  op.attrs = kCallAttrs;
  op.attrs.push_back({"operands", AttrKind::kInt});
  op.attrs.push_back({"needed", AttrKind::kInts});
  op.attrs.push_back({"given", AttrKind::kInts});
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const int64_t n = call.attr<int64_t>("operands"), all = static_cast<int64_t>(call.operands.size());
    TACC_RETURN_IF_ERROR(CheckAtenCall(*call.attrs, n));
    TACC_ASSIGN_OR_RETURN(const Types results, AtenResultTypes(*call.attrs));
    TACC_ASSIGN_OR_RETURN(const Ints needed, Subset(call, "needed", n));
    TACC_ASSIGN_OR_RETURN(const Ints given, Subset(call, "given", static_cast<int64_t>(results.size())));
    if (n < 0 || n + static_cast<int64_t>(given.size()) != all) {
      return absl::InvalidArgumentError(absl::StrCat("operands=", n, " given=", DimsToString(given), " of ", all,
                                                     " operands; wanted those of the operator and a cotangent each"));
    }
    for (size_t i = 0; i < given.size(); ++i)
      TACC_RETURN_IF_ERROR(WantDims(absl::StrCat("cotangent ", i), call.in(n + i), results[given[i]].dims));
    Types types;
    for (int64_t i : needed) {
      TACC_RETURN_IF_ERROR(WantFloating(absl::StrCat("operand ", i), call.in(i)));
      types.push_back(call.in(i));
    }
    return types;
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = AtenRule(call);
    rule.linear_in = {{}};
    for (int64_t i = call.attr<int64_t>("operands"); i < static_cast<int64_t>(call.operands.size()); ++i)
      rule.linear_in[0].push_back(static_cast<int>(i));
    return rule;
  };
  op.flops = [](const OpCall& call) {  // the forward pass once more, and about twice as much back
    double elements = 0;
    for (size_t i = call.attr<int64_t>("operands"); i < call.operands.size(); ++i)
      elements += static_cast<double>(call.operands[i].num_elements());
    return 3 * elements;
  };
  op.workspace_bytes = [](const OpCall& call, const Target&) { return 2 * AtenBytes(call); };
  table.Add(op);
}

}  // namespace

absl::Status CheckAtenCall(const Attrs& attrs, int64_t num_operands) {
  const std::string schema = GetAttr<std::string>(attrs, "schema");
  if (!IsSchemaName(schema)) {
    return absl::InvalidArgumentError(absl::StrCat("schema=\"", absl::CHexEscape(schema.substr(0, kMaxNameBytes)),
                                                   "\"; wanted NAMESPACE::NAME.OVERLOAD, each of ",
                                                   "letters, digits and _, as aten::cumsum.default"));
  }
  for (const char* attr : {"library", "source"}) TACC_RETURN_IF_ERROR(CheckWords(attrs, attr));
  const auto num_ints = static_cast<int64_t>(GetAttr<Ints>(attrs, "ints").size());
  for (const std::string& arg : GetAttr<Words>(attrs, "args")) {
    if (absl::StrContains(arg, "@"))
      return absl::InvalidArgumentError(absl::StrCat("argument \"", arg, "\": a node's results are no arguments"));
    TACC_RETURN_IF_ERROR(CheckReferences(arg, '%', num_operands, "operands"));
    TACC_RETURN_IF_ERROR(CheckReferences(arg, '#', num_ints, "ints"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> AtenResultTypes(const Attrs& attrs) {
  const Words dtypes = GetAttr<Words>(attrs, "result_dtypes");
  const Ints ranks = GetAttr<Ints>(attrs, "result_ranks"), dims = GetAttr<Ints>(attrs, "result_dims");
  if (dtypes.empty() || ranks.size() != dtypes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("result_dtypes has ", dtypes.size(), " entries and result_ranks ",
                                                   ranks.size(), "; wanted one each for every result"));
  }
  Types types;
  size_t at = 0;
  for (size_t r = 0; r < dtypes.size(); ++r) {
    TACC_ASSIGN_OR_RETURN(const DType dtype, ParseDType(dtypes[r]));
    TensorType type{dtype, {}};
    for (int64_t d = 0; d < ranks[r] && at < dims.size(); ++d) type.dims.push_back(dims[at++]);
    const bool is_negative = std::any_of(type.dims.begin(), type.dims.end(), [](int64_t d) { return d < 0; });
    if (static_cast<int64_t>(type.dims.size()) != ranks[r] || is_negative) {
      return absl::InvalidArgumentError(
          absl::StrCat("result_dims=", DimsToString(dims), "; wanted one each for the ranks ", DimsToString(ranks)));
    }
    types.push_back(std::move(type));
  }
  if (at == dims.size()) return types;
  return absl::InvalidArgumentError(absl::StrCat("result_dims=", DimsToString(dims), " has ", dims.size(),
                                                 " entries; the ranks ", DimsToString(ranks), " take ", at));
}

int64_t AtenRowDim(const OpCall& call) {
  const auto it = RowOperators().find(call.attr<std::string>("schema"));
  const Words args = call.attr<Words>("args");
  if (it == RowOperators().end() || args.empty() || args[0] != "%0" || call.operands.empty()) return -1;
  const int64_t rank = call.in(0).rank();
  int64_t dim = -1;
  if (it->second < args.size()) {
    int64_t entry = 0;
    if (!absl::StartsWith(args[it->second], "#") || !absl::SimpleAtoi(args[it->second].substr(1), &entry)) return -1;
    dim = call.attr<Ints>("ints")[entry];
  }
  dim = dim < 0 ? dim + rank : dim;
  return dim >= 0 && dim < rank && rank > 1 ? dim : -1;
}

void AddAtenOps(OpTable& table) {
  AddAten(table);
  AddAtenVjp(table);
}

}  // namespace tacc::graph
