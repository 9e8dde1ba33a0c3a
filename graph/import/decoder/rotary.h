#ifndef TACC_GRAPH_IMPORT_DECODER_ROTARY_H_
#define TACC_GRAPH_IMPORT_DECODER_ROTARY_H_

#include <map>
#include <string>
#include <vector>

namespace tacc::graph {

// The facts of a rotary embedding: the frequency of each pair of dims, in fp32 precision, and the factor on cosine and
// sine. Dims of a head beyond the pairs are not rotated.
struct Rotary {
  std::vector<double> inv_freq;  // one a pair
  double attention_scale = 1.0;
  double score_scale = 1.0;  // of yarn with mscale_all_dim, which DeepSeek's attention multiplies scores with
  enum Pairs { kHalves, kNeighbours } pairs = kHalves;  // dims i and i + n of 2n, or 2i and 2i + 1
  bool any_length = false;                              // stretched to the samples' length
  std::map<std::string, std::string> facts;             // what all this was computed from, for ModelFacts
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_DECODER_ROTARY_H_
