#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "graph/interpreter/evaluate.h"
#include "graph/ops/update_operands.h"

namespace tacc::interpreter {
namespace {

Results SumSquares(const Request& r) {
  Array y = r.NewResult(0);
  for (size_t i = 0; i < r.in.size(); ++i) {
    Dims bounds;
    for (const graph::Range& range : r.in_ranges[i]) bounds.push_back(range.end - range.begin);
    ForEachIndex(bounds, [&](const Dims& index) { y.values[0] += r.in[i]->at(index) * r.in[i]->at(index); });
  }
  return {std::move(y)};
}

Results IsFinite(const Request& r) {
  const bool finite =
      std::all_of(r.in[0]->values.begin(), r.in[0]->values.end(), [](double x) { return std::isfinite(x); });
  return {r.NewResult(0, finite ? 1 : 0)};
}

// A weight's update: its states and scalars.
struct Step {
  explicit Step(const Request& r)
      : at(graph::UpdateOperandsOf(r.node->op.name(), r.in.size())),
        num_states(static_cast<size_t>(at.num_states)),
        gradient(*r.in[at.gradient]),
        lr(Scalar(r, 0)),
        grad_scale(Scalar(r, 1)),
        apply(Scalar(r, 2)),
        count(Scalar(r, 3)),
        weight_decay(r.attr<double>("weight_decay")) {}

  double Scalar(const Request& r, int i) const { return r.in[at.scalar(i)]->values[0]; }
  // The operand, or else the attribute.
  double Momentum(const Request& r, const char* attr) const {
    return at.momentum < 0 ? r.attr<double>(attr) : r.in[at.momentum]->values[0];
  }

