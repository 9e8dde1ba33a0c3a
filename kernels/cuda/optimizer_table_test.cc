// Many updates in one launch, beside one call each.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/contract/optimizer.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/many_tensors.h"
#include "kernels/reference/buffer.h"

namespace tacc::kernels::cuda {
namespace {

using reference::Buffer;
using reference::Random;
using reference::Tensor;

Buffer Scalar(double value) { return Buffer(DType::kF32, Tensor(Dims{}, {value})); }

// Parameters with their state; results lie elsewhere or in place.
struct State {
  State(int64_t n, DType dtype, DType g_type, Buffer::Placement placement)
      : w(dtype, Random({n}, n + 1), placement),
        m(dtype, Random({n}, n + 2, 0.1), placement),
        v(dtype, Squares(Random({n}, n + 3, 0.1)), placement),
        g(g_type, Random({n}, n + 4), placement),
        new_w(dtype, Dims{n}, placement),
        new_m(dtype, Dims{n}, placement),
        new_v(dtype, Dims{n}, placement),
        copy(DType::kBF16, Dims{n}, placement) {}

  static Tensor Squares(Tensor x) {
    for (double& value : x.values) value *= value;
    return x;
  }
  WeightUpdate Update(const UpdateScalars& scalars, double weight_decay) const {
    return {w, m, v, g, scalars, {UpdateKind::kAdamW, 0.9, 0.95, 1e-8, weight_decay}, new_w, new_m, new_v, copy};
  }
  // Without states.
  WeightUpdate PlainUpdate(const UpdateScalars& scalars) const {
    return {w, {}, {}, g, scalars, {.kind = UpdateKind::kSgd}, new_w, {}, {}, copy};
  }

  Buffer w, m, v, g, new_w, new_m, new_v, copy;
};

bool SameBits(const Buffer& a, const Buffer& b) {
  return std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.view().bytes())) == 0;
}

TEST(UpdateMany, EqualsTheSingleUpdatesToTheBit) {
  const Buffer lr = Scalar(3e-3), slow = Scalar(1e-4), scale = Scalar(0.5), count = Scalar(7), bad = Scalar(NAN);
  const Buffer momentum = Scalar(0.8);
  for (double apply_value : {1.0, 0.0}) {
    const Buffer apply = Scalar(apply_value);
    const UpdateScalars scalars{lr, scale, apply, count},
        others{slow, apply_value == 0 ? bad : scale, apply, count, momentum};
    std::vector<State> many, single;
    for (std::vector<State>* states : {&many, &single}) {
      for (Buffer::Placement placement : {Buffer::Placement::kAligned, Buffer::Placement::kOffByOne}) {
        // Chunks are 16384 elements: less than one, exactly one, a little more, none, several.
        for (int64_t n : {1, 16384, 16387, 0, 50001}) states->emplace_back(n, DType::kF32, DType::kBF16, placement);
        states->emplace_back(int64_t{1003}, DType::kF32, DType::kF32, placement);
        states->emplace_back(int64_t{1003}, DType::kBF16, DType::kBF16, placement);
        states->emplace_back(int64_t{20000}, DType::kF64, DType::kF32, placement);
      }
    }
    std::vector<WeightUpdate> updates;
    for (size_t i = 0; i < many.size(); ++i) {
      updates.push_back(many[i].Update(i % 2 == 0 ? scalars : others, 0.01 * i));
      const WeightUpdate u = single[i].Update(i % 2 == 0 ? scalars : others, 0.01 * i);
      kOptimizer.Update(u);
    }
    TensorTable table = UpdateTable(updates);
    EXPECT_EQ(table.num_tensors, 14);  // not the empty ones
    const std::vector<char> device = table.image;
    table.device = device.data();
    table.image.assign(table.image.size(), 0);  // not read any more
    UpdateMany(table);
    for (size_t i = 0; i < many.size(); ++i) {
      const State &a = many[i], &b = single[i];
      EXPECT_TRUE(SameBits(a.new_w, b.new_w) && SameBits(a.new_m, b.new_m) && SameBits(a.new_v, b.new_v)) << i;
      EXPECT_TRUE(SameBits(a.copy, b.copy)) << i;
      EXPECT_TRUE(a.new_w.GuardsIntact() && a.new_m.GuardsIntact() && a.new_v.GuardsIntact() && a.copy.GuardsIntact());
      EXPECT_TRUE(apply_value != 0 || SameBits(a.new_w, a.w)) << i;
      EXPECT_TRUE(apply_value == 0 || a.new_w.view().size() == 0 || !SameBits(a.new_w, a.w)) << i;
    }
  }
}

TEST(UpdateMany, TakesSeveralOptimizers) {
  const Buffer lr = Scalar(3e-3), scale = Scalar(0.5), count = Scalar(7), apply = Scalar(1);
  const UpdateScalars scalars{lr, scale, apply, count};
  std::vector<State> many, single;
  for (std::vector<State>* states : {&many, &single}) {
    for (int64_t n : {20000, 20003}) states->emplace_back(n, DType::kF32, DType::kF32, Buffer::Placement::kAligned);
  }
  TensorTable table = UpdateTable({many[0].Update(scalars, 0.1), many[1].PlainUpdate(scalars)});
  table.device = table.image.data();
  UpdateMany(table);
  kOptimizer.Update(single[0].Update(scalars, 0.1));
  kOptimizer.Update(single[1].PlainUpdate(scalars));
  for (int i : {0, 1}) EXPECT_TRUE(SameBits(many[i].new_w, single[i].new_w) && SameBits(many[i].copy, single[i].copy));
  EXPECT_TRUE(SameBits(many[0].new_m, single[0].new_m));
}

TEST(UpdateMany, TakesNoUpdates) {
  const TensorTable table = UpdateTable({});
  EXPECT_EQ(table.num_chunks, 0);
  EXPECT_TRUE(table.image.empty());
  UpdateMany(table);  // Nothing to launch.
}

}  // namespace
}  // namespace tacc::kernels::cuda
