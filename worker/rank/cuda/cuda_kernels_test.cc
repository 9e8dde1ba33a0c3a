// What a GPU's kernels have besides: who is faster at attention and products, and calls over many tensors.
#include "worker/rank/cuda/cuda_kernels.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "worker/rank/cuda/tuning/product_picker.h"
#include "worker/rank/program/testing/kernel_trial.h"

namespace tacc::worker {
namespace {

// Attention that writes what it was asked for.
class RecordingAttention : public kernels::cuda::FastAttention {
 public:
  void Run(const kernels::TensorView& q, const kernels::TensorView&, const kernels::TensorView&,
           const kernels::AttentionExtras&, const kernels::AttentionParameters& parameters,
           const kernels::TensorView& out, const kernels::TensorView& lse) const override {
    *out.as<double>() = parameters.scale;
    *lse.as<double>() = *q.as<double>();
  }
  void RunGrad(const kernels::TensorView& dout, const kernels::TensorView&, const kernels::TensorView&,
               const kernels::TensorView& v, const kernels::TensorView&, const kernels::TensorView& lse,
               const kernels::TensorView&, const kernels::AttentionParameters&, const kernels::TensorView& dq,
               const kernels::TensorView& dk, const kernels::TensorView& dv) const override {
    *dq.as<double>() = *dout.as<double>();
    *dk.as<double>() = *lse.as<double>();
    *dv.as<double>() = *v.as<double>();
  }
};

TEST(CudaKernels, LeaveAttentionToWhoIsFaster) {
  int asked = 0;
  const CudaKernelTable table(
      [&asked](const kernels::TensorView& q, const kernels::TensorView& k, const kernels::AttentionExtras& extras,
               const kernels::AttentionParameters& parameters) -> std::shared_ptr<const kernels::cuda::FastAttention> {
        ++asked;
        EXPECT_EQ(q.dims[2], 2);
        EXPECT_EQ(k.dims[2], 1);
        EXPECT_TRUE(parameters.causal);
        if (extras.first_keys.data != nullptr || extras.earlier_lse.data != nullptr) return nullptr;
        return std::make_shared<RecordingAttention>();
      });
  const std::string qkv = "f64[1,4,2,3] f64[1,4,1,3] f64[1,4,1,3]";
  KernelTrial forward("attention " + qkv + " causal=true scale=0.7");
  (*table.Prepare(forward.request()))();
  EXPECT_EQ(forward.result(0)[0], 0.7);
  EXPECT_EQ(forward.result(1)[0], forward.array(0).values[0]);
  KernelTrial backward("attention_grad f64[1,4,2,3] " + qkv + " f64[1,4,2,3] f64[1,2,4] causal=true scale=0.7");
  (*table.Prepare(backward.request()))();
  EXPECT_EQ(backward.result(0)[0], backward.array(0).values[0]);
  EXPECT_EQ(backward.result(1)[0], backward.array(5).values[0]);
  EXPECT_EQ(backward.result(2)[0], backward.array(3).values[0]);
  EXPECT_EQ(asked, 2);
  // Nobody takes these.
  KernelTrial documents("attention " + qkv + " i32[1,4] causal=true scale=0.7");
  (*table.Prepare(documents.request()))();
  EXPECT_NE(documents.result(0)[0], 0.7);
  EXPECT_EQ(asked, 3);
  KernelTrial further("attention_continue " + qkv + " f64[1,4,2,3] f64[1,2,4] causal=true scale=0.7");
  EXPECT_TRUE(table.Prepare(further.request()).ok());
  EXPECT_EQ(asked, 4);
}

// What PrepareFirst keeps on the device.
struct Kept {
  KernelTable::KeepOnDevice keep() {
    return [this](const std::vector<char>& bytes) -> absl::StatusOr<const void*> {
      return kept.emplace_back(bytes).data();
    };
  }
  std::vector<std::vector<char>> kept;
};

// Four updates of parameters of different sizes; the last one writes into the third one's gradient.
TEST(CudaKernels, UpdateParametersInOneCall) {
  const auto make = [] {
    std::vector<std::unique_ptr<KernelTrial>> trials;
    for (const char* dims : {"[3,5]", "[17000]", "[1]", "[1]"}) {
      const std::string text = absl::StrReplaceAll(
          "adamw f32D f32D f32D f32D f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.95 epsilon=1e-08 weight_decay=0.1",
          {{"D", dims}});
      trials.push_back(std::make_unique<KernelTrial>(text));
    }
    trials[3]->request().out[0] = trials[2]->request().in[3];
    return trials;
  };
  std::vector<std::unique_ptr<KernelTrial>> joint = make(), single = make();
  std::vector<KernelRequest> requests;
  for (const auto& trial : joint) requests.push_back(trial->request());
  Kept kept;
  const absl::StatusOr<KernelTable::Joint> first = DeviceUnderTest().table.PrepareFirst(requests, kept.keep());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->num_nodes, 3u);
  EXPECT_EQ(kept.kept.size(), 1u);
  const absl::StatusOr<KernelTable::Joint> last =
      DeviceUnderTest().table.PrepareFirst(absl::MakeConstSpan(requests).subspan(3), kept.keep());
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->num_nodes, 1u);
  first->kernel();
  last->kernel();
  for (const auto& trial : single) (*DeviceUnderTest().table.Prepare(trial->request()))();
  for (size_t i = 0; i < joint.size(); ++i) {
    for (size_t r = 0; r < 3; ++r)
      EXPECT_EQ(joint[i]->result(r).values, single[i]->result(r).values) << i << ", result " << r;
  }
  EXPECT_NE(joint[1]->result(0).values[16999], joint[1]->array(0).values[16999]);
  const absl::StatusOr<KernelTable::Joint> full =
      DeviceUnderTest().table.PrepareFirst(requests, [](const std::vector<char>&) -> absl::StatusOr<const void*> {
        return absl::ResourceExhaustedError("no memory");
      });
  EXPECT_TRUE(absl::IsResourceExhausted(full.status()));
}