  graph::UpdateOperands at;
  size_t num_states;
  const Array& gradient;
  double lr, grad_scale, apply, count, weight_decay;
};

// Each element by `update(w, m, v, g)`, unless the step is skipped; then the copy.
template <typename Update>
Results UpdateEach(const Request& r, const Step& step, const Update& update) {
  Results next = {*r.in[0]};
  for (size_t i = 0; i < step.num_states; ++i) next.push_back(*r.in[1 + i]);
  double none = 0;
  for (int64_t i = 0; i < next[0].size() && step.apply != 0; ++i) {
    update(next[0].values[i], step.num_states > 0 ? next[1].values[i] : none,
           step.num_states > 1 ? next[2].values[i] : none, step.gradient.values[i] * step.grad_scale);
  }
  if (r.out_types.size() > next.size()) next.push_back(next[0]);
  return next;
}

// As torch.optim.AdamW, or with weight decay in the gradient as torch.optim.Adam.
Results AdamOf(const Request& r, bool is_decoupled) {
  const Step step(r);
  const double beta1 = step.Momentum(r, "beta1"), beta2 = r.attr<double>("beta2"), epsilon = r.attr<double>("epsilon");
  return UpdateEach(r, step, [&](double& w, double& m, double& v, double g) {
    if (is_decoupled) {
      w *= 1 - step.lr * step.weight_decay;
    } else {
      g += step.weight_decay * w;
    }
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double m_hat = m / (1 - std::pow(beta1, step.count)), v_hat = v / (1 - std::pow(beta2, step.count));
    w -= step.lr * m_hat / (std::sqrt(v_hat) + epsilon);
  });
}
Results AdamW(const Request& r) { return AdamOf(r, true); }
Results Adam(const Request& r) { return AdamOf(r, false); }

// As torch.optim.SGD.
Results Sgd(const Request& r) {
  const Step step(r);
  const double momentum = step.Momentum(r, "momentum"), dampening = step.count == 1 ? 0 : r.attr<double>("dampening");
  const bool nesterov = r.attr<bool>("nesterov");
  return UpdateEach(r, step, [&](double& w, double& m, double& /*v*/, double g) {
    g += step.weight_decay * w;
    m = momentum * m + (1 - dampening) * g;
    w -= step.lr * (step.num_states == 0 ? g : nesterov ? g + momentum * m : m);
  });
}

// Chen et al., "Symbolic Discovery of Optimization Algorithms", algorithm 2.
Results Lion(const Request& r) {
  const Step step(r);
  const double beta1 = step.Momentum(r, "beta1"), beta2 = r.attr<double>("beta2");
  return UpdateEach(r, step, [&](double& w, double& m, double& /*v*/, double g) {
    const double direction = beta1 * m + (1 - beta1) * g;
    m = beta2 * m + (1 - beta2) * g;
    w = w * (1 - step.lr * step.weight_decay) - step.lr * (direction > 0 ? 1 : direction < 0 ? -1 : direction);
  });
}

Results MovingAverage(const Request& r) {
  const Step step(r);
  return UpdateEach(r, step,
                    [&](double& w, double& /*m*/, double& /*v*/, double g) { w = step.lr * w + (1 - step.lr) * g; });
}

// As transformers' get_*_schedule*, down to a floor.
double LrFactor(const Request& r, double step) {
  const std::string type = r.attr<std::string>("type");
  const double warmup = static_cast<double>(r.attr<int64_t>("warmup_steps")),
               end = static_cast<double>(r.attr<int64_t>("max_steps")), floor = r.attr<double>("min_lr_ratio"),
               cycles = r.attr<double>("num_cycles", 0.5);
  const auto above_floor = [floor](double factor) { return floor + (1 - floor) * factor; };
  const auto cosine = [](double turns) { return 0.5 * (1 + std::cos(2 * std::numbers::pi * turns)); };
  if (type == "table") {
    const auto factors = r.attr<std::vector<double>>("factors");
    return factors[std::min(static_cast<size_t>(step), factors.size() - 1)];
  }
  if (step < warmup) return type == "warmup_stable_decay" ? above_floor(step / warmup) : step / warmup;
  const double progress = std::min(1.0, (step - warmup) / std::max(1.0, end - warmup));
  if (type == "constant") return 1;
  if (type == "linear") return above_floor(1 - progress);
  if (type == "cosine") return above_floor(cosine(cycles * progress));
  if (type == "cosine_with_restarts")
    return above_floor(progress < 1 ? cosine(std::fmod(cycles * progress, 1.0) / 2) : 0);
  if (type == "polynomial") return above_floor(std::pow(1 - progress, r.attr<double>("power", 1)));
  if (type == "inverse_sqrt") {
    const double scale = static_cast<double>(r.attr<int64_t>("timescale", 10'000));
    return above_floor(1 / std::sqrt((step - warmup + scale) / scale));
  }
  const double decay_steps = static_cast<double>(r.attr<int64_t>("decay_steps"));
  const double done = std::clamp((step - end + decay_steps) / std::max(1.0, decay_steps), 0.0, 1.0);
  const std::string decay = r.attr<std::string>("decay_type", "cosine");
  if (done == 1) return floor;
  return above_floor(decay == "linear" ? 1 - done : decay == "cosine" ? cosine(cycles * done) : 1 - std::sqrt(done));
}

Results LrSchedule(const Request& r) {
  return {r.NewResult(0, LrFactor(r, r.in[0]->values[0]) * r.attr<double>("learning_rate"))};
}

// Matrices in plain loops.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns) : rows_(rows), columns_(columns), values_(rows * columns) {}
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  double& at(int64_t i, int64_t j) { return values_[i * columns_ + j]; }
  double at(int64_t i, int64_t j) const { return values_[i * columns_ + j]; }
  Matrix Transposed() const {
    Matrix t(columns_, rows_);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) t.at(j, i) = at(i, j);
    }
    return t;
  }
  Matrix Times(const Matrix& other) const {
    Matrix product(rows_, other.columns_);
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t k = 0; k < columns_; ++k) {
        for (int64_t j = 0; j < other.columns_; ++j) product.at(i, j) += at(i, k) * other.at(k, j);
      }
    }
    return product;
  }

 private:
  int64_t rows_, columns_;
  std::vector<double> values_;
};

// Jordan et al., "Muon: An optimizer for hidden layers in neural networks", in the order of torch.optim.Muon.
Matrix Orthogonalized(Matrix x, int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;
  const bool is_tall = x.rows() > x.columns();
  if (is_tall) x = x.Transposed();
  double squares = 0;
  for (int64_t i = 0; i < x.rows(); ++i) {
    for (int64_t j = 0; j < x.columns(); ++j) squares += x.at(i, j) * x.at(i, j);
  }
  for (int64_t i = 0; i < x.rows(); ++i) {
    for (int64_t j = 0; j < x.columns(); ++j) x.at(i, j) /= std::max(std::sqrt(squares), kEpsilon);
  }
  for (int64_t step = 0; step < steps; ++step) {
    Matrix update = x.Times(x.Transposed());
    const Matrix square = update.Times(update);
    for (int64_t i = 0; i < update.rows(); ++i) {
      for (int64_t j = 0; j < update.columns(); ++j) update.at(i, j) = kB * update.at(i, j) + kC * square.at(i, j);
    }
    const Matrix added = update.Times(x);
    for (int64_t i = 0; i < x.rows(); ++i) {
      for (int64_t j = 0; j < x.columns(); ++j) x.at(i, j) = kA * x.at(i, j) + added.at(i, j);
    }
  }
  return is_tall ? x.Transposed() : x;
}

