// What the builders of a decoder's graph share: weights under their names in the files, and small pieces around them.
#ifndef TACC_GRAPH_IMPORT_DECODER_DECODER_PARTS_H_
#define TACC_GRAPH_IMPORT_DECODER_DECODER_PARTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/import/decoder/decoder.h"
#include "graph/ir/program.h"
#include "graph/ops/builder.h"

namespace tacc::graph {

// "a.b", or a where b is empty.
std::string Join(const std::string& a, const std::string& b);

// The module of a weight: its name without the last component.
std::string ModuleOf(const std::string& name);

// A dim of a weight: its extent, and what it is (State::axes); "" is nothing that a layout splits.
struct WeightDim {
  int64_t size;
  const char* axis;
};
using WeightDims = std::vector<WeightDim>;

// The heads of attention: q [B,S,H,D], k [B,S,K,D], v [B,S,K,V].
struct Qkv {
  ValueId q, k, v;
};

// Adds nodes to the builder's graph, which must outlive it, as must the spec.
class DecoderParts {
 public:
  DecoderParts(const DecoderSpec& spec, Builder& builder) : spec_(spec), b_(builder) {}

 protected:
  // A weight under its name in the files. `stored` is its shape there.
  ValueId Param(const std::string& name, const WeightDims& dims, const Dims& stored, const std::string& init,
                WeightRole role = WeightRole::kTrained);

  WeightDim Hidden() const { return {spec_.hidden_size, "embed"}; }
  WeightDim Heads() const { return {spec_.num_heads, "heads"}; }
  WeightDim HeadDim() const { return {spec_.head_dim, "head_dim"}; }
  WeightDim Inner() const { return {spec_.intermediate_size, "mlp"}; }
  WeightDim Vocabulary() const { return {spec_.vocab_rows, "vocab"}; }

  // x times the matrix NAME.weight, by `spec`; `out` are the dims it makes, `in` those it takes, both as the logical
  // weight has them. `rows`: "[BEGIN:END]" where it is only those rows of the stored matrix.
  ValueId Project(const std::string& name, const std::string& spec, ValueId x, const WeightDims& out,
                  const WeightDims& in, Bias bias, const std::string& init, const std::string& rows = "");

  // Over the last dim of x, which `dim` is.
  ValueId Norm(const std::string& name, const NormSpec& norm, ValueId x, const WeightDim& dim);

  ValueId Scaled(ValueId x, double factor) { return factor == 1.0 ? x : b_.Scale(x, factor); }
  // Entry `index` of the dim, which is dropped.
  ValueId Entry(ValueId x, int64_t dim, int64_t index);
  // The MLP's activation; with `up`, of a gate times up.
  ValueId Activate(ValueId x);
  ValueId Gate(ValueId gate, ValueId up);

  const DecoderSpec& spec_;
  Builder& b_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_DECODER_DECODER_PARTS_H_
