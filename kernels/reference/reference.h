// The kernels written to be read: double precision, one loop per index, no threads. They define what the fast kernels
// in kernels/cpu (and later kernels/cuda) must compute; tests compare. Shapes as in the headers of kernels/cpu.
#ifndef TACC_KERNELS_REFERENCE_REFERENCE_H_
#define TACC_KERNELS_REFERENCE_REFERENCE_H_

#include <functional>
#include <string>
#include <vector>

#include "kernels/contract/optimizer.h"
#include "kernels/reference/tensor.h"

namespace tacc::kernels::reference {

double Sigmoid(double x);
double Silu(double x);
double Gelu(double x);
double GeluTanh(double x);
// (f(x + h) - f(x - h)) / 2h, with an error of about 1e-9.
double Derivative(const std::function<double(double)>& f, double x);

Tensor Einsum(const std::string& spec, const Tensor& a, const Tensor& b);

// Element i of y is x at the index that `index(i's index)` gives.
Tensor Gather(const Tensor& x, const Dims& dims,
              const std::function<std::vector<int64_t>(const std::vector<int64_t>&)>& index);
Tensor ReduceSum(const Tensor& x, const std::vector<int>& dims);
Tensor ReduceMax(const Tensor& x, const std::vector<int>& dims);

struct NormResult {
  Tensor y, mean, rstd;
};
struct NormGradient {
  Tensor dx, dw, db;
};
NormResult RmsNorm(const Tensor& x, const Tensor& w, double eps);
NormGradient RmsNormGrad(const Tensor& dy, const Tensor& x, const Tensor& w, double eps);
NormResult LayerNorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps);
NormGradient LayerNormGrad(const Tensor& dy, const Tensor& x, const Tensor& w, double eps);
NormResult L2Normalize(const Tensor& x, double eps);
NormGradient L2NormalizeGrad(const Tensor& dy, const Tensor& x, double eps);

// x [B,S,H,D]; cos, sin [S,R/2].
Tensor Rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& style, double sign);

struct AttentionResult {
  Tensor out, lse;
};
struct AttentionGradient {
  Tensor dq, dk, dv;
  Tensor dbias;  // [B,H,S,T]
};
// What scores and probabilities go through beside scale and slopes.
struct AttentionShape {
  int64_t window = 0;  // 0: none
  double softcap = 0;  // 0: none
  // Added to all scores of key j of batch b, which are 0 where it is infinity; empty: 0.
  std::function<double(int64_t b, int64_t j)> key_bias = nullptr;
  // The same of a score. -inf of either hides the key.
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> bias = nullptr;
  bool bias_yields = false;  // it has no derivative where it, or that of the key, is infinity
  // What the probability of batch b, head h, query i and key j is multiplied with; empty: 1.
  std::function<double(int64_t b, int64_t h, int64_t i, int64_t j)> kept = nullptr;
};
AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
                          const std::vector<double>& slopes, const AttentionShape& shape = {});
AttentionGradient AttentionGrad(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                double scale, const std::vector<double>& slopes, const AttentionShape& shape = {});

Tensor Embedding(const Tensor& table, const std::vector<int32_t>& ids, int64_t offset);
Tensor EmbeddingGrad(const Tensor& dy, const std::vector<int32_t>& ids, int64_t offset, const Dims& table);

struct CrossEntropyResult {
  double loss = 0, count = 0;
  Tensor lse;
};
CrossEntropyResult CrossEntropy(const Tensor& logits, const std::vector<int32_t>& targets, int64_t offset);
Tensor CrossEntropyGrad(const Tensor& logits, const std::vector<int32_t>& targets, const Tensor& lse, double dloss,
                        int64_t offset);

// A weight with the states of its optimizer; one that it does not have stays as it is.
struct WeightState {
  Tensor w, m, v;
};
WeightState Update(const WeightState& state, const Tensor& g, double learning_rate, double grad_scale, double count,
                   const UpdateParameters& parameters);

// One word of Philox4x32-10.
uint32_t Philox(const uint32_t counter[4], const uint32_t key[2], int word);

}  // namespace tacc::kernels::reference

#endif  // TACC_KERNELS_REFERENCE_REFERENCE_H_
