#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/ir/text.h"
#include "graph/ops/op.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

// "add f32[2] f32[2] key=value": the types inferred, "f32[2], f32[]", or the error.
std::string Infer(const OpTable& ops, const std::string& text) {
  std::string graph_text = "tacc.graph 1\n";
  std::vector<std::string> names, rest;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (size_t i = 1; i < words.size(); ++i) {
    if (absl::StrContains(words[i], "=")) {
      rest.push_back(words[i]);
      continue;
    }
    names.push_back(absl::StrCat("%a", names.size()));
    absl::StrAppend(&graph_text, names.back(), " = input \"x\" : ", words[i], "\n");
  }
  absl::StrAppend(&graph_text, words[0], " ", absl::StrJoin(names, ", "), " ", absl::StrJoin(rest, " "), "\n");
  auto graph = ParseGraph(graph_text, {});
  if (!graph.ok()) return std::string(graph.status().message());
  const Node& node = graph->nodes.back();
  const OpDef* op = ops.Find(node.op);
  if (op == nullptr) return absl::StrCat("no op ", node.op.name());
  auto types = InferTypes(*op, node.attrs, CallOf(*graph, node).operands);
  if (!types.ok()) return std::string(types.status().message());
  return absl::StrJoin(*types, ", ", [](std::string* out, const TensorType& t) { absl::StrAppend(out, t.ToString()); });
}

struct Case {
  const char* text;
  const char* wanted;
};

// Each case's text is inferred to be, or is refused as, it says.
void ExpectInferred(std::initializer_list<Case> cases) {
  const OpTable ops;
  for (const Case& c : cases) EXPECT_EQ(Infer(ops, c.text), c.wanted) << c.text;
}

TEST(Infer, ArityAndAttributesAreCheckedForEveryOp) {
  ExpectInferred({
      {"silu f32[2] f32[2]", "silu takes 1 operands, got 2"},
      {"concat dim=0", "concat takes 1 or more operands, got 0"},
      {"layer_norm eps=1", "layer_norm takes 1 to 3 operands, got 0"},
      {"scale f32[2]", "scale: attribute factor (a number) is missing"},
      {"scale f32[2] factor=2.0 axis=1", "scale: unknown attribute axis; it takes factor"},
      {"scale f32[2] factor=wide", "scale: attribute factor=wide; wanted a number"},
      {"cast f32[2] dtype=f31", "unknown dtype 'f31'; use bool, i32, i64, bf16, f16, f32 or f64"},
      {"input", "input: its type is declared, not inferred"},
  });
}

TEST(InferElementwiseOps, TypesOfResults) {
  ExpectInferred({
      {"add bf16[2,3] f32[3]", "f32[2,3]"},
      {"add f16[2,3] bf16[3]", "f16[2,3]"},
      {"mul f64[2,3] f32[]", "f64[2,3]"},
      {"add i32[2] i32[2]", "i32[2]"},
      {"silu bf16[4]", "bf16[4]"},
      {"gelu_grad f32[4] f32[4] approximate=tanh", "f32[4]"},
      {"clamp f32[4] min=-1.0 max=1", "f32[4]"},
      {"cast i64[] dtype=f64", "f64[]"},
      {"swiglu_grad f32[4] f32[4] f32[4]", "f32[4], f32[4]"},
      {"swiglu_joined f32[3,8]", "f32[3,4]"},
      {"swiglu_joined_grad f32[3,8] f32[3,4]", "f32[3,8]"},
      {"select f32[] bf16[3] bf16[3]", "bf16[3]"},
  });
}

TEST(InferElementwiseOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"silu i32[2]", "silu: x is i32[2]; wanted bf16, f16, f32 or f64 elements"},
      {"silu_grad f32[2] bf16[2]", "silu_grad: dy is bf16[2]; wanted f32[2]"},
      {"add f32[2,3] f32[2]", "add: b is f32[2]; wanted the dims of a, [2,3], or the last of them"},
      {"add f32[3] f32[2,3]", "add: b is f32[2,3]; wanted the dims of a, [3], or the last of them"},
      {"add f32[2] i32[2]", "add: b is i32[2]; wanted elements of type f32"},
      {"add bool[2] bool[2]", "add: a is bool[2]; wanted numbers"},
      {"gelu f32[2] approximate=fast", "gelu: approximate=fast; wanted none or tanh"},
      {"clamp f32[2] min=2.0 max=1.0", "clamp: min=2 is above max=1"},
      {"swiglu f32[2] f32[3]", "swiglu: up is f32[3]; wanted f32[2]"},
      {"swiglu_joined f32[3,5]", "swiglu_joined: x is f32[3,5]; wanted an even last dim"},
      {"swiglu_joined_grad f32[6] f32[2]", "swiglu_joined_grad: dy is f32[2]; wanted f32[3]"},
      {"select f32[2] f32[2] f32[2]", "select: cond is f32[2]; wanted a floating scalar, or bool elements"},
  });
}

