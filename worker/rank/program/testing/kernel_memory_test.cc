// The memory that a device's kernels take on the host, against what the ops promise (graph/targets).
#include <gtest/gtest.h>
#include <omp.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/cpu/counting_allocator.h"
#include "kernels/cpu/einsum.h"
#include "worker/rank/program/testing/kernel_trial.h"

namespace tacc::worker {
namespace {

// Bytes that a run takes beyond its operands and results.
int64_t TakenBytes(KernelTrial& trial) {
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(trial.request());
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  (*kernel)();
  kernels::cpu::ResetPeak();
  (*kernel)();
  return kernels::cpu::PeakBytes();
}

// Parts that lie one behind the other are one operand.
TEST(Kernels, MultiplyPartsWhereTheyLie) {
  KernelTrial whole("einsum f32[8,64] f32[128,64] spec=\"mk,nk->mn\"");
  KernelTrial parts("einsum_joined f32[8,64] f32[64,64] f32[64,64] spec=\"mk,nk->mn\"");
  KernelRequest request = parts.request();
  const kernels::TensorView stack = whole.request().in[1];
  request.in[0] = whole.request().in[0];
  for (int64_t i = 0; i < 2; ++i) request.in[1 + i].data = stack.as<char>() + i * stack.bytes() / 2;
  const absl::StatusOr<Kernel> wanted = DeviceUnderTest().table.Prepare(whole.request()),
                               kernel = DeviceUnderTest().table.Prepare(request);
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  (*wanted)();
  kernels::cpu::InstallCountingAllocator();
  kernels::cpu::ResetPeak();
  (*kernel)();
  EXPECT_LT(kernels::cpu::PeakBytes(), stack.bytes());
  EXPECT_EQ(parts.result(0).values, whole.result(0).values);
}

std::vector<std::string> ImageTexts(const std::string& type) {
  std::vector<std::string> texts;
  // Behind samples and channels.
  const auto spatial = [](const std::string& dims) { return dims.substr(dims.find(',', dims.find(',') + 1) + 1); };
  for (const auto& [x, w, y, window] : {std::tuple<std::string, std::string, std::string, std::string>{
                                            "4,3,64,64", "32,3,7,7", "4,32,32,32", " stride=[2,2] padding=[3,3]"},
                                        {"4,32,28,28", "48,32,3,3", "4,48,28,28", " padding=[1,1]"},
                                        {"1,17,33,31", "5,17,3,3", "1,5,33,31", " padding=[1,1]"},
                                        {"4,64,28,28", "96,64,1,1", "4,96,28,28", ""},
                                        {"4,64,28,28", "96,64,1,1", "4,96,14,14", " stride=[2,2]"},
                                        {"2,128,7,7", "256,128,3,3", "2,256,7,7", " padding=[1,1]"},
                                        {"4,32,30,30", "32,1,3,3", "4,32,30,30", " padding=[1,1] groups=32"},
                                        {"4,1,60,60", "8,1,5,5", "4,8,56,56", ""},
                                        {"2,80,300", "64,80,3", "2,64,300", " padding=[1]"}}) {
    texts.push_back(absl::StrCat("convolution T[", x, "] T[", w, "]", window));
    texts.push_back(absl::StrCat("convolution_transposed T[", y, "] T[", w, "]", window, " size=[", spatial(x), "]"));
    texts.push_back(
        absl::StrCat("convolution_grad_weight T[", y, "] T[", x, "]", window, " kernel=[", spatial(w), "]"));
  }
  for (const char* text : {"max_pool T[4,20,40,40] kernel=[3,3] stride=[2,2] padding=[1,1]",
                           "max_pool_grad T[4,20,20,20] i32[4,20,20,20] kernel=[2,2] image=[40,40]",
                           "avg_pool T[4,20,40,40] kernel=[3,3]", "interpolate T[4,20,40,40] size=[90,70] mode=cubic",
                           "interpolate_grad T[4,20,90,70] size=[90,70] mode=linear image=[40,40]",
                           "channel_sums T[4,2000,7,7]", "channel_sums T[4,3,70,70] T[4,3,70,70]"}) {
    texts.push_back(text);
  }
  for (std::string& text : texts) text = absl::StrReplaceAll(text, {{"T[", absl::StrCat(type, "[")}});
  return texts;
}

TEST(Kernels, TakeNoMoreMemoryThanTheOpsPromise) {
  kernels::cpu::InstallCountingAllocator();
  const int threads_before = omp_get_max_threads();
  std::vector<std::string> texts = graph::OpCaseTexts();
  for (const std::string& text : graph::OpCaseTexts()) {
    // In bf16, rows' statistics, sums and learning rates are f32.
    if (text.find("einsum ") == 0 || text.find("einsum_joined ") == 0)
      texts.push_back(absl::StrReplaceAll(text, {{"f64", "bf16"}}));
  }
  for (const char* type : {"f32", "bf16", "f16"}) {
    for (const char* shape : {"512,256] T[1000,256]", "256,64] T[4000,64]", "64,1500] T[64,1500]"}) {
      texts.push_back(absl::StrReplaceAll(absl::StrCat("einsum T[", shape, " spec=\"mk,nk->mn\""), {{"T", type}}));
      texts.push_back(
          absl::StrReplaceAll(absl::StrCat("einsum T[", shape, " spec=\"mk,nk->mn\" dtype=f32"), {{"T", type}}));
      texts.push_back(absl::StrReplaceAll(absl::StrCat("einsum T[", shape, " spec=\"mk,nk->nm\""), {{"T", type}}));
    }
    texts.push_back(
        absl::StrReplaceAll("einsum_joined T[512,256] T[1000,256] T[1000,256] spec=\"mk,nk->mn\"", {{"T", type}}));
    for (const char* biased :
         {"T[1000] T[512,256] T[1000,256] spec=\"mk,nk->mn\"", "T[2000] T[1500,16] T[2000,16] spec=\"mk,nk->mn\"",
          "T[4,50] T[3,70,64] T[4,50,64] spec=\"bsk,hdk->bshd\"",
          "T[50] T[3,70,64] T[4,50,64] spec=\"bsk,hdk->bshd\""}) {
      texts.push_back(absl::StrReplaceAll(absl::StrCat("einsum_accumulate ", biased), {{"T", type}}));
    }
    for (const auto& [shape, sum] : {std::pair{"512,256] T[512,1000]", "256,1000"},
                                     {"1500,64] T[1500,64]", "64,64"},
                                     {"16,1500] T[16,2000]", "1500,2000"}}) {
      texts.push_back(
          absl::StrReplaceAll(absl::StrCat("einsum T[", shape, " spec=\"km,kn->mn\" dtype=f32"), {{"T", type}}));
      for (const char* acc : {"f32", "T"}) {
        texts.push_back(absl::StrReplaceAll(
            absl::StrCat("einsum_accumulate ", acc, "[", sum, "] T[", shape, " spec=\"km,kn->mn\""), {{"T", type}}));
      }
    }
    texts.push_back(absl::StrReplaceAll("einsum T[6,80,30] T[7,80,30] spec=\"mkb,nkb->bmn\"", {{"T", type}}));
    texts.push_back(absl::StrReplaceAll("einsum T[3,60,4,16] T[3,70,4,16] spec=\"bihd,bjhd->bhij\"", {{"T", type}}));
    for (const char* shape : {"2,200,4,64] T[2,200,4,64] T[2,200,4,64]", "1,800,2,64] T[1,800,1,64] T[1,800,1,64]",
                              "2,50,8,32] T[2,50,2,32] T[2,50,2,32]", "1,100,3,80] T[1,100,3,80] T[1,100,3,80]"}) {
      const std::string q = absl::StrCat("T[", std::string(shape).substr(0, std::string(shape).find(']') + 1));
      const std::string tail = absl::StrCat("T[", shape, " causal=true scale=0.1");
      texts.push_back(absl::StrReplaceAll(absl::StrCat("attention ", tail), {{"T", type}}));
      const std::string s = shape[2] == '2'   ? "2,4,200"
                            : shape[2] == '8' ? "1,2,800"
                            : shape[2] == '5' ? "2,8,50"
                                              : "1,3,100";
      texts.push_back(absl::StrReplaceAll(
          absl::StrCat("attention_grad ", q, " T[", shape, " ", q, " f32[", s, "] causal=true scale=0.1"),
          {{"T", type}}));
    }
    for (const std::string& text : ImageTexts(type)) texts.push_back(text);
    texts.push_back(absl::StrReplaceAll("expert_matmul T[900,64] i32[900,2] T[7,300,64] num_experts=7", {{"T", type}}));
    texts.push_back(absl::StrReplaceAll(
        "expert_matmul T[2000,2,300] i32[2000,2] T[7,300,64] num_experts=7 transposed=true sum_slots=true",
        {{"T", type}}));
    texts.push_back(
        absl::StrReplaceAll("expert_matmul_grad T[2000,2,300] T[2000,64] i32[2000,2] num_experts=2", {{"T", type}}));
    texts.push_back(absl::StrReplaceAll("rms_norm_grad T[300,512] T[300,512] T[512] f32[300]", {{"T", type}}));
    texts.push_back(absl::StrReplaceAll("rms_norm_grad_accumulate T[300,512] T[300,512] T[300,512] T[512] f32[300]",
                                        {{"T", type}}));
    texts.push_back(absl::StrReplaceAll(
        "layer_norm_grad T[3000,100] T[3000,100] f32[3000] f32[3000] T[100] affine=weight_bias", {{"T", type}}));
    for (const char* text : {"embedding_grad T[5,700,64] i32[5,700] vocab_size=900", "reduce_sum T[70000] dims=[0]",
                             "reduce_sum T[3000,40] dims=[0]", "reduce_max T[9,5000] dims=[1]",
                             "sum_squares T[300,700]", "sum_squares T[300,700] T[9000]", "softmax T[300,50]"}) {
      texts.push_back(absl::StrReplaceAll(text, {{" T[", absl::StrCat(" ", type, "[")}}));
    }
  }
  const graph::TargetKind kind = DeviceUnderTest().target;
  const bool is_gpu = kind.asynchronous;
  for (const std::string& text : texts) {
    // On the host LibTorch multiplies 16-bit numbers, and convolves, by other means than on a GPU.
    if (is_gpu && text.rfind("einsum", 0) == 0 && text.find("f16[") != std::string::npos) continue;
    if (is_gpu && text.rfind("convolution", 0) == 0) continue;
    KernelTrial trial(text);
    for (int threads : is_gpu ? std::vector<int>{1} : std::vector<int>{1, 2, 4}) {
      omp_set_num_threads(threads);
      EXPECT_LE(TakenBytes(trial), trial.PromisedBytes(*kind.make({threads, kernels::cpu::HasBf16Multiply()})))
          << text << " with " << threads << " threads";
    }
  }
  omp_set_num_threads(threads_before);
}
}  // namespace
}  // namespace tacc::worker
