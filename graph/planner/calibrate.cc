#include "graph/planner/calibrate.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "graph/planner/normal_equations.h"

namespace tacc::graph {
namespace {

constexpr double kUsualError = 0.05;  // of a prediction
constexpr int kIterations = 25;
constexpr double kDetermined = 0.5;  // of the deviation before

using Vector = std::vector<double>;

template <double Machine::*constant>
double& Of(Setting& setting) {
  return setting.machine.*constant;
}

// With the name, unit and bounds that the machine's table has for it.
template <double Machine::*constant>
FreeConstant Free(double deviation) {
  for (const MachineConstant& c : MachineConstants()) {
    if (c.value == constant) return {c.name, c.unit, Of<constant>, deviation, c.low, c.high};
  }
  return {};
}

// The problem in logarithms of the constants over where they begin.
class Problem {
 public:
  Problem(const Setting& start, const std::vector<FreeConstant>& constants, const std::vector<MeasuredStep>& steps)
      : start_(start), constants_(constants), steps_(steps) {}

  size_t size() const { return constants_.size(); }

  Setting At(const Vector& x) const {
    Setting setting = start_;
    for (size_t i = 0; i < size(); ++i) {
      double& value = constants_[i].of(setting);
      if (value > 0) value = std::clamp(value * std::exp(x[i]), constants_[i].low, constants_[i].high);
    }
    return setting;
  }

  Vector Residuals(const Vector& x) const {
    const Setting setting = At(x);
    Vector residuals;
    for (const MeasuredStep& step : steps_) residuals.push_back(std::log(step.prediction(setting) / step.seconds));
    return residuals;
  }

  double Loss(const Vector& residuals, const Vector& x) const {
    double loss = 0;
    for (double r : residuals) {
      const double z = std::abs(r) / kUsualError;
      loss += z < 1 ? z * z / 2 : z - 0.5;
    }
    for (size_t i = 0; i < size(); ++i) loss += std::pow(x[i] / constants_[i].deviation, 2) / 2;
    return loss;
  }