TEST(InferProductOps, TypesOfResults) {
  ExpectInferred({
      {"einsum f32[2,3,5] f32[7,5] spec=\"bsk,nk->bsn\"", "f32[2,3,7]"},
      {"einsum bf16[2,3,5] bf16[7,5] spec=\"bsk,nk->bsn\" dtype=f32", "f32[2,3,7]"},
      {"einsum_accumulate f32[7,5] bf16[2,3,7] bf16[2,3,5] spec=\"bsn,bsk->nk\"", "f32[7,5]"},
      {"einsum_joined bf16[2,3,5] bf16[7,5] bf16[4,5] spec=\"bsk,nk->bsn\"", "bf16[2,3,11]"},
      {"einsum bf16[2,3,8] bf16[2,3,5] spec=\"bsn,bsk->nk\" dtype=f32 dim=2 start=1 limit=3 parts=4", "f32[4,5]"},
      {"einsum_accumulate bf16[2,4] bf16[2,3] bf16[4,3] spec=\"ik,jk->ij\"", "bf16[2,4]"},
      {"einsum_accumulate bf16[7] bf16[2,3,5] bf16[7,5] spec=\"bsk,nk->bsn\"", "bf16[2,3,7]"},
      {"einsum_accumulate f32[4,2] bf16[2,3,5] bf16[4,2,5] spec=\"bsk,hdk->bshd\"", "f32[2,3,4,2]"},
  });
}

TEST(InferProductOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"einsum f32[2,9] f32[2,3] spec=\"in,ij->nj\" dim=1 start=3 limit=5 parts=4",
       "einsum: a is f32[2,9]; wanted parts 3 to 5 of 4 in dim 1"},
      {"einsum_joined f32[2,3] f32[4,3] f32[5,2] spec=\"ik,jk->ij\"",
       "einsum_joined: part 1 is f32[5,2]; wanted f32[5,3]"},
      {"einsum f32[2,3] f32[4,3] spec=\"ik,jk\"", "einsum: spec=\"ik,jk\": wanted the form \"bsk,nk->bsn\""},
      {"einsum f32[2,3] f32[4,3] spec=\"i1,jk->ij\"", "einsum: spec=\"i1,jk->ij\": '1' is no letter"},
      {"einsum f32[2,3] f32[4,3] spec=\"ii,ji->ij\"",
       "einsum: spec=\"ii,ji->ij\": letter 'i' is repeated in one tensor"},
      {"einsum f32[2,3] f32[4,3] spec=\"ik,jl->ij\"", "einsum: spec=\"ik,jl->ij\": letter 'k' is in one tensor only"},
      {"einsum f32[2,3] f32[4,5] spec=\"ik,jk->ij\"", "einsum: 'k' is 3 in a, f32[2,3], but 5 in b, f32[4,5]"},
      {"einsum f32[2] f32[4,5] spec=\"ik,jk->ij\"", "einsum: a is f32[2]; wanted 2 dims for \"ik\""},
      {"einsum f32[2,3] bf16[4,3] spec=\"ik,jk->ij\"", "einsum: b is bf16[4,3]; wanted elements of a's type, f32"},
      {"einsum_accumulate f16[2,4] bf16[2,3] bf16[4,3] spec=\"ik,jk->ij\"",
       "einsum_accumulate: acc is f16[2,4]; wanted f32[2,4]"},
      {"einsum_accumulate f32[2] f32[2,3] f32[4,3] spec=\"ik,jk->ij\"",
       "einsum_accumulate: acc is f32[2]; wanted the dims of y, [2,4], or the last of them"},
      {"einsum_accumulate f32[1,2,4] f32[2,3] f32[4,3] spec=\"ik,jk->ij\"",
       "einsum_accumulate: acc is f32[1,2,4]; wanted the dims of y, [2,4], or the last of them"},
  });
}

TEST(InferShapeOps, TypesOfResults) {
  ExpectInferred({
      {"reshape f32[2,6] shape=[2,3,2]", "f32[2,3,2]"},
      {"stop_gradient i32[2,6]", "i32[2,6]"},
      {"transpose f32[2,3,4] perm=[2,0,1]", "f32[4,2,3]"},
      {"slice f32[2,6] dim=1 start=2 limit=5", "f32[2,3]"},
      {"pad f32[2,3] dim=1 low=2 high=1", "f32[2,6]"},
      {"concat f32[2,3] f32[2,1] dim=1", "f32[2,4]"},
      {"broadcast f32[3] shape=[2,3,4] dims=[1]", "f32[2,3,4]"},
      {"reduce_sum f32[2,3,4] dims=[0,2]", "f32[3]"},
      {"reduce_max bf16[2,3] dims=[1]", "bf16[2]"},
      {"reduce_sum bf16[2,3] dims=[1] dtype=f32", "f32[2]"},
  });
}

