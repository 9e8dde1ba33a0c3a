// Products by expert on a CPU beside the cost model: how much longer they take than one plain product of as many FLOPs,
// measured and predicted. Both run in turns, so what else the machine does falls out of the ratio; the model has the
// rates that a probe measures: the plain product's, and a pass over memory.
//   ninja -C build grouped_bench && build/grouped_bench [REPEATS]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "graph/planner/simulate/cluster_times.h"
#include "kernels/contract/expert.h"
#include "kernels/cpu/einsum.h"
#include "kernels/cpu/kernels.h"

namespace tacc::bench {
namespace {

namespace cpu = kernels::cpu;
using kernels::Dims;
using kernels::TensorView;

// Tokens, slots of each, experts, features in and out: mixtures that train on CPUs, and rows per expert from 32 up.
struct Shape {
  int64_t tokens, slots, experts, in, out;
  int64_t rows() const { return tokens * slots / experts; }
};
constexpr Shape kShapes[] = {{512, 2, 8, 512, 1408},  {2048, 2, 8, 512, 1408}, {2048, 8, 64, 512, 512},
                             {2048, 4, 16, 768, 768}, {256, 4, 32, 512, 1024}, {2048, 2, 32, 1024, 512}};
enum class Kind { kForward, kSummed, kGradient };  // kSummed: the gradient of x, summed over a token's slots

struct Data {
  at::Tensor tensor;
  TensorView view;
  Data(kernels::DType dtype, const Dims& dims) {
    const at::IntArrayRef sizes(dims.begin(), dims.rank());
    tensor = at::randn(sizes, at::kFloat).to(dtype == kernels::DType::kBF16 ? at::kBFloat16 : at::kFloat);
    view = {tensor.data_ptr(), dtype, dims};
  }
};

double Seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Case {
  graph::TensorType x, ids, w, y;
  graph::Attrs attrs;
  std::string op;
};
// As a step's program has it.
Case CaseOf(const Shape& s, Kind kind, graph::DType dtype) {
  Case c;
  c.attrs = {{"num_experts", s.experts}};
  c.ids = {graph::DType::kI32, {s.tokens, s.slots}};
  c.w = {dtype, {s.experts, s.out, s.in}};
  c.op = "expert_matmul";
  if (kind == Kind::kForward) {
    c.x = {dtype, {s.tokens, s.in}};
    c.y = {dtype, {s.tokens, s.slots, s.out}};
  } else if (kind == Kind::kSummed) {
    c.x = {dtype, {s.tokens, s.slots, s.out}};
    c.y = {graph::DType::kF32, {s.tokens, s.in}};
    c.attrs["transposed"] = c.attrs["sum_slots"] = true;
  } else {
    c.op = "expert_matmul_grad";
    c.x = {dtype, {s.tokens, s.slots, s.out}};
    c.w = {dtype, {s.tokens, s.in}};
    c.y = {graph::DType::kF32, {s.experts, s.out, s.in}};
  }
  return c;
}

class Bench {
 public:
  explicit Bench(int repeats) : repeats_(repeats) {}

