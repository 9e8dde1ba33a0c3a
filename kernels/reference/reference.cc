#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tacc::kernels::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int64_t> IndexOf(const Dims& dims, int64_t i) {
  std::vector<int64_t> index(dims.rank());
  for (int d = dims.rank() - 1; d >= 0; --d) {
    index[d] = i % dims[d];
    i /= dims[d];
  }
  return index;
}

int64_t PositionOf(const Dims& dims, const std::vector<int64_t>& index) {
  int64_t position = 0;
  for (int d = 0; d < dims.rank(); ++d) position = position * dims[d] + index[d];
  return position;
}

Tensor Reduce(const Tensor& x, const std::vector<int>& dims, double identity,
              const std::function<double(double, double)>& combine) {
  Dims kept;
  for (int d = 0; d < x.dims.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) kept.push_back(x.dims[d]);
  }
  Tensor y(kept);
  std::fill(y.values.begin(), y.values.end(), identity);
  for (int64_t i = 0; i < x.size(); ++i) {
    const std::vector<int64_t> index = IndexOf(x.dims, i);
    std::vector<int64_t> target;
    for (int d = 0; d < x.dims.rank(); ++d) {
      if (std::find(dims.begin(), dims.end(), d) == dims.end()) target.push_back(index[d]);
    }
    double& value = y[PositionOf(kept, target)];
    value = combine(value, x[i]);
  }
  return y;
}

Dims RowDims(const Tensor& x) { return Dims(x.dims.begin(), x.dims.end() - 1); }

}  // namespace

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }
double Gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double GeluTanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double Derivative(const std::function<double(double)>& f, double x) {
  const double h = 1e-5 * std::max(1.0, std::fabs(x));
  return (f(x + h) - f(x - h)) / (2 * h);
}

Tensor Einsum(const std::string& spec, const Tensor& a, const Tensor& b) {
  const std::string left = spec.substr(0, spec.find(','));
  const std::string right = spec.substr(left.size() + 1, spec.find("->") - left.size() - 1);
  const std::string result = spec.substr(spec.find("->") + 2);
  std::map<char, int64_t> extents;
  for (size_t i = 0; i < left.size(); ++i) extents[left[i]] = a.dims[i];
  for (size_t i = 0; i < right.size(); ++i) extents[right[i]] = b.dims[i];
  std::string all = result;
  for (const auto& [letter, extent] : extents) {
    if (all.find(letter) == std::string::npos) all += letter;
  }
  Dims y_dims, all_dims;
  for (char letter : result) y_dims.push_back(extents[letter]);
  for (char letter : all) all_dims.push_back(extents[letter]);
  // Distance in a tensor between neighbours along each letter; 0 for a letter it lacks.
  const auto strides = [&](const std::string& letters) {
    std::vector<int64_t> result_strides(all.size(), 0);
    int64_t stride = 1;
    for (int i = static_cast<int>(letters.size()) - 1; i >= 0; --i) {
      result_strides[all.find(letters[i])] = stride;
      stride *= extents[letters[i]];
    }
    return result_strides;
  };
  const std::vector<int64_t> a_strides = strides(left), b_strides = strides(right), y_strides = strides(result);
  Tensor y(y_dims);
  for (int64_t i = 0; i < all_dims.Product(); ++i) {
    int64_t rest = i, ia = 0, ib = 0, iy = 0;
    for (int d = static_cast<int>(all.size()) - 1; d >= 0; --d) {
      const int64_t index = rest % all_dims[d];
      rest /= all_dims[d];
      ia += index * a_strides[d];
      ib += index * b_strides[d];
      iy += index * y_strides[d];
    }
    y[iy] += a[ia] * b[ib];
  }
  return y;
}

Tensor Gather(const Tensor& x, const Dims& dims,
              const std::function<std::vector<int64_t>(const std::vector<int64_t>&)>& index) {
  Tensor y(dims);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = x[PositionOf(x.dims, index(IndexOf(dims, i)))];
  return y;
}

Tensor ReduceSum(const Tensor& x, const std::vector<int>& dims) {
  return Reduce(x, dims, 0, [](double a, double b) { return a + b; });
}
Tensor ReduceMax(const Tensor& x, const std::vector<int>& dims) {
  return Reduce(x, dims, -kInfinity, [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
}

NormResult RmsNorm(const Tensor& x, const Tensor& w, double eps) {
  const int64_t n = x.row_length();
  NormResult result{Tensor(x.dims), Tensor(), Tensor(RowDims(x))};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[row * n + i] * x[row * n + i];
    const double rstd = 1 / std::sqrt(sum / n + eps);
    result.rstd[row] = rstd;
    for (int64_t i = 0; i < n; ++i) result.y[row * n + i] = x[row * n + i] * rstd * w[i];
  }
  return result;
}

NormGradient RmsNormGrad(const Tensor& dy, const Tensor& x, const Tensor& w, double eps) {
  const int64_t n = x.row_length();
  const Tensor rstd = RmsNorm(x, w, eps).rstd;
  NormGradient result{Tensor(x.dims), Tensor(w.dims), Tensor()};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double h = x[row * n + i] * rstd[row];
      mean += dy[row * n + i] * w[i] * h / n;
      result.dw[i] += dy[row * n + i] * h;
    }
    for (int64_t i = 0; i < n; ++i) {
      result.dx[row * n + i] = rstd[row] * (dy[row * n + i] * w[i] - x[row * n + i] * rstd[row] * mean);
    }
  }
  return result;
}