TEST(InferShapeOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"reshape f32[2,3] shape=[7]", "reshape: shape=[7] of x, f32[2,3]: the numbers of elements differ"},
      {"transpose f32[2,3] perm=[0,0]", "transpose: perm=[0,0] is no permutation of the 2 dims of x"},
      {"slice f32[2,3] dim=2 start=0 limit=1", "slice: dim=2 of f32[2,3]; wanted 0 to 1"},
      {"slice f32[2,3] dim=1 start=1 limit=4", "slice: start=1 limit=4 of dim 1, which has 3 elements"},
      {"pad f32[2] dim=0 low=-1 high=0", "pad: low=-1 high=0; wanted 0 or more"},
      {"concat f32[2,3] f32[3,3] dim=1", "concat: operand 1 is f32[3,3]; wanted f32[2,3]"},
      {"broadcast f32[3] shape=[2,4] dims=[1]", "broadcast: x is f32[3]; wanted dims [4]"},
      {"broadcast f32[4,2] shape=[2,4] dims=[1,0]", "broadcast: dims=[1,0] must ascend"},
      {"reduce_sum f32[2] dims=[1]", "reduce_sum: dims[0]=1 of f32[2]; wanted 0 to 0"},
      {"reduce_max f32[2,0] dims=[1]", "reduce_max: dim 1 of x, f32[2,0], is empty: it has no maximum"},
      {"broadcast f32[] shape=[4294967296,4294967296] dims=[]",
       "broadcast: the result f32[4294967296,4294967296] has more than 2^50 elements"},
      {"pad f32[2] dim=0 low=9223372036854775807 high=1", "pad: low=9223372036854775807 high=1 is too large"},
  });
}

TEST(InferTorchOps, TypesOfResults) {
  ExpectInferred({
      {"select bool[3] bf16[2,3] bf16[2,3]", "bf16[2,3]"},
      {"log1p bf16[3]", "bf16[3]"},
      {"pow f32[3] exponent=-0.5", "f32[3]"},
      {"compare i64[2,3] i64[3] comparison=le", "bool[2,3]"},
      {"gather bool[2,3] i64[2,7] dim=1", "bool[2,7]"},
      {"scatter_add f32[2,7] i64[2,7] dim=1 extent=3", "f32[2,3]"},
      {"cumsum i64[2,3] dim=0", "i64[2,3]"},
      {"flip i32[2,3] dims=[0,1]", "i32[2,3]"},
      {"aten f32[2,3] schema=\"aten::sort.default\" args=[\"%0\"] result_dtypes=[f32,i64] result_ranks=[2,2] "
       "result_dims=[2,3,2,3]",
       "f32[2,3], i64[2,3]"},
      {"aten_vjp bf16[2,3] i64[2] f32[] schema=\"aten::f.default\" args=[\"[%0,%1]\"] result_dtypes=[f32] "
       "result_ranks=[0] result_dims=[] operands=2 needed=[0] given=[0]",
       "bf16[2,3]"},
  });
}

TEST(InferTorchOps, ErrorsSayWhatIsWanted) {
  const std::string of = " result_dtypes=[f32] result_ranks=[1] result_dims=[2]";
  const std::string vjp = absl::StrCat("aten_vjp f32[2] f32[2] schema=\"aten::neg.default\" args=[\"%0\"]", of);
  const std::string wrong_schema = absl::StrCat("aten f32[2] schema=\"neg\" args=[\"%0\"]", of);
  const std::string wrong_operand = absl::StrCat("aten f32[2] schema=\"aten::neg.default\" args=[\"[%0,%1]\"]", of);
  const std::string wrong_number = absl::StrCat("aten f32[2] schema=\"aten::neg.default\" args=[\"#0\"]", of);
  const std::string wrong_needed = absl::StrCat(vjp, " operands=1 needed=[1] given=[0]");
  const std::string wrong_given = absl::StrCat(vjp, " operands=2 needed=[0] given=[0]");
  ExpectInferred({
      {"compare f32[2] f32[2] comparison=near", "compare: comparison=near; wanted eq, ne, lt, le, gt or ge"},
      {"compare f32[2] i32[2] comparison=eq", "compare: b is i32[2]; wanted elements of type f32"},
      {"gather f32[2,3] i32[2,3] dim=1", "gather: ids is i32[2,3]; wanted i64[2,3]"},
      {"gather f32[2,3] i64[3,3] dim=1", "gather: ids is i64[3,3]; wanted i64[2,3]"},
      {"gather f32[2,3] i64[2,3] dim=2", "gather: dim=2 of f32[2,3]; wanted 0 to 1"},
      {"scatter_add bf16[2] i64[2] dim=0 extent=3", "scatter_add: x is bf16[2]; wanted f32 or f64 elements"},
      {"cumsum i32[2] dim=0", "cumsum: x is i32[2]; wanted floating or i64 elements"},
      {"flip f32[2,3] dims=[1,0]", "flip: dims=[1,0] of f32[2,3]; wanted some of them, ascending"},
      {wrong_schema.c_str(),
       "aten: schema=\"neg\"; wanted NAMESPACE::NAME.OVERLOAD, each of letters, digits and _, as aten::cumsum.default"},
      {wrong_operand.c_str(), "aten: argument \"[%0,%1]\"; wanted %N with N below 1, the number of operands"},
      {wrong_number.c_str(), "aten: argument \"#0\"; wanted #N with N below 0, the number of ints"},
      {"aten f32[2] schema=\"aten::neg.default\" args=[\"@0\"] result_dtypes=[f32] result_ranks=[1] result_dims=[2]",
       "aten: argument \"@0\": a node's results are no arguments"},
      {"aten f32[2] schema=\"aten::neg.default\" args=[\"%0\"] result_dtypes=[f32] result_ranks=[2] result_dims=[2]",
       "aten: result_dims=[2]; wanted one each for the ranks [2]"},
      {"aten f32[2] schema=\"aten::neg.default\" args=[\"%0\"] result_dtypes=[f32] result_ranks=[0] result_dims=[2]",
       "aten: result_dims=[2] has 1 entries; the ranks [0] take 0"},
      {wrong_needed.c_str(), "aten_vjp: needed=[1]; wanted ascending numbers below 1"},
      {wrong_given.c_str(),
       "aten_vjp: operands=2 given=[0] of 2 operands; wanted those of the operator and a cotangent each"},
  });
}