  // Gauss-Newton's: with Huber's weights.
  void Normal(const Vector& x, const Vector& residuals, Matrix* normal, Vector* gradient) const {
    constexpr double kStep = 1e-4;
    const size_t n = size();
    Matrix columns;
    for (size_t i = 0; i < n; ++i) {
      Vector moved = x;
      moved[i] += kStep;
      columns.push_back(Residuals(moved));
      for (size_t k = 0; k < residuals.size(); ++k) columns[i][k] = (columns[i][k] - residuals[k]) / kStep;
    }
    normal->assign(n, Vector(n, 0.0));
    gradient->assign(n, 0.0);
    for (size_t k = 0; k < residuals.size(); ++k) {
      const double weight = 1 / std::max(1.0, std::abs(residuals[k]) / kUsualError) / (kUsualError * kUsualError);
      for (size_t i = 0; i < n; ++i) {
        (*gradient)[i] -= weight * columns[i][k] * residuals[k];
        for (size_t j = 0; j < n; ++j) (*normal)[i][j] += weight * columns[i][k] * columns[j][k];
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const double prior = 1 / (constants_[i].deviation * constants_[i].deviation);
      (*gradient)[i] -= prior * x[i];
      (*normal)[i][i] += prior;
    }
  }

 private:
  const Setting& start_;
  const std::vector<FreeConstant>& constants_;
  const std::vector<MeasuredStep>& steps_;
};

}  // namespace

const std::vector<FreeConstant>& UnlistedConstants() {
  static const std::vector<FreeConstant> constants{
      Free<&Machine::intra_latency_seconds>(0.5), Free<&Machine::inter_latency_seconds>(0.5),
      Free<&Machine::matmul_fraction>(0.1),       Free<&Machine::matmul_depth>(0.5),
      Free<&Machine::attention_fraction>(0.2),    Free<&Machine::bandwidth_fraction>(0.1),
      Free<&Machine::issue_seconds>(1.2)};
  return constants;
}

FreeConstant NetworkConstant() { return Free<&Machine::inter_bytes_per_second>(0.5); }

FreeConstant HostConstant() {
  return {"micro_batch_seconds", "s", [](Setting& s) -> double& { return s.execution.micro_batch_seconds; }, 1.2, 0, 1};
}

std::vector<FreeConstant> CalibratedConstants() {
  std::vector<FreeConstant> constants = UnlistedConstants();
  constants.push_back(NetworkConstant());
  return constants;
}

Fit FitConstants(const Setting& start, const std::vector<FreeConstant>& constants,
                 const std::vector<MeasuredStep>& steps) {
  const Problem problem(start, constants, steps);
  const size_t n = problem.size();
  Vector x(n, 0.0), gradient;
  Vector residuals = problem.Residuals(x);
  Matrix normal;
  double loss = problem.Loss(residuals, x), damping = 1e-3;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    problem.Normal(x, residuals, &normal, &gradient);
    bool better = false;
    const double before = loss;
    for (int attempt = 0; attempt < 8 && !better; ++attempt) {
      // Levenberg's damping.
      Matrix damped = normal;
      for (size_t i = 0; i < n; ++i) damped[i][i] *= 1 + damping;
      const Vector step = Solve(std::move(damped), gradient);
      Vector tried = x;
      for (size_t i = 0; i < n; ++i) tried[i] += step[i];
      const Vector tried_residuals = problem.Residuals(tried);
      const double tried_loss = problem.Loss(tried_residuals, tried);
      better = tried_loss < loss;
      damping = better ? std::max(damping / 5, 1e-6) : damping * 5;
      if (better) x = tried, residuals = tried_residuals, loss = tried_loss;
    }
    if (!better || before - loss < 1e-5 * before) break;
  }
  Fit fit{problem.At(x), {}};
  problem.Normal(x, residuals, &normal, &gradient);
  for (size_t i = 0; i < n; ++i) fit.spreads.push_back(std::sqrt(InverseDiagonal(normal, i)) / constants[i].deviation);
  return fit;
}

double MeanAbsoluteError(const Setting& setting, const std::vector<MeasuredStep>& steps) {
  double error = 0;
  for (const MeasuredStep& step : steps)
    error += std::abs(step.prediction(setting) / step.seconds - 1) / static_cast<double>(steps.size());
  return error;
}

namespace {

// The logarithm of the constant in `to` over that in `from`.
double Moved(Setting from, Setting to, const FreeConstant& constant) {
  const double before = constant.of(from);
  return before > 0 ? std::log(constant.of(to) / before) : 0;
}

}  // namespace

Calibration Calibrate(const Setting& start, const std::vector<MeasuredStep>& steps) {
  Calibration c;
  c.constants = CalibratedConstants();
  c.determined.assign(c.constants.size(), true);
  for (;;) {
    std::vector<FreeConstant> told;
    std::vector<size_t> which;
    for (size_t i = 0; i < c.constants.size(); ++i) {
      if (!c.determined[i]) continue;
      told.push_back(c.constants[i]);
      which.push_back(i);
    }
    const Fit fit = FitConstants(start, told, steps);
    c.setting = fit.setting;
    std::optional<size_t> least;
    double least_loss = 0;
    for (size_t i = 0; i < told.size(); ++i) {
      if (fit.spreads[i] <= kDetermined) continue;
      // By which the loss grows where it goes back to its start and the others follow.
      const double loss = std::pow(Moved(start, fit.setting, told[i]) / (fit.spreads[i] * told[i].deviation), 2) / 2;
      if (!least.has_value() || loss < least_loss) least = i, least_loss = loss;
    }
    if (!least.has_value()) break;
    c.determined[which[*least]] = false;
  }
  c.error_before = MeanAbsoluteError(start, steps);
  c.error_after = MeanAbsoluteError(c.setting, steps);
  return c;
}

}  // namespace tacc::graph
