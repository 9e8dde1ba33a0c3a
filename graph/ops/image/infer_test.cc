// Types and errors of ops of images and their channels.
#include <initializer_list>
#include <string>

#include "absl/strings/str_join.h"
#include "graph/ops/op_cases.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

struct Case {
  const char* text;
  const char* wanted;
};

// Each case's text is inferred to be, or is refused as, it says.
void ExpectInferred(std::initializer_list<Case> cases) {
  const OpTable ops;
  for (const Case& c : cases) {
    const absl::StatusOr<OpCase> parsed = ParseOpCase(ops, c.text);
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().message(), c.wanted) << c.text;
      continue;
    }
    const auto append = [](std::string* out, const TensorType& type) { out->append(type.ToString()); };
    EXPECT_EQ(absl::StrJoin(CallOf(parsed->graph, parsed->op_node()).results, ", ", append), c.wanted) << c.text;
  }
}

TEST(InferConvolutionOps, TypesOfResults) {
  ExpectInferred({
      {"convolution bf16[8,3,224,224] bf16[64,3,7,7] bf16[64] stride=[2,2] padding=[3,3]", "bf16[8,64,112,112]"},
      {"convolution f32[8,32,9] f32[64,4,3] groups=8 dilation=[2]", "f32[8,64,5]"},
      {"convolution f32[0,3,4,5,6] f32[2,3,1,1,1]", "f32[0,2,4,5,6]"},
      {"convolution_transposed f32[8,64,4] f32[64,3,3] size=[8] stride=[2] padding=[1]", "f32[8,3,8]"},
      {"convolution_transposed f32[8,64,4] f32[64,3,3] f32[12] size=[7] stride=[2] padding=[1] groups=4",
       "f32[8,12,7]"},
      {"convolution_grad_weight bf16[8,64,112,112] bf16[8,3,224,224] kernel=[7,7] stride=[2,2] padding=[3,3]",
       "f32[64,3,7,7]"},
  });
}

TEST(InferConvolutionOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"convolution f32[8,3] f32[2,3]", "convolution: x is f32[8,3]; wanted samples, channels and 1 to 3 spatial dims"},
      {"convolution i32[8,3,4] i32[2,3,1]", "convolution: x is i32[8,3,4]; wanted bf16, f16, f32 or f64 elements"},
      {"convolution f32[8,3,4] f32[2,3]", "convolution: w is f32[2,3]; wanted 3 dims"},
      {"convolution f32[8,3,4] bf16[2,3,1]", "convolution: w is bf16[2,3,1]; wanted elements of type f32"},
      {"convolution f32[8,3,4] f32[2,2,1]", "convolution: w is f32[2,2,1]; wanted dims [2,3,1]"},
      {"convolution f32[8,4,4] f32[6,1,1] groups=4",
       "convolution: groups=4; wanted a divisor of 4 input channels and of 6 output channels"},
      {"convolution f32[8,3,4] f32[2,3,1] f32[3]", "convolution: bias is f32[3]; wanted f32[2]"},
      {"convolution f32[8,3,4,4] f32[2,3,1,1] stride=[0,1]",
       "convolution: stride=[0,1]; wanted 2 numbers of at least 1"},
      {"convolution f32[8,3,4] f32[2,3,1] padding=[1,1]", "convolution: padding=[1,1]; wanted 1 number of at least 0"},
      {"convolution f32[8,3,4] f32[2,3,0]", "convolution: the kernel is [0]; wanted 1 or more each"},
      {"convolution f32[8,3,4] f32[2,3,3] dilation=[3] padding=[1]",
       "convolution: spatial dim 0 is 6 with its padding, less than the 7 that the kernel spans"},
      {"convolution_transposed f32[8,64,4] f32[64,3,3] size=[9] stride=[2] padding=[1]",
       "convolution_transposed: y is f32[8,64,4]; wanted dims [8,64,5]"},
      {"convolution_transposed f32[8,64,4] f32[3,64,3] size=[8] stride=[2] padding=[1]",
       "convolution_transposed: w is f32[3,64,3]; wanted dims [64,64,3]"},
      {"convolution_grad_weight f32[8,4,4] f32[8,3,4] kernel=[3]",
       "convolution_grad_weight: dy is f32[8,4,4]; wanted f32[8,4,2]"},
  });
}

TEST(InferPoolOps, TypesOfResults) {
  ExpectInferred({
      {"max_pool bf16[8,64,112,112] kernel=[3,3] stride=[2,2] padding=[1,1]", "bf16[8,64,56,56], i32[8,64,56,56]"},
      // A last window that begins in the padding behind the image is none.
      {"max_pool f32[1,1,5] kernel=[2] padding=[1] ceil_mode=true", "f32[1,1,3], i32[1,1,3]"},
      {"max_pool f32[1,1,6] kernel=[2] stride=[3] padding=[1] ceil_mode=true", "f32[1,1,3], i32[1,1,3]"},
      {"max_pool f32[1,1,6] kernel=[2] stride=[3] padding=[1]", "f32[1,1,3], i32[1,1,3]"},
      {"max_pool f32[1,1,6] kernel=[3] stride=[2] ceil_mode=true", "f32[1,1,3], i32[1,1,3]"},
      {"max_pool_grad f32[1,1,3] i32[1,1,3] kernel=[3] stride=[2] ceil_mode=true image=[6]", "f32[1,1,6]"},
      {"avg_pool f32[8,3,7,7] kernel=[7,7]", "f32[8,3,1,1]"},
      {"avg_pool f32[8,3,7,7] size=[2,3]", "f32[8,3,2,3]"},
      {"avg_pool_grad f32[8,3,2,3] size=[2,3] image=[7,7]", "f32[8,3,7,7]"},
      {"interpolate f32[8,3,7,7] size=[14,9] mode=linear scales=[2.0,1.3]", "f32[8,3,14,9]"},
      {"interpolate_grad f32[8,3,14] size=[14] mode=nearest image=[7]", "f32[8,3,7]"},
  });
}