TEST(InferNormOps, TypesOfResults) {
  ExpectInferred({
      {"rms_norm bf16[2,3,8] f32[8] eps=1e-05", "bf16[2,3,8], f32[2,3]"},
      {"rms_norm f32[2,3,8] f32[8] eps=1e-05 dtype=bf16", "bf16[2,3,8], f32[2,3]"},
      {"rms_norm_grad bf16[2,3,8] bf16[2,3,8] bf16[8] f32[2,3]", "bf16[2,3,8], f32[8]"},
      {"rms_norm_grad bf16[2,8] f32[2,8] f32[8] f32[2]", "f32[2,8], f32[8]"},
      {"layer_norm f32[2,8] eps=1e-05", "f32[2,8], f32[2], f32[2]"},
      {"add_rms_norm f32[2,3,8] bf16[2,3,8] f32[8] eps=1e-05 dtype=bf16", "bf16[2,3,8], f32[2,3], f32[2,3,8]"},
      {"add_rms_norm bf16[2,8] f32[2,8] f32[8] eps=1e-05", "f32[2,8], f32[2], f32[2,8]"},
      {"rms_norm_grad_accumulate f32[2,8] f32[2,8] f32[2,8] f32[8] f32[2]", "f32[2,8], f32[8]"},
      {"rms_norm_grad_accumulate f32[2,8] bf16[2,8] f32[2,8] f32[8] f32[2] copy=bf16", "f32[2,8], f32[8], bf16[2,8]"},
      {"layer_norm_grad bf16[2,8] f32[2,8] f32[2] f32[2] affine=none copy=f16", "f32[2,8], f16[2,8]"},
      {"rms_norm_grad bf16[2,8] bf16[2,8] f32[8] f32[2] dx=f32", "f32[2,8], f32[8]"},
      {"layer_norm_grad_accumulate f32[2,8] bf16[2,8] bf16[2,8] f32[2] f32[2] affine=none copy=bf16 dx=f32",
       "f32[2,8], bf16[2,8]"},
      {"add_layer_norm f32[2,8] f32[2,8] eps=1e-05", "f32[2,8], f32[2], f32[2], f32[2,8]"},
      {"layer_norm_grad_accumulate f32[2,8] f32[2,8] f32[2,8] f32[2] f32[2] f32[8] affine=weight", "f32[2,8], f32[8]"},
      {"layer_norm_grad f32[2,8] f32[2,8] f32[2] f32[2] affine=none", "f32[2,8]"},
      {"layer_norm_grad f32[2,8] f32[2,8] f32[2] f32[2] f32[8] affine=weight_bias", "f32[2,8], f32[8], f32[8]"},
      {"l2_normalize f32[2,8] eps=1e-07", "f32[2,8], f32[2]"},
      {"l2_normalize_grad f32[2,8] f32[2,8] f32[2] eps=1e-07", "f32[2,8]"},
  });
}

