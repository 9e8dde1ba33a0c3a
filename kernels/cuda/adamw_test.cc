// Many updates in one launch, beside one call each.
#include "kernels/contract/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

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
  AdamWUpdate Update(const AdamWScalars& scalars, double weight_decay) const {
    return {w, m, v, g, scalars, {0.9, 0.95, 1e-8, weight_decay}, new_w, new_m, new_v, copy};
  }

  Buffer w, m, v, g, new_w, new_m, new_v, copy;
};

bool SameBits(const Buffer& a, const Buffer& b) {
  return std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.view().bytes())) == 0;
}

TEST(AdamWMany, EqualsTheSingleUpdatesToTheBit) {
  const Buffer lr = Scalar(3e-3), slow = Scalar(1e-4), scale = Scalar(0.5), count = Scalar(7), bad = Scalar(NAN);
  for (double apply_value : {1.0, 0.0}) {
    const Buffer apply = Scalar(apply_value);
    const AdamWScalars scalars{lr, scale, apply, count}, others{slow, apply_value == 0 ? bad : scale, apply, count};
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
    std::vector<AdamWUpdate> updates;
    for (size_t i = 0; i < many.size(); ++i) {
      updates.push_back(many[i].Update(i % 2 == 0 ? scalars : others, 0.01 * i));
      const AdamWUpdate u = single[i].Update(i % 2 == 0 ? scalars : others, 0.01 * i);
      kAdamW.AdamW(u.w, u.m, u.v, u.g, u.scalars, u.parameters, u.new_w, u.new_m, u.new_v, u.copy);
    }
    TensorTable table = AdamWTable(updates);
    EXPECT_EQ(table.num_tensors, 14);  // not the empty ones
    const std::vector<char> device = table.image;
    table.device = device.data();
    table.image.assign(table.image.size(), 0);  // not read any more
    AdamWMany(table);
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

TEST(AdamWMany, TakesNoUpdates) {
  const TensorTable table = AdamWTable({});
  EXPECT_EQ(table.num_chunks, 0);
  EXPECT_TRUE(table.image.empty());
  AdamWMany(table);  // Nothing to launch.
}

}  // namespace
}  // namespace tacc::kernels::cuda
