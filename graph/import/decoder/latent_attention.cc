#include "graph/import/decoder/latent_attention.h"

#include <vector>

#include "absl/strings/str_cat.h"

namespace tacc::graph {

Qkv LatentAttentionBuilder::Build(const std::string& path, ValueId x, const std::function<ValueId(ValueId)>& rotate) {
  const DecoderNames& names = spec_.names;
  const LatentSpec& latent = *spec_.latent;
  const std::string& init = spec_.init.input;
  const WeightDim heads = Heads(), q_rank = {latent.q_rank, ""}, kv_rank = {latent.kv_rank, ""};
  ValueId q = kNoValue;
  if (latent.q_rank == 0) {
    q = Project(Join(path, names.q), "bsk,hdk->bshd", x, {heads, HeadDim()}, {Hidden()}, Bias::kNone, init);
  } else {
    q = Project(Join(path, names.q_a), "bsk,nk->bsn", x, {q_rank}, {Hidden()}, spec_.qkv_bias, init);
    q = Norm(Join(path, names.q_a_norm), latent.norm, q, q_rank);
    q = Project(Join(path, names.q_b), "bsk,hdk->bshd", q, {heads, HeadDim()}, {q_rank}, Bias::kNone, init);
  }
  // The latent, and behind it the keys' part with a position: rows of one matrix.
  const auto rows = [](int64_t begin, int64_t end) { return absl::StrCat("[", begin, ":", end, "]"); };
  ValueId kv = Project(Join(path, names.kv_a), "bsk,nk->bsn", x, {kv_rank}, {Hidden()}, spec_.qkv_bias, init,
                       rows(0, latent.kv_rank));
  const ValueId k_rope = Project(Join(path, names.kv_a), "bsk,hdk->bshd", x, {{1, ""}, {latent.rope, ""}}, {Hidden()},
                                 spec_.qkv_bias, init, rows(latent.kv_rank, latent.kv_rank + latent.rope));
  kv = Norm(Join(path, names.kv_a_norm), latent.norm, kv, kv_rank);
  kv = Project(Join(path, names.kv_b), "bsk,hdk->bshd", kv, {heads, {latent.nope + latent.value, ""}}, {kv_rank},
               Bias::kNone, init);

  b_.SetModule(Join(path, names.attention));
  const auto joined = [&](ValueId a, ValueId b) { return b_.Add("concat", {a, b}, {{"dim", int64_t{3}}}); };
  const ValueId q_rope = rotate(b_.Slice(q, 3, latent.nope, spec_.head_dim));
  const ValueId turned = rotate(k_rope);
  Dims shape = b_.type(turned).dims;
  if (shape.size() != 4) return {q, q, kv};  // there was an error
  const ValueId one = b_.Reshape(turned, {shape[0], shape[1], shape[3]});
  shape[2] = spec_.num_heads;
  const ValueId of_all = b_.Add("broadcast", {one}, {{"shape", shape}, {"dims", std::vector<int64_t>{0, 1, 3}}});
  return {joined(b_.Slice(q, 3, 0, latent.nope), q_rope), joined(b_.Slice(kv, 3, 0, latent.nope), of_all),
          b_.Slice(kv, 3, latent.nope, latent.nope + latent.value)};
}

}  // namespace tacc::graph