TEST(InferNormOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"rms_norm f32[] f32[8] eps=1e-5", "rms_norm: x is f32[]; wanted at least one dim"},
      {"rms_norm f32[2,8] f32[2] eps=1e-5", "rms_norm: w is f32[2]; wanted dims [8]"},
      {"rms_norm_grad f32[2,7] f32[2,8] f32[8] f32[2]", "rms_norm_grad: dy is f32[2,7]; wanted dims [2,8]"},
      {"rms_norm_grad f32[2,8] f32[2,8] f32[8] f32[8]", "rms_norm_grad: rstd is f32[8]; wanted f32[2]"},
      {"rms_norm_grad bf16[2,8] bf16[2,8] f32[8] f32[2] copy=f16",
       "rms_norm_grad: copy=f16; wanted a floating type narrower than the gradient's bf16"},
      {"rms_norm_grad bf16[2,8] bf16[2,8] f32[8] f32[2] dx=f16",
       "rms_norm_grad: dx=f16; wanted a floating type wider than that of x, bf16"},
      {"layer_norm_grad f32[2,8] f32[2,8] f32[2] f32[2] affine=none copy=i32",
       "layer_norm_grad: copy=i32; wanted a floating type narrower than the gradient's f32"},
      {"add_rms_norm f32[2,8] f32[8] f32[8] eps=1e-5", "add_rms_norm: b is f32[8]; wanted dims [2,8]"},
      {"rms_norm_grad_accumulate f32[2,8] bf16[2,8] bf16[2,8] f32[8] f32[2]",
       "rms_norm_grad_accumulate: acc is f32[2,8]; wanted bf16[2,8]"},
      {"layer_norm f32[2,8] f32[8] f32[2] eps=1e-5", "layer_norm: b is f32[2]; wanted dims [8]"},
      {"layer_norm_grad f32[2,8] f32[2,8] f32[2] f32[2] affine=some",
       "layer_norm_grad: affine=some; wanted none, weight or weight_bias"},
      {"layer_norm_grad f32[2,8] f32[2,8] f32[2] f32[2] affine=weight",
       "layer_norm_grad: affine=weight takes 5 operands, got 4"},
      {"l2_normalize_grad f32[2,8] f32[2,8] f32[8] eps=1e-7", "l2_normalize_grad: rnorm is f32[8]; wanted f32[2]"},
  });
}

TEST(InferAttentionOps, TypesOfResults) {
  ExpectInferred({
      {"attention_joined bf16[2,5,12,4] causal=true scale=1.0 group=2", "bf16[2,5,6,4], f32[2,6,5]"},
      {"attention_joined_grad bf16[2,5,6,4] bf16[2,5,12,4] bf16[2,5,6,4] f32[2,6,5] causal=true scale=1.0 group=2",
       "bf16[2,5,12,4]"},
      {"rope_table inv_freq=[1.0,0.5] length=7", "f32[7,2], f32[7,2]"},
      {"rotary bf16[2,7,3,8] f32[7,2] f32[7,2] style=half", "bf16[2,7,3,8]"},
      {"attention bf16[2,5,6,8] bf16[2,5,3,8] bf16[2,5,3,8] causal=true scale=0.5", "bf16[2,5,6,8], f32[2,6,5]"},
      {"attention bf16[2,5,6,8] bf16[2,5,3,8] bf16[2,5,3,4] causal=true scale=0.5", "bf16[2,5,6,4], f32[2,6,5]"},
      {"attention_grad f32[2,5,6,4] f32[2,5,6,8] f32[2,5,3,8] f32[2,5,3,4] f32[2,5,6,4] f32[2,6,5] causal=true "
       "scale=0.5",
       "f32[2,5,6,8], f32[2,5,3,8], f32[2,5,3,4]"},
      {"attention_grad f32[2,5,6,8] f32[2,5,6,8] f32[2,5,3,8] f32[2,5,3,8] f32[2,5,6,8] f32[2,6,5] causal=true "
       "scale=0.5",
       "f32[2,5,6,8], f32[2,5,3,8], f32[2,5,3,8]"},
  });
}

