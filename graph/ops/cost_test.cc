// FLOPs, aliases and in-place facts.
#include "graph/ops/op_cases.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

class Cost : public testing::Test {
 protected:
  OpCall Call(const std::string& text) {
    cases_.push_back(std::make_unique<OpCase>(ParseOpCase(ops_, text).value()));
    op_ = ops_.Find(cases_.back()->op_node().op);
    return CallOf(cases_.back()->graph, cases_.back()->op_node());
  }
  double Flops(const std::string& text) {
    const OpCall call = Call(text);
    return op_->flops(call);
  }
  std::vector<int> Aliases(const std::string& text) {
    const OpCall call = Call(text);
    return op_->aliases ? op_->aliases(call) : std::vector<int>{};
  }
  std::vector<int> Reuses(const std::string& text) {
    const OpCall call = Call(text);
    return op_->reuses ? op_->reuses(call) : std::vector<int>{};
  }

  OpTable ops_;
  const OpDef* op_ = nullptr;
  std::vector<std::unique_ptr<OpCase>> cases_;
};

TEST_F(Cost, FlopsOfProducts) {
  EXPECT_EQ(Flops("einsum f32[2,3,5] f32[7,5] spec=\"bsk,nk->bsn\""), 2.0 * 2 * 3 * 5 * 7);
  EXPECT_EQ(Flops("einsum_accumulate f32[7,5] f32[2,3,7] f32[2,3,5] spec=\"bsn,bsk->nk\""), 2.0 * 2 * 3 * 5 * 7);
  EXPECT_EQ(Flops("einsum_joined f32[2,3,5] f32[7,5] f32[4,5] spec=\"bsk,nk->bsn\""), 2.0 * 2 * 3 * 5 * 11);
  EXPECT_EQ(Flops("einsum f32[2,3,8] f32[2,3,5] spec=\"bsn,bsk->nk\" dim=2 start=1 limit=3 parts=4"),
            2.0 * 2 * 3 * 5 * 4);
  // Two products of [S,D] and [T,D] a head, halved by the mask; the gradient has four.
  const std::string qkv = "f32[2,5,6,4] f32[2,5,3,4] f32[2,5,3,4] ";
  EXPECT_EQ(Flops("attention " + qkv + "causal=false scale=1.0"), 2 * 2.0 * 2 * 6 * 5 * 5 * 4);
  EXPECT_EQ(Flops("attention " + qkv + "causal=true scale=1.0"), 2.0 * 2 * 6 * 5 * 5 * 4);
  EXPECT_EQ(Flops("attention_grad f32[2,5,6,4] " + qkv + "f32[2,5,6,4] f32[2,6,5] causal=true scale=1.0"),
            2 * 2.0 * 2 * 6 * 5 * 5 * 4);
  // A window of a quarter: a quarter of the keys, but for the first quarter of the queries, which see half of it.
  EXPECT_EQ(Flops("attention f32[2,8,2,4] f32[2,8,2,4] f32[2,8,2,4] causal=true scale=1.0 window=2"),
            2 * 2.0 * 2 * 2 * 8 * 4 * 8 * 0.25 * (1 - 0.125));
  EXPECT_EQ(Flops("attention f32[2,8,2,4] f32[2,8,2,4] f32[2,8,2,4] causal=true scale=1.0 window=9"),
            2.0 * 2 * 2 * 8 * 4 * 8);
  // The steps of a ring share it.
  EXPECT_EQ(Flops("attention f32[2,8,2,4] f32[2,8,2,4] f32[2,8,2,4] causal=true scale=1.0 window=2 zigzag=2 block=4"),
            2 * 2.0 * 2 * 2 * 8 * 4 * 4 * 0.25 * (1 - 0.125));
  // Scores with heads of 6, values of 4.
  EXPECT_EQ(Flops("attention f32[2,5,3,6] f32[2,5,3,6] f32[2,5,3,4] causal=true scale=1.0"), 2.0 * 3 * 5 * 5 * (6 + 4));
  EXPECT_EQ(Flops("attention_joined f32[2,5,12,4] causal=true scale=1.0 group=2"), 2.0 * 2 * 6 * 5 * 5 * 4);
  // Each output from 3 x 3 elements of 2 of the 4 channels.
  EXPECT_EQ(Flops("convolution f32[2,4,6,5] f32[6,2,3,3] f32[6] groups=2"), 2.0 * 2 * 6 * 4 * 3 * 2 * 9);
  EXPECT_EQ(Flops("convolution_transposed f32[2,6,4,3] f32[6,2,3,3] size=[6,5] groups=2"), 2.0 * 2 * 6 * 4 * 3 * 2 * 9);
  EXPECT_EQ(Flops("convolution_grad_weight f32[2,6,4,3] f32[2,4,6,5] kernel=[3,3] groups=2"),
            2.0 * 2 * 6 * 4 * 3 * 2 * 9);
  for (const char* op :
       {"convolution", "convolution_transposed", "convolution_grad_weight", "einsum", "einsum_accumulate",
        "einsum_joined", "attention_joined", "attention_joined_grad", "attention", "attention_grad"}) {
    EXPECT_TRUE(ops_.Find(op)->is_matmul) << op;
  }
}

TEST_F(Cost, AliasesAreContiguousParts) {
  EXPECT_EQ(Aliases("reshape f32[2,6] shape=[12]"), std::vector<int>{0});
  EXPECT_EQ(Aliases("slice f32[6,4] dim=0 start=2 limit=4"), std::vector<int>{0});
  EXPECT_EQ(op_->alias_offset_bytes(Call("slice f32[6,4] dim=0 start=2 limit=4")), 2 * 4 * 4);
  EXPECT_EQ(Aliases("slice f32[1,6,4] dim=1 start=2 limit=4"), std::vector<int>{0});
  EXPECT_EQ(Aliases("slice f32[2,6] dim=1 start=0 limit=3"), std::vector<int>{});
  EXPECT_EQ(Aliases("broadcast f32[3] shape=[1,3] dims=[1]"), std::vector<int>{});
  EXPECT_EQ(Aliases("wait f32[3]"), std::vector<int>{0});
}

TEST_F(Cost, InPlaceOnlyWhereTheBytesFit) {
  EXPECT_EQ(Reuses("silu f32[3]"), std::vector<int>{0});
  EXPECT_EQ(Reuses("add f32[2,3] f32[2,3]"), std::vector<int>{0});
  EXPECT_EQ(Reuses("add bf16[2,3] f32[2,3]"), std::vector<int>{1});
  EXPECT_EQ(Reuses("add bf16[2,3] f32[3]"), std::vector<int>{-1});
  EXPECT_EQ(Reuses("cast f32[3] dtype=bf16"), std::vector<int>{-1});
  EXPECT_EQ(Reuses("cross_entropy_grad bf16[2,7] i32[2] f32[2] f32[]"), std::vector<int>{0});
  EXPECT_EQ(Reuses("einsum_accumulate f32[7,5] bf16[2,3,7] bf16[2,3,5] spec=\"bsn,bsk->nk\""), std::vector<int>{0});
  EXPECT_EQ(Reuses("adamw f32[4] f32[4] f32[4] f32[4] f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.99 epsilon=1e-08 "
                   "weight_decay=0.1 copy=bf16"),
            (std::vector<int>{0, 1, 2, -1}));
  EXPECT_EQ(Reuses("einsum f32[2,3] f32[2,3] spec=\"ik,jk->ij\""), std::vector<int>{});
}

}  // namespace
}  // namespace tacc::graph