  void Run(const Shape& s, Kind kind, graph::DType dtype) {
    const kernels::DType type = dtype == graph::DType::kBF16 ? kernels::DType::kBF16 : kernels::DType::kF32;
    at::Tensor chosen =
        at::rand({s.tokens, s.experts}).argsort(int64_t{1}).narrow(1, 0, s.slots).to(at::kInt).contiguous();
    const TensorView ids{chosen.data_ptr(), kernels::DType::kI32, {s.tokens, s.slots}};
    const Data token(type, {s.tokens, s.in}), slot(type, {s.tokens, s.slots, s.out});
    const Data sum(kernels::DType::kF32, {s.tokens, s.in}), w(type, {s.experts, s.out, s.in});
    const Data dw(kernels::DType::kF32, {s.experts, s.out, s.in});
    const auto grouped = [&] {
      if (kind == Kind::kForward) {
        cpu::kExpert.ExpertMatmul(token.view, ids, w.view, kernels::ExpertWeights::kPlain, 0, slot.view);
      } else if (kind == Kind::kSummed) {
        cpu::kExpert.ExpertMatmul(slot.view, ids, w.view, kernels::ExpertWeights::kTransposed, 0, sum.view);
      } else {
        cpu::kExpert.ExpertMatmulGrad(slot.view, token.view, ids, 0, dw.view);
      }
    };
    // One expert with all rows.
    const int64_t rows = s.tokens * s.slots;
    const Data in(type, {rows, s.in}), out(type, {rows, s.out}), one(type, {s.out, s.in});
    const Data d_one(kernels::DType::kF32, {s.out, s.in});
    const TensorView &a = kind == Kind::kForward ? in.view : out.view,
                     &b = kind == Kind::kGradient ? in.view : one.view,
                     &y = kind == Kind::kForward  ? out.view
                          : kind == Kind::kSummed ? in.view
                                                  : d_one.view;
    const char* spec = kind == Kind::kForward ? "rn,mn->rm" : kind == Kind::kSummed ? "rm,mn->rn" : "rm,rn->mn";
    const auto product = cpu::CpuEinsum::Prepare(spec, a, b, y);
    const auto plain = [&] { product->Run(a, b, y); };
    for (int i = 0; i < 2; ++i) grouped(), plain();
    std::vector<double> ratios, plains, bandwidths;
    for (int i = 0; i < repeats_; ++i) {
      const double before = Seconds(plain), taken = Seconds(grouped), after = Seconds(plain);
      plains.push_back((before + after) / 2);
      ratios.push_back(taken / plains.back());
      bandwidths.push_back(Bandwidth());
    }
    const double flops = 2.0 * rows * s.in * s.out, rate = flops / Median(plains);
    graph::DeviceProfile device;
    device.kind = "cpu";
    device.matmul_flops_per_second = {{graph::DType::kF32, rate}, {graph::DType::kBF16, rate}};
    device.memory_bytes_per_second = Median(bandwidths);
    const Case c = CaseOf(s, kind, dtype);
    graph::Node node;
    node.op = absl::string_view(c.op);
    node.attrs = c.attrs;
    const graph::OpCall call{&node.attrs,
                             kind == Kind::kGradient ? std::vector<graph::TensorType>{c.x, c.w, c.ids}
                                                     : std::vector<graph::TensorType>{c.x, c.ids, c.w},
                             {c.y}};
    const double predicted =
        graph::LocalSeconds(graph::MachineOf(device), *ops_.Find(c.op), node, call) / (flops / rate);
    const double measured = Median(ratios), error = predicted / measured;
    errors_.push_back(error);
    constexpr const char* kNames[] = {"forward", "gradient of x, summed", "gradient of w"};
    std::cout << absl::StrFormat("| %d | %d | %d x %d | %s | %s | %.0f | %.1f | %.2f | %.2f | %.2f |\n", s.experts,
                                 s.rows(), s.in, s.out, kNames[static_cast<int>(kind)],
                                 dtype == graph::DType::kBF16 ? "bf16" : "f32", rate / 1e9,
                                 device.memory_bytes_per_second / 1e9, measured, predicted, error);
  }

  void Main() {
    std::cout << absl::StrFormat("%d threads; medians of %d\n", at::get_num_threads(), repeats_);
    std::cout << "| experts | rows of each | weight | product | type | plain GFLOP/s | memory GB/s | grouped / plain, "
                 "measured | "
                 "predicted | predicted / measured |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (const Shape& shape : kShapes) {
      for (graph::DType dtype : {graph::DType::kF32, graph::DType::kBF16}) {
        for (Kind kind : {Kind::kForward, Kind::kSummed, Kind::kGradient}) Run(shape, kind, dtype);
      }
    }
    const auto within = std::count_if(errors_.begin(), errors_.end(), [](double e) { return std::abs(e - 1) <= 0.15; });
    std::cout << absl::StrFormat("within 15 %%: %d of %d; median %.2f\n", within, errors_.size(), Median(errors_));
  }

 private:
  // As the probe's: two reads and a write of arrays beyond the caches.
  double Bandwidth() {
    const double seconds = Seconds([&] { y_.add_(x_, 0.5f); });
    return 3.0 * static_cast<double>(x_.nbytes()) / seconds;
  }

  const int repeats_;
  const graph::OpTable ops_;
  at::Tensor x_ = at::rand({int64_t{16} << 20}), y_ = at::rand({int64_t{16} << 20});
  std::vector<double> errors_;
};

}  // namespace
}  // namespace tacc::bench

int main(int argc, char** argv) {
  int repeats = 15;
  if (argc > 2 || (argc == 2 && (!absl::SimpleAtoi(argv[1], &repeats) || repeats < 1))) {
    std::cerr << "usage: grouped_bench [REPEATS]\n";
    return 2;
  }
  tacc::bench::Bench(repeats).Main();
}