NormResult LayerNorm(const Tensor& x, const Tensor& w, const Tensor& b, double eps) {
  const int64_t n = x.row_length();
  NormResult result{Tensor(x.dims), Tensor(RowDims(x)), Tensor(RowDims(x))};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; ++i) mean += x[row * n + i] / n;
    for (int64_t i = 0; i < n; ++i) variance += (x[row * n + i] - mean) * (x[row * n + i] - mean) / n;
    const double rstd = 1 / std::sqrt(variance + eps);
    result.mean[row] = mean;
    result.rstd[row] = rstd;
    for (int64_t i = 0; i < n; ++i) {
      const double scale = w.dims.empty() ? 1 : w[i], shift = b.dims.empty() ? 0 : b[i];
      result.y[row * n + i] = (x[row * n + i] - mean) * rstd * scale + shift;
    }
  }
  return result;
}

NormGradient LayerNormGrad(const Tensor& dy, const Tensor& x, const Tensor& w, double eps) {
  const int64_t n = x.row_length();
  const NormResult forward = LayerNorm(x, Tensor(), Tensor(), eps);  // y is the normalised x
  NormGradient result{Tensor(x.dims), Tensor(Dims{n}), Tensor(Dims{n})};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double mean_g = 0, mean_gh = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double d = dy[row * n + i], h = forward.y[row * n + i], g = d * (w.dims.empty() ? 1 : w[i]);
      mean_g += g / n;
      mean_gh += g * h / n;
      result.dw[i] += d * h;
      result.db[i] += d;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double g = dy[row * n + i] * (w.dims.empty() ? 1 : w[i]);
      result.dx[row * n + i] = forward.rstd[row] * (g - mean_g - forward.y[row * n + i] * mean_gh);
    }
  }
  return result;
}

NormResult L2Normalize(const Tensor& x, double eps) {
  const int64_t n = x.row_length();
  NormResult result{Tensor(x.dims), Tensor(), Tensor(RowDims(x))};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[row * n + i] * x[row * n + i];
    result.rstd[row] = 1 / std::max(std::sqrt(sum), eps);
    for (int64_t i = 0; i < n; ++i) result.y[row * n + i] = x[row * n + i] * result.rstd[row];
  }
  return result;
}

NormGradient L2NormalizeGrad(const Tensor& dy, const Tensor& x, double eps) {
  const int64_t n = x.row_length();
  NormGradient result{Tensor(x.dims), Tensor(), Tensor()};
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[row * n + i] * x[row * n + i];
    for (int64_t i = 0; i < n; ++i) dot += dy[row * n + i] * x[row * n + i];
    const double norm = std::sqrt(sum);
    for (int64_t i = 0; i < n; ++i) {
      result.dx[row * n + i] =
          norm <= eps ? dy[row * n + i] / eps : dy[row * n + i] / norm - x[row * n + i] * dot / (norm * norm * norm);
    }
  }
  return result;
}

Tensor Rotary(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::string& style, double sign) {
  const int64_t d = x.dims[3], half = cos.dims[1];
  Tensor y = x;
  for (int64_t row = 0; row < x.num_rows(); ++row) {
    const int64_t position = row / x.dims[2] % x.dims[1];
    for (int64_t i = 0; i < half; ++i) {
      const int64_t first = row * d + (style == "half" ? i : 2 * i);
      const int64_t second = style == "half" ? first + half : first + 1;
      const double c = cos[position * half + i], s = sign * sin[position * half + i];
      y[first] = x[first] * c - x[second] * s;
      y[second] = x[second] * c + x[first] * s;
    }
  }
  return y;
}