Results NewtonSchulz(const Request& r) {
  Array y = *r.in[0];
  const auto stored = r.attr<std::vector<int64_t>>("stored");
  const int64_t rows = stored[stored.size() - 2], columns = stored.back(), size = rows * columns;
  for (int64_t first = 0; first + size <= y.size(); first += size) {
    Matrix x(rows, columns);
    for (int64_t i = 0; i < size; ++i) x.at(i / columns, i % columns) = y.values[first + i];
    const Matrix result = Orthogonalized(x, r.attr<int64_t>("steps"));
    for (int64_t i = 0; i < size; ++i) y.values[first + i] = result.at(i / columns, i % columns);
  }
  return {std::move(y)};
}

// A rank's part of matrices: calls visit(element of the rank's own, row, column) for what exists of it, with rows and
// columns counted over all matrices.
template <typename Visit>
void ForEachOfMatrices(const Request& r, int operand, const Visit& visit) {
  const auto stored = r.attr<std::vector<int64_t>>("stored");
  const bool is_factored = stored.size() > 1;
  const int64_t columns = is_factored ? stored.back() : 1, rows = is_factored ? stored[stored.size() - 2] : 1;
  Dims bounds;
  for (const graph::Range& range : r.in_ranges[operand]) bounds.push_back(range.end - range.begin);
  const Array& x = *r.in[operand];
  ForEachIndex(bounds, [&](const Dims& index) {
    int64_t at = 0, own = 0;
    for (size_t d = 0; d < index.size(); ++d) {
      at = at * r.in_logical[operand][d] + r.in_ranges[operand][d].begin + index[d];
      own = own * x.dims[d] + index[d];
    }
    visit(own, at / columns, at / columns / rows * columns + at % columns);
  });
}

Results SquareSums(const Request& r) {
  Results sums = {r.NewResult(0)};
  if (r.out_types.size() > 1) sums.push_back(r.NewResult(1));
  ForEachOfMatrices(r, 0, [&](int64_t i, int64_t row, int64_t column) {
    const double scaled = r.in[0]->values[i] * r.in[1]->values[0];
    const double square = scaled * scaled + r.attr<double>("epsilon");
    sums[0].values[row] += square;
    if (sums.size() > 1) sums[1].values[column] += square;
  });
  return sums;
}

// What an element of the gradient is multiplied by; as transformers' Adafactor._approx_sq_grad.
double AdafactorFactor(const Request& r, size_t moments, int64_t row, int64_t column) {
  const Array& of_rows = *r.in[moments];
  if (r.in.size() == moments + 1) return 1 / std::sqrt(of_rows.values[row]);
  const int64_t rows = of_rows.dims.back(), first = row / rows * rows;
  double mean = 0;
  for (int64_t i = 0; i < rows; ++i) mean += of_rows.values[first + i] / static_cast<double>(rows);
  return 1 / std::sqrt(of_rows.values[row] / mean) / std::sqrt(r.in[moments + 1]->values[column]);
}

Results AdafactorSquares(const Request& r) {
  Array sum = r.NewResult(0);
  ForEachOfMatrices(r, 0, [&](int64_t i, int64_t row, int64_t column) {
    const double u = r.in[0]->values[i] * r.in[1]->values[0] * AdafactorFactor(r, 2, row, column);
    sum.values[0] += u * u;
  });
  return {std::move(sum)};
}

Results Adafactor(const Request& r) {
  Array w = *r.in[0];
  const double lr = r.in[2]->values[0], grad_scale = r.in[3]->values[0], apply = r.in[4]->values[0];
  double elements = 1;
  for (int64_t extent : r.in_logical[1]) elements *= static_cast<double>(extent);
  const double rms = std::sqrt(r.in[5]->values[0] / elements);
  const double clip = std::max(1.0, rms / r.attr<double>("clip_threshold"));
  if (apply != 0) {
    ForEachOfMatrices(r, 1, [&](int64_t i, int64_t row, int64_t column) {
      const double u = r.in[1]->values[i] * grad_scale * AdafactorFactor(r, 6, row, column) / clip;
      w.values[i] -= lr * (r.attr<double>("weight_decay") * w.values[i] + u);
    });
  }
  Results results = {w};
  if (r.out_types.size() > 1) results.push_back(std::move(w));
  return results;
}

}  // namespace

void AddOptimizerEvaluators(EvaluatorTable& table) {
  table.Add("sum_squares", SumSquares);
  table.Add("is_finite", IsFinite);
  table.Add("adam", Adam);
  table.Add("adamw", AdamW);
  table.Add("lion", Lion);
  table.Add("sgd", Sgd);
  table.Add("moving_average", MovingAverage);
  table.Add("newton_schulz", NewtonSchulz);
  table.Add("square_sums", SquareSums);
  table.Add("adafactor_squares", AdafactorSquares);
  table.Add("adafactor", Adafactor);
  table.Add("lr_schedule", LrSchedule);
}

}  // namespace tacc::interpreter
