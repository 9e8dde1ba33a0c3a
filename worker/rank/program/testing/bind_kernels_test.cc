// A device's kernels, bound as the executor binds them, against the interpreter, op by op.
#include "worker/rank/program/bind_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/rank/program/testing/kernel_trial.h"

namespace tacc::worker {
namespace {

using kernels::reference::Buffer;

TEST(Kernels, EveryOpHasAKernel) {
  const std::vector<std::string> kernels = BoundOps();
  const graph::OpTable ops;
  for (const auto& [name, op] : ops.ops()) {
    const bool leaf = name == "input" || name == "param" || name == "read" || name == "output" || name == "store";
    const bool executors_own = op.is_collective || name == "shard_slice" || name == "wait";
    EXPECT_EQ(std::count(kernels.begin(), kernels.end(), name), leaf || executors_own ? 0 : 1) << name;
  }
  for (const std::string& name : kernels) EXPECT_NE(ops.Find(name), nullptr) << name;
}

TEST(Kernels, EqualTheInterpreter) {
  for (const std::string& text : graph::OpCaseTexts()) {
    KernelTrial(text).Check(1e-9);
    KernelTrial(absl::StrReplaceAll(text, {{"f64", "f32"}})).Check(2e-5);
  }
}

TEST(Kernels, RefusesAnUnknownOp) {
  KernelTrial trial("neg f32[3]");
  graph::Node node = *trial.request().node;
  node.op = "frobnicate";
  trial.request().node = &node;
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(trial.request());
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(kernel.status().message(),
            absl::StrCat("the ", DeviceUnderTest().name, " has no kernel for frobnicate(f32)"));
}

// The message of an operator of LibTorch that cannot be called: of sort, with other attributes.
std::string WhyNot(const std::string& schema, const std::vector<std::string>& args,
                   const std::map<std::string, std::string>& words = {}) {
  KernelTrial trial(
      "aten f32[3,5] schema=\"aten::sort.default\" args=[\"%0\"] result_dtypes=[f32,i64] result_ranks=[2,2] "
      "result_dims=[3,5,3,5]");
  graph::Node node = *trial.request().node;
  node.attrs["schema"] = schema;
  node.attrs["args"] = args;
  for (const auto& [attr, text] : words) node.attrs[attr] = text;
  trial.request().node = &node;
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(trial.request());
  if (!kernel.ok()) return std::string(kernel.status().message());
  try {
    (*kernel)();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Kernels, SayWhyAnOperatorOfLibTorchCannotBeCalled) {
  EXPECT_EQ(WhyNot("aten::sort.default", {"%0"}), "");
  // A dtype, a format: it stops at what is wrong behind them.
  EXPECT_EQ(WhyNot("aten::cumprod.default", {"%0", "1", "float64"}),
            "aten::cumprod.default: argument \"1\"; wanted #N, or the name of a dtype or a format");
  EXPECT_THAT(WhyNot("aten::cumprod.default", {"%0", "float64", "float64"}),
              testing::HasSubstr("Dimension out of range"));
  EXPECT_EQ(WhyNot("aten::_to_copy.default", {"%0", "float64", "strided", "none", "none", "false", "last"}),
            "aten::_to_copy.default: argument \"last\"; wanted #N, or the name of a dtype or a format");
  EXPECT_EQ(WhyNot("aten::sorted.default", {"%0"}),
            "LibTorch has no operator aten::sorted.default; the rank can call its operators and those of --op-library");
  EXPECT_EQ(WhyNot("torchvision::roi_align.default", {"%0"}),
            "neither LibTorch nor a library that this worker gives its ranks has the operator "
            "torchvision::roi_align.default; start each worker with --op-library FILE, the path of that library on its "
            "machine");
  EXPECT_EQ(
      WhyNot("torchvision::roi_align.default", {"%0"}, {{"library", "/opt/_C.so"}, {"source", "m.py:3"}}),
      "m.py:3: neither LibTorch nor a library that this worker gives its ranks has the operator "
      "torchvision::roi_align.default, which was of /opt/_C.so at the export; start each worker with --op-library "
      "FILE, the path of that library on its machine");
  EXPECT_EQ(WhyNot("aten::neg_.default", {"%0"}), "aten::neg_.default changes its operands, which no node may do");
  EXPECT_EQ(WhyNot("aten::bernoulli.default", {"%0"}),
            "aten::bernoulli.default draws random numbers; use the ops random and dropout");
  EXPECT_EQ(WhyNot("aten::topk.default", {"%0"}), "aten::topk.default: the argument k is missing");
  EXPECT_EQ(WhyNot("aten::sort.default", {"%0", "last"}),
            "aten::sort.default: argument \"last\"; wanted #N, or the name of a dtype or a format");
  EXPECT_EQ(WhyNot("aten::neg.default", {"%0"}), "aten::neg.default has 1 results, not 2");
  EXPECT_EQ(WhyNot("aten::std_mean.default", {"%0"}),
            "aten::std_mean.default made a tensor of 0 dims and 1 elements; the graph says 2 dims and 15 elements");
}

TEST(Kernels, TakeTheShardsOffsets) {
  KernelTrial embedding("embedding f64[3,5] i32[3,4]");  // rows 2, 3, 4 of a larger table
  embedding.request().in_ranges[0][0] = {2, 5};
  embedding.Check(1e-12);
  KernelTrial embedding_grad("embedding_grad f64[3,4,5] i32[3,4] vocab_size=3");
  embedding_grad.request().out_ranges[0][0] = {2, 5};
  embedding_grad.Check(1e-12);
  KernelTrial experts("expert_matmul f64[3,5] i32[3,2] f64[3,4,5] num_experts=3");  // experts 2, 3, 4 of more
  experts.request().in_ranges[2][0] = {2, 5};
  experts.Check(1e-12);
  KernelTrial experts_grad("expert_matmul_grad f64[3,4] f64[3,5] i32[3,2] num_experts=3");
  experts_grad.request().out_ranges[0][0] = {2, 5};
  experts_grad.Check(1e-12);
  KernelTrial rope("rope_table inv_freq=[1.0,0.1] length=5 dtype=f64");
  for (auto& ranges : rope.request().out_ranges) ranges[0] = {10, 15};
  rope.Check(1e-12);
  KernelTrial iota("iota dim=0 dtype=i64 shape=[3,5]");
  iota.request().out_ranges[0][0] = {6, 9};
  iota.Check(0);
  KernelTrial alibi("attention f64[1,4,2,3] f64[1,4,2,3] f64[1,4,2,3] causal=true scale=0.7 alibi_slopes=[0.5,0.25]");
  for (auto& ranges : alibi.request().in_ranges) ranges[2] = {1, 3};  // heads 1 and (padding) 2
  alibi.Check(1e-9);
}

TEST(Kernels, LeaveOutPadding) {
  KernelTrial sum("sum_squares f64[4,5]");
  sum.request().in_ranges[0] = {{4, 7}, {0, 5}};
  sum.Check(1e-12);
  KernelTrial sum_of_several("sum_squares f64[4,5] f64[3] f64[2,6]");
  sum_of_several.request().in_ranges[0] = {{4, 7}, {0, 5}};
  sum_of_several.request().in_ranges[2] = {{0, 2}, {6, 9}};
  sum_of_several.Check(1e-12);
  KernelTrial loss("cross_entropy f64[4,3,7] i32[4,3]");
  loss.request().in_ranges[0] = {{4, 6}, {0, 3}, {0, 7}};
  loss.request().in_ranges[1] = {{4, 6}, {0, 3}};
  for (int64_t i = 6; i < 12; ++i) loss.array(1).values[i] = -1;  // not counted
  loss.Check(1e-9);
  KernelTrial mask("neg f64[4,3]");  // mask_padding has no case of its own
  graph::Node node = *mask.request().node;
  node.op = graph::Op::kMaskPadding;
  mask.request().node = &node;
  mask.request().in_ranges[0] = {{4, 6}, {0, 3}};
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(mask.request());
  ASSERT_TRUE(kernel.ok());
  (*kernel)();
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(mask.result(0)[i], i < 6 ? mask.array(0).values[i] : 0);
}

TEST(Kernels, DropoutOfAPartOfASampleEqualsTheWholes) {
  KernelTrial whole("dropout f64[3,8,10] i64[] i64[3] rate=0.4 key=3 seed=42");
  whole.Check(1e-12);
  KernelTrial part("dropout f64[3,4,5] i64[] i64[3] rate=0.4 key=3 seed=42");
  const Buffer& x = part.in(0);
  const auto index = [](int64_t b, int64_t s, int64_t n) { return (b * 8 + s + 4) * 10 + n + 5; };
  for (int64_t i = 0; i < 60; ++i) x.view().as<double>()[i] = whole.array(0).values[index(i / 20, i / 5 % 4, i % 5)];
  part.request().in_ranges[0] = {{0, 3}, {4, 8}, {5, 10}};
  part.request().in_logical = {{3, 8, 10}, {}, {3}};
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(part.request());
  ASSERT_TRUE(kernel.ok());
  (*kernel)();
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(part.result(0)[i], whole.result(0)[index(i / 20, i / 5 % 4, i % 5)]);
  }
}

TEST(Kernels, RandomNumbersOfAPartOfASampleAreTheWholes) {
  KernelTrial whole("random i64[] i64[3] distribution=normal dtype=f64 shape=[3,8,10] key=3 seed=42");
  whole.Check(1e-12);
  KernelTrial part("random i64[] i64[3] distribution=normal dtype=f64 shape=[3,4,5] key=3 seed=42");
  graph::Node node = *part.request().node;
  node.attrs["shape"] = std::vector<int64_t>{3, 8, 10};
  part.request().node = &node;
  part.request().out_ranges[0] = {{0, 3}, {4, 8}, {5, 10}};
  const absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(part.request());
  ASSERT_TRUE(kernel.ok());
  (*kernel)();
  for (int64_t i = 0; i < 60; ++i)
    EXPECT_EQ(part.result(0)[i], whole.result(0)[(i / 20 * 8 + i / 5 % 4 + 4) * 10 + i % 5 + 5]);
}

// All keys of a sample, and one of another.
TEST(Kernels, BiasesOfKeysMayOutweighProducts) {
  for (const char* text : {"attention f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f32[2,5] causal=false scale=0.7 "
                           "softcap=0.9 key_bias=true",
                           "attention_grad f64[2,3,4,3] f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f64[2,3,4,3] f64[2,4,3] "
                           "f32[2,5] causal=false scale=0.7 softcap=0.9 key_bias=true",
                           "attention_bias_grad f64[2,3,4,3] f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f64[2,3,4,3] "
                           "f64[2,4,3] f64[2,1,3,5] causal=false scale=0.7 softcap=0.9 bias=true",
                           "attention_bias_grad f64[2,3,4,3] f64[2,3,4,2] f64[2,5,2,2] f64[2,5,2,3] f64[2,3,4,3] "
                           "f64[2,4,3] f64[2,1,3,5] causal=false scale=0.7 bias=true bias_yields=true"}) {
    KernelTrial trial(text);
    const size_t bias = trial.request().in.size() - 1;
    for (const int64_t i : {3, 5, 6, 7, 8, 9}) {
      trial.array(bias).values[i] = INFINITY;
      const kernels::TensorView view = trial.in(bias).view();
      if (view.dtype == kernels::DType::kF64) {
        view.as<double>()[i] = INFINITY;
      } else {
        view.as<float>()[i] = INFINITY;
      }
    }
    trial.Check(1e-9);
  }
}

// Of 3 rows of 4 complex numbers, as pairs: their product, and the gradient of its first factor.
TEST(Kernels, ComplexNumbersArePairs) {
  const std::string call =
      "schema=\"aten::mul.Tensor\" args=[\"i%0\",\"i%1\"] result_dtypes=[f32] result_ranks=[3] result_dims=[3,4,2]";
  KernelTrial product("aten f32[3,4,2] f32[3,4,2] " + call);
  absl::StatusOr<Kernel> kernel = DeviceUnderTest().table.Prepare(product.request());
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  (*kernel)();
  const auto number = [](const std::vector<double>& values, int64_t i) {
    return std::complex<double>(values[2 * i], values[2 * i + 1]);
  };
  const std::vector<double> a = product.array(0).values, b = product.array(1).values;
  for (int64_t i = 0; i < 12; ++i) {
    const std::complex<double> want = number(a, i) * number(b, i);
    EXPECT_NEAR(product.result(0)[2 * i], want.real(), 1e-5);
    EXPECT_NEAR(product.result(0)[2 * i + 1], want.imag(), 1e-5);
  }
  KernelTrial vjp("aten_vjp f32[3,4,2] f32[3,4,2] f32[3,4,2] " + call + " operands=2 needed=[0] given=[0]");
  kernel = DeviceUnderTest().table.Prepare(vjp.request());
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  (*kernel)();
  for (int64_t i = 0; i < 12; ++i) {
    const std::complex<double> want = number(vjp.array(2).values, i) * std::conj(number(vjp.array(1).values, i));
    EXPECT_NEAR(vjp.result(0)[2 * i], want.real(), 1e-5);
    EXPECT_NEAR(vjp.result(0)[2 * i + 1], want.imag(), 1e-5);
  }
}

}  // namespace
}  // namespace tacc::worker