namespace {

// A scaled product of query and key, capped.
double Capped(const Tensor& q, const Tensor& k, int64_t b, int64_t h, int64_t i, int64_t j, double scale,
              double softcap) {
  const int64_t s = q.dims[1], t = k.dims[1], heads = q.dims[2], kv_heads = k.dims[2], d = q.dims[3];
  const int64_t kv = h / (heads / kv_heads);
  double score = 0;
  for (int64_t e = 0; e < d; ++e) {
    score += q[((b * s + i) * heads + h) * d + e] * k[((b * t + j) * kv_heads + kv) * d + e];
  }
  score *= scale;
  return softcap > 0 ? softcap * std::tanh(score / softcap) : score;
}

// One query row: scores (-inf where the key is not seen), and log of the sum of exp.
std::vector<double> Row(const Tensor& q, const Tensor& k, int64_t b, int64_t h, int64_t i, bool causal, double scale,
                        const std::vector<double>& slopes, const AttentionShape& shape, double* lse) {
  const int64_t t = k.dims[1];
  std::vector<double> scores(t, -kInfinity);
  double maximum = -kInfinity;
  for (int64_t j = 0; j < (causal ? i + 1 : t); ++j) {
    if (shape.window > 0 && j <= i - shape.window) continue;
    const double slope = slopes.empty() ? 0 : slopes[h], of_key = shape.key_bias ? shape.key_bias(b, j) : 0;
    const double own = shape.bias ? shape.bias(b, h, i, j) : 0;
    if (of_key == -kInfinity || own == -kInfinity) continue;
    const double bias = of_key + own;
    scores[j] = bias == kInfinity
                    ? 0
                    : Capped(q, k, b, h, i, j, scale, shape.softcap) + slope * static_cast<double>(j - i) + bias;
    maximum = std::max(maximum, scores[j]);
  }
  if (maximum == -kInfinity) {  // Sees no key.
    *lse = -kInfinity;
    return scores;
  }
  double sum = 0;
  for (double value : scores) sum += std::exp(value - maximum);
  *lse = maximum + std::log(sum);
  return scores;
}

double Probability(double score, double lse) { return score == -kInfinity ? 0 : std::exp(score - lse); }

double Kept(const AttentionShape& shape, int64_t b, int64_t h, int64_t i, int64_t j) {
  return shape.kept ? shape.kept(b, h, i, j) : 1;
}

}  // namespace

AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale,
                          const std::vector<double>& slopes, const AttentionShape& shape) {
  const int64_t s = q.dims[1], t = k.dims[1], heads = q.dims[2], kv_heads = k.dims[2], d = q.dims[3];
  AttentionResult result{Tensor(q.dims), Tensor(Dims{q.dims[0], heads, s})};
  for (int64_t b = 0; b < q.dims[0]; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < s; ++i) {
        double& lse = result.lse[(b * heads + h) * s + i];
        const std::vector<double> scores = Row(q, k, b, h, i, causal, scale, slopes, shape, &lse);
        for (int64_t j = 0; j < t; ++j) {
          const double p = Probability(scores[j], lse) * Kept(shape, b, h, i, j);
          for (int64_t e = 0; e < d; ++e) {
            result.out[((b * s + i) * heads + h) * d + e] +=
                p * v[((b * t + j) * kv_heads + h / (heads / kv_heads)) * d + e];
          }
        }
      }
    }
  }
  return result;
}

AttentionGradient AttentionGrad(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                double scale, const std::vector<double>& slopes, const AttentionShape& shape) {
  const int64_t s = q.dims[1], t = k.dims[1], heads = q.dims[2], kv_heads = k.dims[2], d = q.dims[3];
  AttentionGradient result{Tensor(q.dims), Tensor(k.dims), Tensor(v.dims), Tensor(Dims{q.dims[0], heads, s, t})};
  for (int64_t b = 0; b < q.dims[0]; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      for (int64_t i = 0; i < s; ++i) {
        double lse = 0;
        const std::vector<double> scores = Row(q, k, b, h, i, causal, scale, slopes, shape, &lse);
        const int64_t query = ((b * s + i) * heads + h) * d;
        std::vector<double> p(t), dp(t);
        double sum = 0;
        for (int64_t j = 0; j < t; ++j) {
          const int64_t key = ((b * t + j) * kv_heads + kv) * d;
          p[j] = Probability(scores[j], lse);
          const double kept = Kept(shape, b, h, i, j);
          for (int64_t e = 0; e < d; ++e) {
            dp[j] += dout[query + e] * v[key + e] * kept;
            result.dv[key + e] += p[j] * kept * dout[query + e];
          }
          sum += dp[j] * p[j];
        }
        for (int64_t j = 0; j < t; ++j) {
          const int64_t key = ((b * t + j) * kv_heads + kv) * d;
          if (p[j] == 0) continue;
          const double of_score = p[j] * (dp[j] - sum);
          const double biases = (shape.key_bias ? shape.key_bias(b, j) : 0) + (shape.bias ? shape.bias(b, h, i, j) : 0);
          if (!shape.bias_yields || biases != kInfinity) result.dbias[((b * heads + h) * s + i) * t + j] = of_score;
          double ds = of_score * scale;
          if (shape.softcap > 0) {
            const double capped = Capped(q, k, b, h, i, j, scale, shape.softcap);
            ds *= 1 - capped * capped / (shape.softcap * shape.softcap);
          }
          for (int64_t e = 0; e < d; ++e) {
            result.dq[query + e] += ds * k[key + e];
            result.dk[key + e] += ds * q[query + e];
          }
        }
      }
    }
  }
  return result;
}

