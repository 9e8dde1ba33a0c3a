#ifndef TACC_GRAPH_IMPORT_DECODER_LATENT_ATTENTION_H_
#define TACC_GRAPH_IMPORT_DECODER_LATENT_ATTENTION_H_

#include <functional>
#include <string>

#include "graph/import/decoder/decoder_parts.h"

namespace tacc::graph {

// Builds the heads of latent attention (LatentSpec).
class LatentAttentionBuilder : private DecoderParts {
 public:
  LatentAttentionBuilder(const DecoderSpec& spec, Builder& builder) : DecoderParts(spec, builder) {}

  // Of the tokens x [B,S,N] of a layer. `rotate` gives heads their positions.
  Qkv Build(const std::string& path, ValueId x, const std::function<ValueId(ValueId)>& rotate);
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_DECODER_LATENT_ATTENTION_H_