TEST(InferAttentionOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"attention_joined f32[2,5,6,4] causal=true scale=1.0 group=3", "attention_joined: group=3 of 6 heads in all"},
      {"rotary f32[1,5,2,6] f32[5,3] f32[5,3] style=half limit=3 parts=4", "rotary: limit=3 of parts=4 of 2 heads"},
      {"rope_table inv_freq=[1.0] length=-1", "rope_table: length=-1; wanted 0 or more"},
      {"rotary f32[2,7,3,8] f32[7,5] f32[7,5] style=half",
       "rotary: cos is f32[7,5]; wanted dims [7,up to 4] for x, f32[2,7,3,8], or one such table a row"},
      {"rotary f32[2,7,3,8] f32[7,4] f32[7,4] style=whole", "rotary: style=whole; wanted half or interleaved"},
      {"attention f32[2,5,6,8] f32[2,5,4,8] f32[2,5,4,8] causal=true scale=0.5",
       "attention: q has 6 heads and k 4; wanted a multiple"},
      {"attention f32[2,5,6,8] f32[2,4,6,8] f32[2,4,6,8] causal=true scale=0.5",
       "attention: causal=true with 5 queries and 4 keys; wanted as many"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=true scale=0.5 alibi_slopes=[0.5]",
       "attention: alibi_slopes has 1 entries; wanted one for each of 2 heads"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[3] causal=true scale=0.5 sinks=true",
       "attention: sinks is f32[3]; wanted dims [2]"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=true scale=0.5 sinks=true",
       "attention: 3 operands; wanted 4, or document_start behind them"},
      {"attention f32[2,5,2,8] f32[2,6,2,8] f32[2,6,2,8] f32[2,1,5,5] causal=false scale=0.5 bias=true",
       "attention: bias is f32[2,1,5,5]; wanted f32[2,1,5,6]"},
      {"attention f32[2,5,2,8] f32[2,6,2,8] f32[2,6,2,8] f32[3,1,5,6] causal=false scale=0.5 bias=true",
       "attention: bias is f32[3,1,5,6]; wanted f32[2,1,5,6]"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] i32[1,1,5,5] causal=false scale=0.5 bias=true",
       "attention: bias is i32[1,1,5,5]; wanted bf16, f16, f32 or f64 elements"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=false scale=0.5 key_bias=true",
       "attention: 3 operands; wanted 4, or document_start behind them"},
      {"attention bf16[2,5,2,8] bf16[2,6,2,8] bf16[2,6,2,8] bf16[2,6] causal=false scale=0.5 key_bias=true",
       "attention: key_bias is bf16[2,6]; wanted f32[2,6]"},
      {"attention f32[2,5,2,8] f32[2,6,2,8] f32[2,6,2,8] f32[2,5] causal=false scale=0.5 key_bias=true",
       "attention: key_bias is f32[2,5]; wanted f32[2,6]"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=false scale=0.5 window=3",
       "attention: window=3 without causal=true"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=true scale=0.5 window=-1",
       "attention: window=-1; wanted 0 or more"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] causal=true scale=0.5 softcap=-1.0",
       "attention: softcap=-1; wanted 0 or more"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] i64[] i64[2] causal=true scale=0.5 dropout=1.0",
       "attention: dropout=1; wanted at least 0 and below 1"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] i64[] i64[3] causal=true scale=0.5 dropout=0.1",
       "attention: sample is i64[3]; wanted i64[2]"},
      {"attention_grad f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,2,5] causal=true "
       "scale=0.5 sinks=true",
       "attention_grad: sinks=true; a gradient takes no sinks"},
      {"attention_continue f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2] f32[2,5,2,8] f32[2,2,5] causal=true "
       "scale=0.5 sinks=true",
       "attention_continue: sinks=true; the earlier results count them"},
      {"attention f32[2,5,2,8] f32[2,5,2,8] f32[2,5,1,4] causal=true scale=0.5",
       "attention: v is f32[2,5,1,4]; wanted f32[2,5,2,4]"},
      {"attention f32[2,5,2,8] f32[3,5,2,8] f32[2,5,2,8] causal=true scale=0.5",
       "attention: k is f32[3,5,2,8]; wanted f32[2,5,2,8]"},
      {"attention_grad f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2,8] f32[2,5,2] causal=true "
       "scale=0.5",
       "attention_grad: lse is f32[2,5,2]; wanted f32[2,2,5]"},
  });
}

TEST(InferTokenOps, TypesOfResults) {
  ExpectInferred({
      {"embedding f32[11,4] i32[2,3] dtype=bf16", "bf16[2,3,4]"},
      {"embedding_grad bf16[2,3,4] i32[2,3] vocab_size=11", "f32[11,4]"},
      {"cross_entropy bf16[2,3,11] i32[2,3]", "f32[], f32[], f32[2,3]"},
      {"cross_entropy_grad bf16[2,3,11] i32[2,3] f32[2,3] f32[]", "bf16[2,3,11]"},
      {"logsumexp bf16[2,3,11] parts=4", "f32[2,3,4]"},
      {"cross_entropy_sum bf16[2,3,11] i32[2,3] f32[2,3]", "f32[], f32[]"},
      {"dropout f32[2,3] i64[] i64[2] rate=0.1 key=3 seed=42", "f32[2,3]"},
      {"random i64[] i64[2] distribution=normal dtype=f32 shape=[2,3] key=3 seed=42", "f32[2,3]"},
  });
}

TEST(InferTokenOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"embedding f32[11,4] i64[2,3]", "embedding: ids is i64[2,3]; wanted i32 elements"},
      {"embedding f32[11] i32[2,3]", "embedding: table is f32[11]; wanted 2 dims"},
      {"embedding_grad f32[2,3,4] i32[3,2] vocab_size=5", "embedding_grad: ids is i32[3,2]; wanted dims [2,3]"},
      {"cross_entropy f32[2,3,11] i32[2]", "cross_entropy: targets is i32[2]; wanted dims [2,3]"},
      {"logsumexp f32[2,3] parts=0", "logsumexp: parts=0; wanted 1 or more"},
      {"cross_entropy_sum f32[2,3,11] i32[2,3] f32[2]", "cross_entropy_sum: lse is f32[2]; wanted f32[2,3]"},
      {"cross_entropy_grad f32[2,3,11] i32[2,3] f32[2,3] f32[1]", "cross_entropy_grad: dloss is f32[1]; wanted f32[]"},
      {"dropout f32[2,3] i64[] i64[3] rate=0.1 key=3 seed=42", "dropout: sample is i64[3]; wanted i64[2]"},
      {"random i64[] i64[2] distribution=normal dtype=f32 shape=[3,3] key=3 seed=42",
       "random: sample is i64[2]; wanted i64[3]"},
      {"random i64[] i64[2] distribution=normal dtype=i64 shape=[2,3] key=3 seed=42",
       "random: y is i64[2,3]; wanted f32 or f64 elements"},
      {"random i64[] i64[2] distribution=cauchy dtype=f32 shape=[2,3] key=3 seed=42",
       "random: distribution=cauchy; wanted uniform or normal"},
      {"dropout f32[2,3] i64[] i64[2] rate=1.0 key=3 seed=42", "dropout: rate=1; wanted at least 0 and below 1"},
  });
}