Tensor Embedding(const Tensor& table, const std::vector<int32_t>& ids, int64_t offset) {
  const int64_t n = table.dims[1];
  Tensor y(Dims{static_cast<int64_t>(ids.size()), n});
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = ids[t] - offset;
    if (row < 0 || row >= table.dims[0]) continue;
    for (int64_t i = 0; i < n; ++i) y[t * n + i] = table[row * n + i];
  }
  return y;
}

Tensor EmbeddingGrad(const Tensor& dy, const std::vector<int32_t>& ids, int64_t offset, const Dims& table) {
  Tensor dtable(table);
  const int64_t n = table[1];
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = ids[t] - offset;
    if (row < 0 || row >= table[0]) continue;
    for (int64_t i = 0; i < n; ++i) dtable[row * n + i] += dy[t * n + i];
  }
  return dtable;
}

CrossEntropyResult CrossEntropy(const Tensor& logits, const std::vector<int32_t>& targets, int64_t offset) {
  const int64_t n = logits.row_length();
  CrossEntropyResult result;
  result.lse = Tensor(RowDims(logits));
  for (int64_t row = 0; row < logits.num_rows(); ++row) {
    double maximum = -kInfinity, sum = 0;
    for (int64_t i = 0; i < n; ++i) maximum = std::max(maximum, logits[row * n + i]);
    for (int64_t i = 0; i < n; ++i) sum += std::exp(logits[row * n + i] - maximum);
    result.lse[row] = maximum + std::log(sum);
    if (targets[row] < 0) continue;
    const int64_t target = targets[row] - offset;
    result.loss += result.lse[row] - (target >= 0 && target < n ? logits[row * n + target] : 0);
    result.count += 1;
  }
  return result;
}

Tensor CrossEntropyGrad(const Tensor& logits, const std::vector<int32_t>& targets, const Tensor& lse, double dloss,
                        int64_t offset) {
  const int64_t n = logits.row_length();
  Tensor dlogits(logits.dims);
  for (int64_t row = 0; row < logits.num_rows(); ++row) {
    if (targets[row] < 0) continue;
    for (int64_t i = 0; i < n; ++i) {
      const double onehot = targets[row] - offset == i ? 1 : 0;
      dlogits[row * n + i] = (std::exp(logits[row * n + i] - lse[row]) - onehot) * dloss;
    }
  }
  return dlogits;
}

WeightState Update(const WeightState& state, const Tensor& g, double learning_rate, double grad_scale, double count,
                   const UpdateParameters& p) {
  WeightState next = state;
  for (int64_t i = 0; i < g.size(); ++i) {
    double &w = next.w[i], &m = next.m[i], &v = next.v[i];
    const double before = w;
    double gradient = g[i] * grad_scale;
    if (p.kind == UpdateKind::kMovingAverage) {
      w = learning_rate * w + (1 - learning_rate) * gradient;
      continue;
    }
    const bool is_coupled = p.kind == UpdateKind::kAdam || p.kind == UpdateKind::kSgd;
    if (is_coupled) gradient += p.weight_decay * before;
    if (!is_coupled) w -= learning_rate * p.weight_decay * before;
    if (p.kind == UpdateKind::kLion) {
      const double direction = p.beta1 * m + (1 - p.beta1) * gradient;
      m = p.beta2 * m + (1 - p.beta2) * gradient;
      w -= learning_rate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
    } else if (p.kind == UpdateKind::kSgd) {
      if (p.momentum != 0) m = count == 1 ? gradient : p.momentum * m + (1 - p.dampening) * gradient;
      w -= learning_rate * (p.momentum == 0 ? gradient : p.nesterov ? gradient + p.momentum * m : m);
    } else {
      m = p.beta1 * m + (1 - p.beta1) * gradient;
      v = p.beta2 * v + (1 - p.beta2) * gradient * gradient;
      const double m_hat = m / (1 - std::pow(p.beta1, count)), v_hat = v / (1 - std::pow(p.beta2, count));
      w -= learning_rate * m_hat / (std::sqrt(v_hat) + p.epsilon);
    }
  }
  return next;
}

uint32_t Philox(const uint32_t counter[4], const uint32_t key[2], int word) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
                              static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    std::copy(next, next + 4, c);
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c[word];
}

}  // namespace tacc::kernels::reference
