#include "worker/rank/program/bind_random.h"

#include "kernels/contract/dropout.h"

namespace tacc::worker {
namespace {

absl::StatusOr<Kernel> Dropout(const Binding& b) {
  const kernels::DropoutParameters p{
      .rate = b.attr<double>("rate"), .key = b.attr<int64_t>("key"), .seed = b.attr<int64_t>("seed")};
  kernels::SamplePart part;
  const Dims& logical = b.logical(0);
  part.logical = Dims(logical.begin() + 1, logical.end());
  for (int d = 1; d < logical.rank(); ++d) part.offset.push_back(b.in_begin(0, d));
  if (b.attr<int64_t>("zigzag") > 0) {
    part.positions = graph::Positions(b.order(logical[1]), b.in_range(0, 1));
  }
  return Kernel([&k = b.kernels.dropout, p, part, x = b.in(0), step = b.in(1), sample = b.in(2), y = b.out(0)] {
    k.Dropout(x, step, sample, part, p, y);
  });
}

absl::StatusOr<Kernel> Random(const Binding& b) {
  const bool is_normal = b.attr<std::string>("distribution") == "normal";
  const kernels::RandomParameters p{
      .distribution = is_normal ? kernels::Distribution::kNormal : kernels::Distribution::kUniform,
      .key = b.attr<int64_t>("key"),
      .seed = b.attr<int64_t>("seed")};
  const Dims logical = b.dims("shape");
  kernels::SamplePart part;
  part.logical = Dims(logical.begin() + 1, logical.end());
  for (int d = 1; d < logical.rank(); ++d) part.offset.push_back(b.out_begin(0, d));
  if (b.attr<bool>("sequence") && b.attr<int64_t>("zigzag") > 0) {
    const graph::Range range = b.request.out_ranges.empty() ? graph::Range{0, logical[1]} : b.request.out_ranges[0][1];
    part.positions = graph::Positions(b.order(logical[1]), range);
  }
  return Kernel([&k = b.kernels.dropout, p, part, step = b.in(0), sample = b.in(1), y = b.out(0)] {
    k.Random(step, sample, part, p, y);
  });
}

}  // namespace

const std::map<std::string, PrepareKernel>& RandomKernels() {
  static const std::map<std::string, PrepareKernel> table = {{"dropout", Dropout}, {"random", Random}};
  return table;
}

}  // namespace tacc::worker