TEST(InferPoolOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"max_pool f32[1,1,6] kernel=[2,2]", "max_pool: kernel=[2,2]; wanted 1 number of at least 1"},
      {"max_pool f32[1,1,6] kernel=[3] padding=[2]",
       "max_pool: padding=[2]; wanted at most half of what the kernel spans, 3 in spatial dim 0"},
      {"max_pool f32[1,1,60000,60000] kernel=[2,2]",
       "max_pool: x is f32[1,1,60000,60000]; wanted less than 2^31 elements a channel"},
      {"max_pool_grad f32[1,1,4] i32[1,1,4] kernel=[3] image=[6]",
       "max_pool_grad: dy is f32[1,1,4]; wanted f32[1,1,2]"},
      {"avg_pool f32[1,1,6]", "avg_pool: wanted one of the attributes kernel and size"},
      {"avg_pool f32[1,1,6] kernel=[2] size=[3]", "avg_pool: wanted one of the attributes kernel and size"},
      {"avg_pool f32[1,1,6] size=[3] stride=[2]", "avg_pool: stride goes with kernel; here is size"},
      {"avg_pool f32[1,1,6] kernel=[3] divisor=0", "avg_pool: divisor=0; wanted a number of at least 1"},
      {"interpolate f32[1,1,6] size=[3] mode=bilinear",
       "interpolate: mode=bilinear; wanted nearest, nearest_exact, linear or cubic"},
      {"interpolate f32[1,1,6] size=[3] mode=nearest align_corners=true",
       "interpolate: align_corners goes with mode linear or cubic; here is nearest"},
      {"interpolate f32[1,1,6] size=[3] mode=linear scales=[0.5,0.5]",
       "interpolate: scales: wanted 1 factors between 1e-6 and 1e6, one a spatial dim"},
      {"interpolate f32[1,1,0] size=[3] mode=linear",
       "interpolate: x is f32[1,1,0]; wanted spatial dims of at least 1"},
  });
}

TEST(InferChannelOps, TypesOfResults) {
  ExpectInferred({
      {"channel_sums bf16[8,3,7,7]", "f64[3], f64[3]"},
      {"channel_sums bf16[8,3] f32[8,3] sum_dtype=f32", "f32[3], f32[3]"},
      {"channel_sums f32[8,3,7] groups=2", "f64[2,3], f64[2,3]"},
      {"channel_affine bf16[8,3,7] f64[3] f32[3]", "bf16[8,3,7]"},
      {"channel_affine bf16[8,3,7] f64[2,3] f32[2,3]", "bf16[8,3,7]"},
      {"channel_affine_pair f32[8,3,7] f64[3] f32[8,3,7] f64[3] f64[3]", "f32[8,3,7]"},
      {"batch_moments f64[3] f64[3] extents=[8,7]", "f64[3], f64[3]"},
      {"batch_moments f64[3] f64[3] f32[3] f32[3] extents=[8,7] momentum=0.1", "f64[3], f64[3], f32[3], f32[3]"},
  });
}

TEST(InferChannelOps, ErrorsSayWhatIsWanted) {
  ExpectInferred({
      {"channel_sums f32[3]", "channel_sums: x is f32[3]; wanted samples and channels"},
      {"channel_sums f32[3,2] f32[3,3]", "channel_sums: z is f32[3,3]; wanted dims [3,2]"},
      {"channel_sums f32[3,2] groups=2", "channel_sums: groups=2; wanted a divisor of 3 samples"},
      {"channel_affine f32[3,2] f32[3]", "channel_affine: a is f32[3]; wanted dims [2]"},
      {"channel_affine f32[3,2] f32[2,2]", "channel_affine: the groups of a=2; wanted a divisor of 3 samples"},
      {"channel_affine f32[4,2] f32[2,2] f32[2]", "channel_affine: b is f32[2]; wanted dims [2,2]"},
      {"channel_affine_pair f32[3,2] f32[2] bf16[3,2] f32[2]", "channel_affine_pair: z is bf16[3,2]; wanted f32[3,2]"},
      {"batch_moments f64[3] f32[3] extents=[2]", "batch_moments: products is f32[3]; wanted f64[3]"},
      {"batch_moments f64[3] f64[3] extents=[4,0]",
       "batch_moments: extents=[4,0]; wanted at least one number a channel"},
      {"batch_moments f64[3] f64[3] f32[3] extents=[2]", "batch_moments: wanted the running variance beside the mean"},
      {"batch_moments f64[3] f64[3] f32[3] f32[2] extents=[2] momentum=0.1",
       "batch_moments: running_variance is f32[2]; wanted dims [3]"},
      {"batch_moments f64[3] f64[3] f32[3] f32[3] extents=[2]",
       "batch_moments: momentum=0; wanted a number from 0 to 1"},
  });
}

}  // namespace
}  // namespace tacc::graph
