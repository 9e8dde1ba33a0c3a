#ifndef TACC_GRAPH_PASSES_TESTING_TEST_MODEL_H_
#define TACC_GRAPH_PASSES_TESTING_TEST_MODEL_H_

#include <string>

namespace tacc::graph {

// A decoder for tests of passes: norms, rotary attention with grouped heads, SwiGLU, untied head. Dims are
// odd where they may be. Symbols: B rows, S tokens a row.
inline std::string TestModelText(int num_layers = 2) {
  std::string text = R"TEXT(tacc.graph 1
%tokens = input "tokens" : i32[B,S]
%targets = input "targets" : i32[B,S]
%cos, %sin = rope_table attention_scale=1.0 inv_freq=[1.0] length=S : f32[S,1], f32[S,1]
%table = param "embed.weight" axes=[vocab,embed] init="normal(0.5)" : f32[13,8]
%h0 = embedding %table, %tokens : f32[B,S,8] @embed
)TEXT";
  for (int i = 0; i < num_layers; ++i) {
    std::string layer = R"TEXT(%nw$ = param "layers.$.norm.weight" axes=[embed] init=ones : f32[8] @layers.$.norm
%n$, %r$ = rms_norm %h$, %nw$ eps=1e-05 : f32[B,S,8], f32[B,S] @layers.$.norm
%wq$ = param "layers.$.q.weight" axes=[heads,head_dim,embed] init="normal(0.5)" stored=[8,8] : f32[4,2,8] @layers.$.attn
%q$ = einsum %n$, %wq$ spec="bsk,hdk->bshd" : f32[B,S,4,2] @layers.$.attn
%wk$ = param "layers.$.k.weight" axes=[kv_heads,head_dim,embed] init="normal(0.5)" stored=[4,8] : f32[2,2,8] @layers.$.attn
%k$ = einsum %n$, %wk$ spec="bsk,hdk->bshd" : f32[B,S,2,2] @layers.$.attn
%wv$ = param "layers.$.v.weight" axes=[kv_heads,head_dim,embed] init="normal(0.5)" stored=[4,8] : f32[2,2,8] @layers.$.attn
%v$ = einsum %n$, %wv$ spec="bsk,hdk->bshd" : f32[B,S,2,2] @layers.$.attn
%qr$ = rotary %q$, %cos, %sin style=half : f32[B,S,4,2] @layers.$.attn
%kr$ = rotary %k$, %cos, %sin style=half : f32[B,S,2,2] @layers.$.attn
%a$, %l$ = attention %qr$, %kr$, %v$ causal=true scale=0.5 : f32[B,S,4,2], f32[B,4,S] @layers.$.attn
%wo$ = param "layers.$.o.weight" axes=[embed,heads,head_dim] init="normal(0.5)" stored=[8,8] : f32[8,4,2] @layers.$.attn
%o$ = einsum %a$, %wo$ spec="bshd,khd->bsk" : f32[B,S,8] @layers.$.attn
%x$ = add %h$, %o$ : f32[B,S,8] @layers.$
%wg$ = param "layers.$.gate.weight" axes=[mlp,embed] init="normal(0.5)" : f32[7,8] @layers.$.mlp
%g$ = einsum %x$, %wg$ spec="bsk,nk->bsn" : f32[B,S,7] @layers.$.mlp
%wu$ = param "layers.$.up.weight" axes=[mlp,embed] init="normal(0.5)" : f32[7,8] @layers.$.mlp
%u$ = einsum %x$, %wu$ spec="bsk,nk->bsn" : f32[B,S,7] @layers.$.mlp
%s$ = swiglu %g$, %u$ : f32[B,S,7] @layers.$.mlp
%wd$ = param "layers.$.down.weight" axes=[embed,mlp] init="normal(0.5)" : f32[8,7] @layers.$.mlp
%d$ = einsum %s$, %wd$ spec="bsn,kn->bsk" : f32[B,S,8] @layers.$.mlp
%h+ = add %x$, %d$ : f32[B,S,8] @layers.$
)TEXT";
    for (char c : layer) {
      if (c == '$') {
        text += std::to_string(i);
      } else if (c == '+') {
        text += std::to_string(i + 1);
      } else {
        text += c;
      }
    }
  }
  text += R"TEXT(%wh = param "head.weight" axes=[vocab,embed] init="normal(0.5)" : f32[13,8]
)TEXT";
  return text + "%logits = einsum %h" + std::to_string(num_layers) + R"TEXT(, %wh spec="bsk,vk->bsv" : f32[B,S,13] @head
%loss, %count, %lse = cross_entropy %logits, %targets : f32[], f32[], f32[B,S]
output "loss" %loss
output "target_tokens" %count
)TEXT";
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TESTING_TEST_MODEL_H_