TEST(InferExpertOps, TypesOfResults) {
  ExpectInferred({
      {"softmax bf16[2,3,5]", "f32[2,3,5]"},
      {"top_k f32[2,3,5] k=2", "f32[2,3,2], i32[2,3,2]"},
      {"top_k f32[3,6] f32[3,6] k=4 groups=3 kept_groups=2 summed=2", "f32[3,4], i32[3,4]"},
      {"top_k_grad f32[2,3,2] f32[2,3,5] i32[2,3,2]", "f32[2,3,5]"},
      {"expert_counts i32[2,3,2] num_experts=5", "f32[5]"},
      {"expert_counts i32[2,3,2] num_experts=5 per_sample=true", "f32[2,5]"},
      {"expert_matmul bf16[2,3,8] i32[2,3,2] bf16[5,6,8] num_experts=5", "bf16[2,3,2,6]"},
      {"expert_matmul bf16[2,3,2,6] i32[2,3,2] bf16[5,6,8] num_experts=5 transposed=true sum_slots=true", "f32[2,3,8]"},
      {"expert_matmul_grad bf16[2,3,2,6] bf16[2,3,8] i32[2,3,2] num_experts=5", "f32[5,6,8]"},
      {"dispatch_slots i32[2,6,2] groups=3 destinations=2 capacity=4 num_experts=6", "i32[2,6,2], i32[2,3,2,4], f32[]"},
      {"dispatch bf16[2,6,8] i32[2,6,2] groups=3 destinations=2 capacity=4", "bf16[2,3,2,4,8]"},
      {"combine bf16[2,3,2,4,8] i32[2,6,2] sum_slots=true", "f32[2,6,8]"},
      {"combine bf16[2,3,2,4,8] i32[2,6,2]", "bf16[2,6,2,8]"},
      {"mul_rows bf16[2,3,8] f32[2,3]", "bf16[2,3,8]"},
      {"dot_rows bf16[2,3,8] bf16[2,3,8]", "f32[2,3]"},
  });
}

TEST(InferExpertOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"softmax f32[]", "softmax: x is f32[]; wanted at least one dim"},
      {"softmax_grad bf16[3] bf16[3]", "softmax_grad: dy is bf16[3]; wanted f32 or f64 elements"},
      {"top_k f32[3,5] k=6", "top_k: k=6; wanted 1 to 5, the last dim of p"},
      {"top_k f32[3,6] f32[3,5] k=2", "top_k: choice is f32[3,5]; wanted f32[3,6]"},
      {"top_k f32[3,6] k=2 groups=4", "top_k: groups=4; wanted a divisor of 6, at most 32"},
      {"top_k f32[3,64] k=2 groups=64", "top_k: groups=64; wanted a divisor of 64, at most 32"},
      {"top_k f32[3,6] k=2 groups=3 kept_groups=4", "top_k: kept_groups=4; wanted 1 to 3"},
      {"top_k f32[3,6] k=2 groups=3 kept_groups=1 summed=3", "top_k: summed=3; wanted 1 to 2"},
      {"top_k f32[3,6] k=3 groups=3 kept_groups=1", "top_k: k=3; wanted 1 to 2, what the kept groups hold"},
      {"top_k bf16[3,5] k=2", "top_k: p is bf16[3,5]; wanted f32 or f64 elements"},
      {"top_k_grad f32[3,2] f32[3,5] i32[4,2]", "top_k_grad: ids is i32[4,2]; wanted dims [3,2]"},
      {"expert_counts i64[3,2] num_experts=5",
       "expert_counts: ids is i64[3,2]; wanted i32 elements, one a slot of a token"},
      {"expert_counts i32[3,2] num_experts=0", "expert_counts: num_experts=0; wanted 1 or more"},
      {"expert_matmul f32[4,8] i32[3,2] f32[5,6,8] num_experts=5",
       "expert_matmul: x is f32[4,8]; wanted a row for each slot or token of ids, i32[3,2]"},
      {"expert_matmul f32[3,8] i32[3,2] f32[5,8,6] num_experts=5", "expert_matmul: w is f32[5,8,6]; wanted f32[5,8,8]"},
      {"expert_matmul f32[3,8] i32[3,2] f32[4,6,8] num_experts=5", "expert_matmul: w is f32[4,6,8]; wanted f32[5,6,8]"},
      {"expert_matmul_grad f32[3,8] bf16[3,6] i32[3,2] num_experts=5",
       "expert_matmul_grad: b is bf16[3,6]; wanted elements of a's type, f32"},
      {"expert_matmul f32[3,2,8] i32[3,2] f32[5,6,8] num_experts=5 ranges_dim=0",
       "expert_matmul: ranges_dim=0 of ids, i32[3,2]; wanted a dim before the last that divides the 5 experts"},
      {"dispatch_slots i32[2,6,2] groups=4 destinations=2 capacity=4 num_experts=6",
       "dispatch_slots: groups=4 does not divide 6 tokens"},
      {"dispatch_slots i32[2,6,2] groups=3 destinations=4 capacity=4 num_experts=6",
       "dispatch_slots: num_experts=6; wanted a multiple of destinations=4"},
      {"dispatch f32[2,5,8] i32[2,6,2] groups=3 destinations=2 capacity=4",
       "dispatch: x is f32[2,5,8]; wanted a row for each slot or token of places, i32[2,6,2]"},
      {"dispatch f32[2,6,8] i32[2,6,2] groups=3 destinations=2 capacity=0",
       "dispatch: groups=3 destinations=2 capacity=0; wanted 1 or more each"},
      {"combine f32[2,4,2,4,8] i32[2,6,2]",
       "combine: rows is f32[2,4,2,4,8]; wanted the samples and groups of places, i32[2,6,2]"},
      {"mul_rows f32[3,8] f32[8]", "mul_rows: w is f32[8]; wanted dims [3]"},
      {"dot_rows f32[3,8] f32[3]", "dot_rows: b is f32[3]; wanted f32[3,8]"},
  });
}

