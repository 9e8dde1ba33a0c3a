#include "graph/ops/op_cases.h"

#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/ir/sequence_order.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ops/attention_operands.h"

namespace tacc::graph {

absl::StatusOr<OpCase> ParseOpCase(const OpTable& ops, const std::string& text) {
  std::string lines = "tacc.graph 1\n";
  std::vector<std::string> names, attrs;
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (size_t i = 1; i < words.size(); ++i) {
    if (absl::StrContains(words[i], "=")) {
      attrs.push_back(words[i]);
      continue;
    }
    names.push_back(absl::StrCat("%a", names.size()));
    absl::StrAppend(&lines, names.back(), " = input \"a", names.size() - 1, "\" : ", words[i], "\n");
  }
  absl::StrAppend(&lines, words[0], " ", absl::StrJoin(names, ", "), " ", absl::StrJoin(attrs, " "), "\n");
  OpCase out;
  out.text = text;
  TACC_ASSIGN_OR_RETURN(out.graph, ParseGraph(lines, {}));
  out.node = static_cast<int>(out.graph.nodes.size()) - 1;
  const Node& parsed = out.op_node();
  const OpDef* op = ops.Find(parsed.op);
  if (op == nullptr) return absl::NotFoundError(absl::StrCat("no op ", parsed.op.name()));
  TACC_ASSIGN_OR_RETURN(const std::vector<TensorType> types,
                        InferTypes(*op, parsed.attrs, CallOf(out.graph, parsed).operands));
  for (size_t i = 0; i < types.size(); ++i) {
    const ValueId v = out.graph.AddValue("r", types[i]);
    out.graph.nodes[out.node].results.push_back(v);
    Node end;
    end.op = Op::kOutput;
    end.symbol = absl::StrCat("r", i);
    end.operands = {v};
    out.graph.nodes.push_back(end);
  }
  return out;
}

// Cases that are written out.
constexpr const char* kTexts[] = {
    "gelu f64[3,5] approximate=none",
    "gelu f64[3,5] approximate=tanh",
    "gelu_grad f64[3,5] f64[3,5] approximate=none",
    "gelu_grad f64[3,5] f64[3,5] approximate=tanh",
    "scale f64[3,5] factor=-1.5",
    "add_scalar f64[3,5] value=0.5",
    "clamp f64[3,5] min=-0.5 max=0.7",
    "clamp_grad f64[3,5] f64[3,5] min=-0.5 max=0.7",
    "cast f64[3,5] dtype=f32",
    "cast f32[3,5] dtype=f64",
    "swiglu f64[3,5] f64[3,5]",
    "swiglu_grad f64[3,5] f64[3,5] f64[3,5]",
    "swiglu_joined f64[3,10]",
    "swiglu_joined_grad f64[3,4,10] f64[3,4,5]",
    "select f64[] f64[3,5] f64[3,5]",
    "select bool[3,5] f64[3,5] f64[3,5]",
    "select bool[5] f64[3,2,5] f64[3,2,5]",
    "pow f64[3,5] exponent=-1.2345678901",
    "compare f64[3,2,5] f64[2,5] comparison=lt",
    "compare f64[3,5] f64[] comparison=ge",
    "compare i32[3,5] i32[3,5] comparison=eq",
    "compare i32[3,5] i32[5] comparison=ne",
    "compare f64[3,5] f64[3,5] comparison=le",
    "compare f64[3,5] f64[5] comparison=gt",
    "gather f64[3,4,5] i64[3,2,5] dim=1",
    "gather f64[4,5] i64[4,7] dim=1",
    "scatter_add f64[3,4,5] i64[3,4,5] dim=1 extent=3",
    "scatter_add f64[6,5] i64[6,5] dim=0 extent=4",
    "cumsum f64[3,4,5] dim=1",
    "cumsum f64[3,5] dim=1",
    "flip f64[3,4,5] dims=[0,2]",
    "flip f64[3,5] dims=[1]",
    "einsum f64[2,3,5] f64[7,5] spec=\"bsk,nk->bsn\"",
    "einsum f64[3,2,5] f64[3,5,4] spec=\"zik,zkj->zij\"",
    "einsum f64[3,5] f64[2,4] spec=\"ik,jl->ijkl\"",
    "einsum f64[2,3,2,4] f64[2,4,5] spec=\"bshd,hdn->bsn\"",
    "einsum_accumulate f64[7,5] f64[2,3,7] f64[2,3,5] spec=\"bsn,bsk->nk\"",
    "einsum_accumulate f64[3,4] f64[2,5,6] f64[3,4,6] spec=\"bsk,hdk->bshd\"",
    "einsum_accumulate f64[4] f64[3,2,5] f64[3,5,4] spec=\"zik,zkj->zij\"",
    "einsum_joined f64[2,3,5] f64[7,5] f64[4,5] spec=\"bsk,nk->bsn\"",
    "einsum_joined f64[2,3,9,4] f64[5,4,6] f64[2,4,6] f64[2,4,6] spec=\"bshd,hdk->bsk\"",
    "einsum f64[2,3,8,4] f64[2,3,5] spec=\"bshd,bsk->hdk\" dim=2 start=2 limit=3 parts=4",
    "einsum_accumulate f64[3,5] f64[2,3,6] f64[2,3,5] spec=\"bsn,bsk->nk\" dim=2 start=1 limit=2 parts=2",
    "convolution f64[3,3,6,5] f64[5,3,3,2]",
    "convolution f64[2,4,7,6] f64[6,4,3,3] f64[6] stride=[2,1] padding=[1,2] dilation=[2,1]",
    "convolution f64[3,6,5,4] f64[4,3,1,1] groups=2 stride=[2,2]",
    "convolution f64[3,5,7,1] f64[4,5,1,1] f64[4]",
    "convolution f64[2,4,9] f64[8,1,4] f64[8] groups=4 stride=[2] padding=[1]",
    "convolution f64[3,2,3,4,3] f64[3,2,2,3,1] stride=[1,2,1] padding=[1,1,0]",
    "convolution_transposed f64[3,3,4,3] f64[3,4,3,2] size=[6,4]",
    "convolution_transposed f64[2,4,3,5] f64[4,3,2,3] f64[3] size=[6,10] stride=[2,2] padding=[0,1]",
    "convolution_transposed f64[3,5,4,2] f64[5,3,1,1] size=[4,2]",
    "convolution_transposed f64[3,6,4] f64[6,2,3] f64[4] size=[9] stride=[2] groups=2 dilation=[1]",
    "convolution_transposed f64[2,3,2,2,3] f64[3,2,2,1,3] size=[3,2,5]",
    "convolution_grad_weight f64[3,5,4,4] f64[3,3,6,5] kernel=[3,2]",
    "convolution_grad_weight f64[3,4,4,3] f64[3,6,8,6] kernel=[2,2] groups=2 stride=[2,2]",
    "convolution_grad_weight f64[3,4,7,2] f64[3,5,7,2] kernel=[1,1]",
    "convolution_grad_weight f64[3,4,5] f64[3,4,5] kernel=[3] padding=[1] groups=4",
    "max_pool f64[3,2,7,5] kernel=[3,2] stride=[2,2] padding=[1,1]",
    "max_pool f64[2,3,6,6] kernel=[2,3] dilation=[2,1] ceil_mode=true",
    "max_pool f64[3,2,9] kernel=[3] stride=[2] ceil_mode=true",
    "max_pool f64[3,2,3,4,3] kernel=[2,2,1] padding=[1,0,0]",
    "max_pool_grad f64[3,2,4,3] i32[3,2,4,3] kernel=[3,2] stride=[2,2] padding=[1,1] image=[7,5]",
    "avg_pool f64[3,2,7,5] kernel=[3,2] stride=[2,2] padding=[1,1]",
    "avg_pool f64[3,2,7,5] kernel=[3,2] stride=[2,2] padding=[1,1] ceil_mode=true count_include_pad=false",
    "avg_pool f64[3,2,8] kernel=[3] stride=[2] ceil_mode=true divisor=2",
    "avg_pool f64[2,2,3,4,5] kernel=[2,2,3]",
    "avg_pool f64[3,2,7,5] size=[3,5]",
    "avg_pool_grad f64[3,2,4,3] kernel=[3,2] stride=[2,2] padding=[1,1] count_include_pad=false image=[7,5]",
    "avg_pool_grad f64[3,2,4] size=[4] image=[7]",
    "interpolate f64[3,2,5,3] size=[3,7] mode=nearest",
    "interpolate f64[3,2,5,3] size=[3,7] mode=nearest_exact",
    "interpolate f64[3,2,5,3] size=[3,7] mode=linear",
    "interpolate f64[3,2,5,1] size=[9,2] mode=linear align_corners=true",
    "interpolate f64[3,2,5,3] size=[8,4] mode=cubic scales=[1.7,1.5]",
    "interpolate f64[2,2,4,6] size=[9,3] mode=cubic align_corners=true",
    "interpolate f64[3,2,5] size=[7] mode=linear scales=[1.5]",
    "interpolate f64[2,1,3,2,4] size=[5,3,2] mode=linear",
    "interpolate_grad f64[3,2,3,7] image=[5,3] size=[3,7] mode=linear",
    "interpolate_grad f64[3,2,8,4] image=[5,3] size=[8,4] mode=cubic",
    "interpolate_grad f64[3,2,7] image=[3] size=[7] mode=nearest",
    "channel_sums f64[3,5,2,3]",
    "channel_sums f64[3,5]",
    "channel_sums f64[3,5,4] f64[3,5,4]",
    "channel_sums f64[3,3,5,4] f64[3,3,5,4]",
    "channel_sums f64[4,5,3] groups=2",
    "channel_sums f64[4,5] f64[4,5] groups=4",
    "channel_affine f64[3,5,2,3] f64[5] f64[5]",
    "channel_affine f64[4,3,2] f64[2,3] f64[2,3]",
    "channel_affine f64[3,5,5,4] f64[5]",
    "channel_affine f64[3,5] f64[5] f64[5]",
    "channel_affine_pair f64[3,5,2] f64[5] f64[3,5,2] f64[5] f64[5]",
    "channel_affine_pair f64[3,2,5,4] f64[2] f64[3,2,5,4] f64[2]",
    "channel_affine_pair f64[4,3,2] f64[2,3] f64[4,3,2] f64[2,3] f64[2,3]",
    "batch_moments f64[5] f64[5] extents=[8,8]",
    "batch_moments f64[2,5] f64[2,5] extents=[64]",
    "batch_moments f64[5] f64[5] f64[5] f64[5] extents=[64] momentum=0.3",
    "reshape f64[3,8] shape=[3,2,4]",
    "reshape f64[3,2,4] shape=[3,8]",
    "reshape f64[6,4] shape=[4,6]",
    "reshape f64[1,5,3] shape=[5,1,3]",
    "stop_gradient f64[4,5]",
    "transpose f64[2,3,5] perm=[2,0,1]",
    "slice f64[6,3] dim=0 start=1 limit=4",
    "slice f64[3,6] dim=1 start=2 limit=5",
    "pad f64[3,5] dim=1 low=2 high=1",
    "concat f64[3,2] f64[3,1] f64[3,4] dim=1",
    "broadcast f64[3,5] shape=[3,2,5] dims=[0,2]",
    "broadcast f64[] shape=[3] dims=[]",
    "reduce_sum f64[3,4,5] dims=[0,2]",
    "reduce_max f64[3,4,5] dims=[1]",
    "rms_norm f64[2,3,5] f64[5] eps=1e-05",
    "rms_norm f64[5,5] f64[5] eps=1e-05",
    "rms_norm_grad f64[3,5] f64[3,5] f64[5] f64[3]",
    "rms_norm_grad f64[3,5] f64[3,5] f64[5] f64[3] copy=bf16",
    "rms_norm_grad f64[3,5] bf16[3,5] f64[5] f64[3] dx=f64",
    "add_rms_norm f64[2,3,5] f64[2,3,5] f64[5] eps=1e-05",
    "rms_norm_grad_accumulate f64[3,5] f64[3,5] f64[3,5] f64[5] f64[3]",
    "layer_norm f64[3,5] eps=1e-05",
    "layer_norm f64[3,5] f64[5] eps=1e-05",
    "layer_norm f64[3,2,5] f64[5] f64[5] eps=1e-05",
    "layer_norm_grad f64[3,5] f64[3,5] f64[3] f64[3] affine=none",
    "layer_norm_grad f64[3,5] f64[3,5] f64[3] f64[3] f64[5] affine=weight",
    "layer_norm_grad f64[3,5] f64[3,5] f64[3] f64[3] f64[5] affine=weight_bias",
    "add_layer_norm f64[3,5] f64[3,5] eps=1e-05",
    "add_layer_norm f64[3,2,5] f64[3,2,5] f64[5] f64[5] eps=1e-05",
    "layer_norm_grad_accumulate f64[3,5] f64[3,5] f64[3,5] f64[3] f64[3] affine=none",
    "layer_norm_grad_accumulate f64[3,5] f64[3,5] f64[3,5] f64[3] f64[3] f64[5] affine=weight_bias",
    "layer_norm_grad_accumulate f64[3,5] f64[3,5] f64[3,5] f64[3] f64[3] f64[5] affine=weight copy=bf16",
    "layer_norm_grad_accumulate f64[3,5] f64[3,5] bf16[3,5] f64[3] f64[3] f64[5] affine=weight copy=bf16 dx=f64",
    "l2_normalize f64[3,5] eps=1e-12",
    "l2_normalize f64[3,5] eps=10.0",
    "l2_normalize_grad f64[3,5] f64[3,5] f64[3] eps=1e-12",
    "rope_table inv_freq=[1.0,0.1,0.01] length=5 attention_scale=1.5 dtype=f64",
    "rope_table inv_freq=[1.0,0.1] length=12 zigzag=3 dtype=f64",
    "rope_table i32[3,5] inv_freq=[1.0,0.1] length=5 dtype=f64",
    "positions length=5",
    "positions i32[3,8] length=8 zigzag=2",
    "rotary f64[3,5,2,6] f64[3,5,3] f64[3,5,3] style=half",
    "rotary f64[3,5,2,6] f64[5,3] f64[5,3] style=half",
    "rotary f64[3,5,2,6] f64[5,2] f64[5,2] style=interleaved inverse=true",
    "rotary f64[3,5,4,6] f64[5,3] f64[5,3] style=half limit=3 parts=4",
    "attention_joined f64[2,4,8,2] causal=true scale=0.7 group=2",
    "attention_joined f64[2,4,4,3] i32[2,4] causal=true scale=0.7 group=2 alibi_slopes=[0.5,0.25]",
    "attention_joined_grad f64[2,4,4,2] f64[2,4,8,2] f64[2,4,4,2] f64[2,4,4] causal=true scale=0.7 group=2",
    "attention f64[3,5,3,2] f64[3,5,3,2] f64[3,5,3,2] causal=true scale=0.7",
    "attention f64[1,4,4,3] f64[1,4,2,3] f64[1,4,2,3] causal=true scale=0.7 alibi_slopes=[0.5,0.25,0.1,0.3]",
    "attention f64[2,3,2,2] f64[2,4,2,2] f64[2,4,2,2] causal=false scale=0.7",
    "attention f64[2,3,4,3] f64[2,3,2,3] f64[2,3,2,2] causal=true scale=0.7",
    "attention f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,3] causal=true scale=0.7 zigzag=2",
    "attention f64[2,3,2,2] f64[2,4,2,2] f64[2,4,2,2] f64[2] causal=false scale=0.7 sinks=true",
    "attention f64[2,5,4,2] f64[2,5,2,2] f64[2,5,2,2] f64[4] causal=true scale=0.7 sinks=true",
    "attention f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2] i32[2,8] causal=true scale=0.7 sinks=true zigzag=2",
    "attention_joined f64[2,4,8,2] f64[4] i32[2,4] causal=true scale=0.7 group=2 sinks=true",
    "attention f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] causal=true scale=0.7 window=3 zigzag=2",
    "attention f64[2,5,2,2] f64[2,5,2,2] f64[2,5,2,2] i32[2,5] causal=true scale=0.7 window=2 softcap=0.6 "
    "alibi_slopes=[0.5,0.25]",
    "attention f64[3,8,4,2] f64[3,8,2,2] f64[3,8,2,2] i64[] i64[3] causal=true scale=0.7 dropout=0.4 dropout_key=3 "
    "dropout_seed=42 zigzag=2",
    "attention_joined f64[2,4,8,2] f64[4] i64[] i64[2] i32[2,4] causal=true scale=0.7 group=2 sinks=true window=2 "
    "dropout=0.4 dropout_key=1 dropout_seed=7 softcap=1.5",
    "attention_continue f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] i64[] i64[2] causal=true "
    "scale=0.7 block=2 shift=1 zigzag=4 window=4 softcap=0.9 dropout=0.2 dropout_key=5 dropout_seed=42",
    "attention_joined_grad f64[2,4,4,2] f64[2,4,8,2] f64[2,4,4,2] f64[2,4,4] i64[] i64[2] causal=true scale=0.7 "
    "group=2 window=2 softcap=0.8 dropout=0.3 dropout_key=2 dropout_seed=42",
    "attention_grad f64[2,8,2,2] f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] i64[] i64[2] i32[2,8] "
    "causal=true scale=0.7 zigzag=4 block=2 shift=2 window=5 softcap=0.8 dropout=0.3 dropout_key=2 dropout_seed=42",
    "attention f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f32[2,5] causal=false scale=0.7 softcap=0.8 key_bias=true",
    "attention f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2] i64[] i64[2] f32[2,8] i32[2,8] causal=true scale=0.7 "
    "sinks=true dropout=0.3 dropout_key=2 dropout_seed=42 key_bias=true zigzag=2 block=4 alibi_slopes=[0.5,0.25]",
    "attention_joined f64[2,4,8,2] f32[2,4] causal=false scale=0.7 group=2 key_bias=true",
    "attention_joined_grad f64[2,4,4,2] f64[2,4,8,2] f64[2,4,4,2] f64[2,4,4] f32[2,4] causal=false scale=0.7 group=2 "
    "key_bias=true",
    "attention_continue f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] f32[2,8] causal=false scale=0.7 "
    "key_bias=true block=2 shift=1 zigzag=4",
    "attention_grad f64[2,8,2,2] f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] f32[2,8] i32[2,8] "
    "causal=true scale=0.7 key_bias=true zigzag=4 block=2 shift=2",
    "attention f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f64[1,4,3,5] causal=false scale=0.7 softcap=0.8 bias=true",
    "attention f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] i64[] i64[2] f32[2,5] f64[2,1,3,5] causal=false scale=0.7 "
    "dropout=0.3 dropout_key=2 dropout_seed=42 key_bias=true bias=true",
    "attention f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,2,8,8] i32[2,8] causal=true scale=0.7 bias=true zigzag=2",
    "attention f64[2,3,2,2] f64[2,3,2,2] f64[2,3,2,2] f64[1,1,3,3] causal=true scale=0.7 window=2 bias=true",
    "attention_joined f64[2,4,8,2] f64[1,4,4,4] causal=false scale=0.7 group=2 bias=true",
    "attention_joined_grad f64[2,4,4,2] f64[2,4,8,2] f64[2,4,4,2] f64[2,4,4] f64[2,1,4,4] causal=false scale=0.7 "
    "group=2 bias=true",
    "attention_grad f64[2,3,2,3] f64[2,3,2,2] f64[2,5,1,2] f64[2,5,1,3] f64[2,3,2,3] f64[2,2,3] f64[2,2,3,5] "
    "causal=false scale=0.7 bias=true",
    "attention_bias_grad f64[2,3,2,3] f64[2,3,2,2] f64[2,5,1,2] f64[2,5,1,3] f64[2,3,2,3] f64[2,2,3] f32[2,5] "
    "f64[1,2,3,5] causal=false scale=0.7 softcap=0.9 key_bias=true bias=true bias_yields=true",
    "attention_bias_grad f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2,2,8] i64[] i64[2] "
    "f64[2,1,8,8] i32[2,8] causal=true scale=0.7 bias=true zigzag=4 dropout=0.3 dropout_key=2 dropout_seed=42",
    "attention f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] causal=true scale=0.7 zigzag=2",
    "attention f64[2,5,2,2] f64[2,5,2,2] f64[2,5,2,2] i32[2,5] causal=true scale=0.7",
    "attention f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] i32[2,8] causal=true scale=0.7 zigzag=2 block=4 "
    "alibi_slopes=[0.5,0.25]",
    "attention f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] causal=false scale=0.7 block=2",
    "attention_continue f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] causal=true scale=0.7 "
    "block=2 shift=3 zigzag=4",
    "attention_continue f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2,8,2,2] f64[2,2,8] i32[2,8] causal=true "
    "scale=0.7 block=2 shift=1 alibi_slopes=[0.5,0.25]",
    "attention_grad f64[2,8,2,2] f64[2,8,2,2] f64[2,8,1,2] f64[2,8,1,2] f64[2,8,2,2] f64[2,2,8] i32[2,8] "
    "causal=true scale=0.7 zigzag=4 block=2 shift=2",
    "attention_grad f64[2,5,2,2] f64[2,5,2,2] f64[2,5,2,2] f64[2,5,2,2] f64[2,5,2,2] f64[2,2,5] i32[2,5] "
    "causal=true scale=0.7",
    "attention_grad f64[3,5,3,2] f64[3,5,3,2] f64[3,5,3,2] f64[3,5,3,2] f64[3,5,3,2] f64[3,3,5] causal=true "
    "scale=0.7",
    "attention_grad f64[1,4,4,3] f64[1,4,4,3] f64[1,4,2,3] f64[1,4,2,3] f64[1,4,4,3] f64[1,4,4] causal=true "
    "scale=0.7 alibi_slopes=[0.5,0.25,0.1,0.3]",
    "embedding f64[7,5] i32[3,4]",
    "embedding_grad f64[3,4,5] i32[3,4] vocab_size=7",
    "softmax f64[3,5]",
    "softmax_grad f64[3,5] f64[3,5]",
    "top_k f64[3,2,5] k=2",
    "top_k f64[3,5] k=3 normalize=true",
    "top_k f64[3,2,6] f64[3,2,6] k=2 groups=3 kept_groups=2 summed=2",
    "top_k f64[4,8] k=2 groups=4 kept_groups=1 normalize=true",
    "top_k_grad f64[3,2] f64[3,5] i32[3,2]",
    "top_k_grad f64[3,2,2] f64[3,2,5] i32[3,2,2] normalize=true",
    "expert_counts i32[3,4,2] num_experts=6 dtype=f64",
    "expert_counts i32[3,4,2] num_experts=6 per_sample=true dtype=f64",
    "expert_matmul f64[3,3,5] i32[3,3,2] f64[4,6,5] num_experts=4",
    "expert_matmul f64[3,3,2,5] i32[3,3,2] f64[4,6,5] num_experts=4 sum_slots=true",
    "expert_matmul f64[3,2,6] i32[3,2] f64[6,6,5] num_experts=6 transposed=true",
    "expert_matmul f64[3,3,5] i32[3,3,2] f64[4,5,6] num_experts=4 transposed=true",
    "expert_matmul f64[3,3,1] i32[3,3,2] f64[4,6,1] num_experts=4",
    "expert_matmul f64[3,2,1] i32[3,2] f64[4,6,1] num_experts=4 sum_slots=true",
    "expert_matmul f64[3,6] i32[3,4] f64[6,6,5] num_experts=6 transposed=true sum_slots=true",
    "expert_matmul_grad f64[3,3,5] f64[3,3,2,6] i32[3,3,2] num_experts=4",
    "expert_matmul_grad f64[3,2,5] f64[3,3] i32[3,2] num_experts=6",
    "expert_matmul f64[2,3,4,2,5] i32[2,3,4,2] f64[8,6,5] num_experts=8 ranges_dim=2 fill=0.5",
    "expert_matmul f64[3,4,2,5] i32[3,4,2] f64[4,5,6] num_experts=4 ranges_dim=1 fill=0.5 transposed=true",
    "expert_matmul_grad f64[2,3,4,2,5] f64[2,3,4,2,6] i32[2,3,4,2] num_experts=8 ranges_dim=2 fill=0.5",
    "dispatch_slots i32[4,8,2] groups=4 destinations=2 capacity=3 num_experts=6",
    "dispatch_slots i32[2,3,3] groups=1 destinations=3 capacity=2 num_experts=6",
    "dispatch f64[4,8,3] i32[4,8,2] groups=4 destinations=2 capacity=3",
    "dispatch f64[2,3,3,5] i32[2,3,3] groups=1 destinations=3 capacity=2",
    "combine f64[4,4,2,3,3] i32[4,8,2] sum_slots=true",
    "combine f64[2,1,3,2,5] i32[2,3,3]",
    "mul_rows f64[3,2,5] f64[3,2]",
    "dot_rows f64[3,2,5] f64[3,2,5]",
    "cross_entropy f64[4,3,7] i32[4,3]",
    "cross_entropy_grad f64[3,4,7] i32[3,4] f64[3,4] f64[]",
    "logsumexp f64[3,2,7] parts=1",
    "logsumexp f64[3,2,7] parts=2",
    "logsumexp f64[3,2,7] parts=4",
    "cross_entropy_sum f64[4,4,7] i32[4,4] f64[4,4]",
    "dropout f64[3,4,5] i64[] i64[3] rate=0.4 key=3 seed=42",
    "dropout f64[2,8,3] i64[] i64[2] rate=0.4 key=3 seed=42 zigzag=2",
    "random i64[] i64[3] distribution=uniform dtype=f64 shape=[3,4,5] key=3 seed=42",
    "random i64[] i64[2] distribution=normal dtype=f64 shape=[2,8,3] key=3 seed=42 sequence=true zigzag=2",
    "adamw f64[3,5] f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] beta1=0.9 beta2=0.99 epsilon=1e-08 "
    "weight_decay=0.1 copy=bf16",
    "adam f64[3,5] f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] beta1=0.9 beta2=0.99 epsilon=1e-08 "
    "weight_decay=0.1",
    "lion f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] beta1=0.9 beta2=0.99 weight_decay=0.1 copy=bf16",
    "adamw f64[3,5] f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] f64[] beta1=0.9 beta2=0.99 epsilon=1e-08 "
    "weight_decay=0.1",
    "lion f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] f64[] beta1=0.9 beta2=0.99 weight_decay=0.1 copy=bf16",
    "moving_average f64[3,5] f64[3,5] f64[] f64[] f64[] f64[]",
    "sgd f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] weight_decay=0.1",
    "sgd f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] momentum=0.9 dampening=0.1 nesterov=true weight_decay=0.1",
    "sgd f64[3,5] f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] f64[] momentum=0.9 nesterov=true weight_decay=0.1",
    "lr_schedule i64[] type=cosine learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1",
    "lr_schedule i64[] type=cosine_with_restarts learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1 "
    "num_cycles=3.0",
    "lr_schedule i64[] type=polynomial learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.1 power=2.0",
    "lr_schedule i64[] type=inverse_sqrt learning_rate=0.1 warmup_steps=2 max_steps=9 min_lr_ratio=0.0 timescale=7",
    "lr_schedule i64[] type=warmup_stable_decay learning_rate=0.1 warmup_steps=1 max_steps=5 min_lr_ratio=0.1 "
    "decay_steps=4 decay_type=\"1-sqrt\"",
    "lr_schedule i64[] type=table learning_rate=0.1 warmup_steps=0 max_steps=9 min_lr_ratio=0.0 "
    "factors=[1.0,0.5,0.25,0.75]",
    "newton_schulz f64[2,3,5] stored=[2,3,5] steps=5",
    "square_sums f64[3,5] f64[] stored=[3,5] epsilon=0.01",
    "square_sums f64[4,2,3] f64[] stored=[8,3] epsilon=0.01",
    "square_sums f64[12,2] f64[] stored=[2,4,3] epsilon=0.01",
    "square_sums f64[7] f64[] stored=[7] epsilon=0.01",
    "adafactor_squares f64[3,5] f64[] f64[3] f64[5] stored=[3,5]",
    "adafactor_squares f64[4,2,3] f64[] f64[4] f64[6] stored=[4,6]",
    "adafactor_squares f64[2,4,3] f64[] f64[2,4] f64[2,3] stored=[2,4,3]",
    "adafactor_squares f64[3,2] f64[] f64[6] stored=[6]",
    "adafactor f64[3,5] f64[3,5] f64[] f64[] f64[] f64[] f64[3] f64[5] stored=[3,5] clip_threshold=0.1 "
    "weight_decay=0.1",
    "adafactor f64[6,4] f64[6,4] f64[] f64[] f64[] f64[] f64[2,4] f64[2,3] stored=[2,4,3] clip_threshold=1.0 "
    "weight_decay=0.0 copy=bf16",
    "adafactor f64[6] f64[6] f64[] f64[] f64[] f64[] f64[6] stored=[6] clip_threshold=1.0 weight_decay=0.1",
    "newton_schulz f64[4,2,3] stored=[4,6] steps=2",
    "newton_schulz f64[7,3] stored=[7,3] steps=5",
    "aten f64[3,5] schema=\"aten::cumsum.default\" args=[\"%0\",\"#0\"] ints=[1] result_dtypes=[f64] result_ranks=[2] "
    "result_dims=[3,5]",
    "aten f64[3,4,5] schema=\"aten::cumprod.default\" args=[\"%0\",\"#0\"] ints=[-2] result_dtypes=[f64] "
    "result_ranks=[3] result_dims=[3,4,5]",
    "aten f64[3,5] schema=\"aten::sort.default\" args=[\"%0\"] result_dtypes=[f64,i64] result_ranks=[2,2] "
    "result_dims=[3,5,3,5]",
    "aten f64[5,3] schema=\"aten::topk.default\" args=[\"%0\",\"#0\",\"#1\"] ints=[2,0] result_dtypes=[f64,i64] "
    "result_ranks=[2,2] result_dims=[2,3,2,3]",
    "aten_vjp f64[3,5] f64[3,5] schema=\"aten::cumsum.default\" args=[\"%0\",\"#0\"] ints=[1] result_dtypes=[f64] "
    "result_ranks=[2] result_dims=[3,5] operands=1 needed=[0] given=[0]",
    "aten_vjp f64[3,5] f64[3,5] schema=\"aten::cumprod.default\" args=[\"%0\",\"#0\"] ints=[1] result_dtypes=[f64] "
    "result_ranks=[2] result_dims=[3,5] operands=1 needed=[0] given=[0]",
    "aten_vjp f64[3,5] f64[3,5] schema=\"aten::sort.default\" args=[\"%0\",\"#0\",\"true\"] ints=[1] "
    "result_dtypes=[f64,i64] result_ranks=[2,2] result_dims=[3,5,3,5] operands=1 needed=[0] given=[0]",
    "aten_vjp f64[3,5] f64[3,2] schema=\"aten::topk.default\" args=[\"%0\",\"#0\"] ints=[2] result_dtypes=[f64,i64] "
    "result_ranks=[2,2] result_dims=[3,2,3,2] operands=1 needed=[0] given=[0]",
    "aten f64[3,5] schema=\"aten::logcumsumexp.default\" args=[\"%0\",\"#0\"] ints=[1] result_dtypes=[f64] "
    "result_ranks=[2] result_dims=[3,5]",
    "aten f64[5,3] schema=\"aten::cummax.default\" args=[\"%0\",\"#0\"] ints=[0] result_dtypes=[f64,i64] "
    "result_ranks=[2,2] result_dims=[5,3,5,3]",
    "aten f64[3,5] schema=\"aten::cummin.default\" args=[\"%0\",\"#0\"] ints=[1] result_dtypes=[f64,i64] "
    "result_ranks=[2,2] result_dims=[3,5,3,5]",
    "aten_vjp f64[3,5] f64[3,5] schema=\"aten::logcumsumexp.default\" args=[\"%0\",\"#0\"] ints=[1] "
    "result_dtypes=[f64] result_ranks=[2] result_dims=[3,5] operands=1 needed=[0] given=[0]",
    "aten_vjp f64[3,5] f64[3,5] schema=\"aten::cummax.default\" args=[\"%0\",\"#0\"] ints=[1] "
    "result_dtypes=[f64,i64] result_ranks=[2,2] result_dims=[3,5,3,5] operands=1 needed=[0] given=[0]",
    "aten_vjp f64[5,3] f64[5,3] schema=\"aten::cummin.default\" args=[\"%0\",\"#0\"] ints=[0] "
    "result_dtypes=[f64,i64] result_ranks=[2,2] result_dims=[5,3,5,3] operands=1 needed=[0] given=[0]",
    "constant value=1.5 dtype=f64 shape=[3,5]",
    "iota dim=1 dtype=i64 shape=[3,5]",
};

std::vector<std::string> OpCaseTexts() {
  std::vector<std::string> texts;
  for (const char* op : {"add", "sub", "mul", "div", "maximum", "minimum"}) {
    for (const char* operands : {"f64[3,5] f64[3,5]", "f64[3,2,5] f64[5]", "f64[3,5] f64[]"}) {
      texts.push_back(absl::StrCat(op, " ", operands));
    }
  }
  for (const char* op : {"neg", "exp", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos", "tanh",
                         "sigmoid", "relu", "silu", "sum_squares", "is_finite"}) {
    texts.push_back(absl::StrCat(op, " f64[3,5]"));
  }
  for (const char* op : {"tanh_grad", "sigmoid_grad", "relu_grad", "silu_grad"}) {
    texts.push_back(absl::StrCat(op, " f64[3,5] f64[3,5]"));
  }
  for (const char* text : kTexts) {
    texts.push_back(text);
  }
  return texts;
}

namespace {

// An expert of the range that slot k of ids may have, or none.
double IdOfRange(const Node& node, const TensorType& ids, int64_t k, interpreter::Random& random) {
  const int64_t dim = GetAttr<int64_t>(node.attrs, "ranges_dim");
  int64_t stride = 1;
  for (int64_t d = dim + 1; d < ids.rank(); ++d) stride *= ids.dims[d];
  const int64_t size = GetAttr<int64_t>(node.attrs, "num_experts") / ids.dims[dim];
  if (random() % 4 == 0) return -1;
  return static_cast<double>(k / stride % ids.dims[dim] * size + static_cast<int64_t>(random() % size));
}

}  // namespace

interpreter::Arrays RandomLeaves(const OpCase& op_case, interpreter::Random& random) {
  static const std::set<std::string> kPositive = {"log",   "log1p",      "pow",       "sqrt",
                                                  "rsqrt", "reciprocal", "div",       "batch_moments",
                                                  "adam",  "adamw",      "adafactor", "adafactor_squares",
                                                  "top_k", "top_k_grad"};
  const std::optional<AttentionOperands> attention =
      AttentionOperandsOf(op_case.op_node().op.name(), op_case.op_node().attrs, op_case.op_node().operands.size());
  static const std::set<std::string> kPositional = {"attention",      "attention_bias_grad", "attention_continue",
                                                    "attention_grad", "attention_joined",    "positions",
                                                    "rope_table"};
  const Node& node = op_case.op_node();
  std::normal_distribution<double> normal;
  interpreter::Arrays leaves;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const TensorType& type = op_case.graph.type(node.operands[i]);
    interpreter::Array array = interpreter::Array::Filled(type.dims, 0);
    for (int64_t k = 0; k < array.size(); ++k) {
      double& x = array.values[k];
      if (type.dtype == DType::kI32) {
        x = static_cast<double>(random() % 7);
        if (absl::StartsWith(node.op, "top_k")) x = static_cast<double>(k % 2 == 0 ? random() % 3 : 3 + random() % 2);
        if (node.attrs.count("ranges_dim") > 0) x = IdOfRange(node, type, k, random);
        if (node.op == "dispatch" || node.op == "combine") x = static_cast<double>(5 * k % 11);  // a place for one slot
        if (absl::StartsWith(node.op, "cross_entropy") && random() % 4 == 0) x = -1;             // not counted
        if (kPositional.count(std::string(node.op.name())) > 0) {  // the start of a document, not behind its token
          const int64_t extent = type.dims.back();
          const SequenceOrder order{extent, GetAttr<int64_t>(node.attrs, "zigzag")};
          x = std::min(x, static_cast<double>(order.PositionOf(k % extent)));
        }
      } else if (type.dtype == DType::kBool) {
        x = static_cast<double>(random() % 2);
      } else if (node.op == "gather" || node.op == "scatter_add") {
        const int64_t dim = GetAttr<int64_t>(node.attrs, "dim");
        const int64_t extent = GetAttr<int64_t>(node.attrs, "extent", op_case.graph.type(node.operands[0]).dims[dim]);
        x = type.dtype == DType::kI64 ? static_cast<double>(random() % extent) : normal(random);
      } else if (type.dtype == DType::kI64) {
        x = static_cast<double>(type.rank() == 0 ? 3 : 10 + k);
      } else if (attention.has_value() && (attention->key_bias == static_cast<int>(i) ||
                                           (attention->bias == static_cast<int>(i) && attention->is_gradient))) {
        x = k % 3 == 1 ? -INFINITY : normal(random);  // some keys are hidden
      } else {
        x = kPositive.count(std::string(node.op.name())) > 0 ? 0.5 + std::abs(normal(random)) : normal(random);
      }
    }
    leaves[absl::StrCat("a", i)] = std::move(array);
  }
  return leaves;
}

}  // namespace tacc::graph