TEST(CudaKernels, DoManyTensorsInOneCall) {
  const std::vector<std::string> runs[] = {
      {"cast f32[3,5] dtype=bf16", "cast bf16[17000] dtype=f32", "cast i64[] dtype=f32", "cast f32[0] dtype=bf16"},
      {"constant shape=[3,5] dtype=f32 value=0.0", "constant shape=[17000] dtype=bf16 value=0.5"},
      {"sum_squares f32[3,5] bf16[17000] f32[1,8] f32[0]"}};
  for (const std::vector<std::string>& texts : runs) {
    std::vector<std::unique_ptr<KernelTrial>> joint, single;
    std::vector<KernelRequest> requests;
    for (const std::string& text : texts) {
      joint.push_back(std::make_unique<KernelTrial>(text));
      single.push_back(std::make_unique<KernelTrial>(text));
      requests.push_back(joint.back()->request());
      (*DeviceUnderTest().table.Prepare(single.back()->request()))();
    }
    Kept kept;
    const absl::StatusOr<KernelTable::Joint> first = DeviceUnderTest().table.PrepareFirst(requests, kept.keep());
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->num_nodes, texts.size()) << texts[0];
    EXPECT_EQ(kept.kept.size(), 1u);
    first->kernel();
    for (size_t i = 0; i < joint.size(); ++i)
      EXPECT_EQ(joint[i]->result(0).values, single[i]->result(0).values) << texts[i];
  }
}

TEST(CudaKernels, JoinOnlyNodesThatMayRunInAnyOrder) {
  const auto num_joined = [](std::vector<KernelRequest> requests) {
    Kept kept;
    const absl::StatusOr<KernelTable::Joint> first = DeviceUnderTest().table.PrepareFirst(requests, kept.keep());
    EXPECT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(kept.kept.size(), first.ok() && first->num_nodes > 1 ? 1u : 0u);
    return first.ok() ? first->num_nodes : 0;
  };
  KernelTrial a("cast f32[100] dtype=bf16"), b("cast f32[100] dtype=bf16"), c("cast f32[100] dtype=bf16");
  const KernelRequest first = a.request(), second = b.request(), third = c.request();
  EXPECT_EQ(num_joined({first, second, third}), 3u);
  KernelRequest reads = second;  // what the first writes
  reads.in[0] = first.out[0];
  EXPECT_EQ(num_joined({first, reads, third}), 1u);
  KernelRequest writes = third;  // into what the first reads: its last element
  writes.out[0] = {first.in[0].as<char>() + 396, kernels::DType::kBF16, {100}};
  EXPECT_EQ(num_joined({first, second, writes}), 2u);
  KernelRequest again = second;
  again.out[0] = first.out[0];
  EXPECT_EQ(num_joined({first, again}), 1u);
  KernelRequest shares = second;  // what both read
  shares.in[0] = first.in[0];
  EXPECT_EQ(num_joined({first, shares}), 2u);
  EXPECT_EQ(num_joined({first}), 1u);
  KernelTrial sum("sum_squares f32[100]"), other("sum_squares f32[100]");  // A sum of several is one node.
  EXPECT_EQ(num_joined({sum.request(), other.request()}), 1u);
}

TEST(CudaKernels, RefuseAttentionThatIsTooWide) {
  KernelTrial wide("attention f64[1,2,1,130] f64[1,2,1,130] f64[1,2,1,130] causal=true scale=0.7");
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(wide.request());
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(kernel.status().message(), "attention on a GPU: head dim: 130, at most 128 in f64");
}
// cuBLASLt's algorithms want operands that begin at multiples of 16 bytes; a part may begin anywhere in its tensor.
TEST(CudaKernels, OfferPartsThatAreAlignedOnly) {
  int num_offered = 0;
  const CudaKernelTable table(nullptr, [&](const ProductCall& call) {
    ++num_offered;
    return nullptr;
  });
  for (const auto& [width, offered] : {std::pair(8, 2), {6, 1}, {10, 1}}) {
    num_offered = 0;
    for (int start : {0, 1}) {
      const std::string text =
          absl::StrCat("einsum f32[2,3,", width, "] f32[2,3,5] spec=\"bsn,bsk->nk\" dim=2 parts=2 start=", start,
                       " limit=", start + 1);
      KernelTrial trial(text);
      KernelRequest request = trial.request();
      alignas(64) static float whole[64];
      request.in[0].data = whole;
      ASSERT_TRUE(table.Prepare(request).ok());
    }
    EXPECT_EQ(num_offered, offered) << width;
  }
}
}  // namespace
}  // namespace tacc::worker