TEST(InferOptimizerOps, TypesOfResults) {
  ExpectInferred({
      {"sum_squares bf16[2,3]", "f32[]"},
      {"sum_squares bf16[2,3] f32[5] f16[]", "f32[]"},
      {"is_finite f64[]", "f64[]"},
      {"adamw f32[4] f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.99 epsilon=1e-8 weight_decay=0 "
       "copy=bf16",
       "f32[4], f32[4], f32[4], bf16[4]"},
      {"sgd f32[4] bf16[4] f32[] f32[] f32[] f32[] weight_decay=0", "f32[4]"},
      {"sgd bf16[4] f32[4] f32[4] f32[] f32[] f32[] f32[] weight_decay=0 momentum=0.9", "bf16[4], f32[4]"},
      {"sgd f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] f64[] weight_decay=0 momentum=0.9", "f32[4], f32[4]"},
      {"lion f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.99 weight_decay=0 copy=f16",
       "f32[4], f32[4], f16[4]"},
      {"lr_schedule i64[] type=cosine learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1", "f32[]"},
  });
}

TEST(InferOptimizerOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"sum_squares f32[2] f64[2]", "sum_squares: operands f32[2] and f64[2] are summed in different types"},
      {"adamw bf16[4] bf16[4] f32[4] f32[4] f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.99 epsilon=1e-8 weight_decay=0",
       "adamw: m is bf16[4]; wanted f32[4]"},
      {"adamw f32[4] f32[4] f32[4] f32[4] f32[1] f32[] f32[] f32[] beta1=0.9 beta2=0.99 epsilon=1e-8 weight_decay=0",
       "adamw: lr is f32[1]; wanted a floating scalar"},
      {"adamw f32[4] f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] i32[] beta1=0.9 beta2=0.99 epsilon=1e-8 "
       "weight_decay=0",
       "adamw: momentum is i32[]; wanted a floating scalar"},
      {"lion f32[4] f32[4] f32[3] f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.99 weight_decay=0",
       "lion: g is f32[3]; wanted dims [4]"},
      {"lr_schedule i64[] type=square learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1",
       "lr_schedule: type=square; wanted cosine, linear, constant, cosine_with_restarts, polynomial, inverse_sqrt, "
       "warmup_stable_decay, table"},
      {"lr_schedule i64[] type=table learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1",
       "lr_schedule: type=table without factors"},
      {"newton_schulz f32[3,4] stored=[3,5] steps=5",
       "newton_schulz: stored=[3,5]; wanted at least 2 dims with the 12 elements of f32[3,4]"},
  });
}

TEST(InferLeafOps, TypesOfResults) {
  ExpectInferred({
      {"constant value=1 dtype=f32 shape=[2,3]", "f32[2,3]"},
      {"iota dim=1 dtype=i32 shape=[2,3]", "i32[2,3]"},
      {"all_gather f32[2] dim=0 over=[dp]", "f32[2]"},
      {"wait f32[2]", "f32[2]"},
      {"store f32[2]", ""},
  });
}

TEST(InferLeafOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"constant value=1 dtype=f32 shape=[-2]", "constant: shape=[-2] has a negative dim"},
      {"iota dim=2 dtype=i32 shape=[2,3]", "iota: dim=2 of a shape of 2 dims"},
  });
}

}  // namespace
}  // namespace tacc::graph
