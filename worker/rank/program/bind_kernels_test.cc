// A device's kernels, bound as the executor binds them, against the interpreter of tests/, op by op; and the memory
// they take against what the ops' workspace_bytes promise. Built for the CPU's kernels, for the GPU's as they run on
// the host (kernels/cuda/launch/launch.h), and without the memory for a GPU (TACC_ON_GPU; cuda/gpu_test_main.cc).
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "graph/interpreter/evaluate.h"
#include "graph/ops/op_cases.h"
#include "graph/targets/targets.h"
#include "kernels/reference/buffer.h"
#ifndef TACC_ON_GPU
#include "kernels/cpu/counting_allocator.h"
#include "kernels/cpu/einsum.h"
#endif
#ifdef TACC_GPU_KERNELS
#include "worker/rank/cuda/cuda_kernels.h"
#include "worker/rank/cuda/tuning/product_picker.h"
#else
#include "worker/rank/program/cpu_kernels.h"
#endif

namespace tacc::worker {
namespace {

using graph::OpCase;
using graph::Range;
using graph::TensorType;
using interpreter::Array;
using kernels::Dims;
using kernels::reference::Buffer;
using kernels::reference::MaxError;
using kernels::reference::Tensor;

#ifdef TACC_GPU_KERNELS
using Table = CudaKernelTable;
constexpr char kDevice[] = "GPU";
[[maybe_unused]] constexpr auto kTarget = graph::CudaTarget;
#else
using Table = CpuKernelTable;
constexpr char kDevice[] = "CPU";
constexpr auto kTarget = graph::CpuTarget;
#endif

using Ranges = std::vector<std::vector<Range>>;

Dims DimsOf(const TensorType& type) { return Dims(type.dims.begin(), type.dims.end()); }
kernels::DType DTypeOf(const TensorType& type) { return static_cast<kernels::DType>(type.dtype); }

Ranges Whole(const std::vector<TensorType>& types) {
  Ranges ranges;
  for (const TensorType& type : types) {
    ranges.emplace_back();
    for (int64_t d : type.dims) ranges.back().push_back({0, d});
  }
  return ranges;
}

// One op with random operands, run by the kernel and by the interpreter.
class Trial {
 public:
  explicit Trial(const std::string& text) : case_(*graph::ParseOpCase(ops_, text)) {
    const graph::OpCall call = graph::CallOf(case_.graph, case_.op_node());
    interpreter::Random random(1);
    const interpreter::Arrays leaves = graph::RandomLeaves(case_, random);
    for (size_t i = 0; i < call.operands.size(); ++i) {
      const TensorType& type = call.operands[i];
      in_.emplace_back(DTypeOf(type), Tensor(DimsOf(type), leaves.at(absl::StrCat("a", i)).values));
      // As rounded to the operand's type.
      arrays_.push_back({type.dims, in_.back().ToTensor().values});
    }
    for (const TensorType& type : call.results) out_.emplace_back(DTypeOf(type), DimsOf(type));
    request_.node = &case_.op_node();
    for (const Buffer& buffer : in_) request_.in.push_back(buffer);
    for (const Buffer& buffer : out_) request_.out.push_back(buffer);
    request_.in_ranges = Whole(call.operands);
    request_.out_ranges = Whole(call.results);
  }

  KernelRequest& request() { return request_; }
  Array& array(size_t operand) { return arrays_[operand]; }
  const Buffer& in(size_t operand) const { return in_[operand]; }
  Tensor result(size_t i) const { return out_[i].ToTensor(); }

  // Runs both and expects equal results.
  void Check(double tolerance) {
    const absl::StatusOr<Kernel> kernel = Table().Prepare(request_);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    (*kernel)();
    interpreter::Request wanted;
    wanted.node = request_.node;
    for (const Array& array : arrays_) wanted.in.push_back(&array);
    wanted.out_types = graph::CallOf(case_.graph, case_.op_node()).results;
    wanted.in_ranges = request_.in_ranges;
    wanted.out_ranges = request_.out_ranges;
    const graph::OpCall call = graph::CallOf(case_.graph, case_.op_node());
    for (const TensorType& type : call.operands) wanted.in_logical.push_back(type.dims);
    for (const TensorType& type : call.results) wanted.out_logical.push_back(type.dims);
    const absl::StatusOr<interpreter::Results> results = interpreter::EvaluatorTable().Evaluate(wanted);
    ASSERT_TRUE(results.ok()) << results.status();
    for (size_t i = 0; i < out_.size(); ++i) {
      Tensor want(out_[i].view().dims, (*results)[i].values);
      EXPECT_LE(MaxError(out_[i].ToTensor(), Rounded(want, out_[i].view().dtype), 1), tolerance)
          << case_.text << ", result " << i;
      EXPECT_TRUE(out_[i].GuardsIntact()) << case_.text;
    }
    for (const Buffer& buffer : in_) EXPECT_TRUE(buffer.GuardsIntact()) << case_.text;
  }

#ifndef TACC_ON_GPU
  // Bytes that a run takes beyond its operands and results, and what the op promises.
  int64_t TakenBytes() {
    const absl::StatusOr<Kernel> kernel = Table().Prepare(request_);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    (*kernel)();
    kernels::cpu::ResetPeak();
    (*kernel)();
    return kernels::cpu::PeakBytes();
  }
  int64_t PromisedBytes(const graph::Target& target) const {
    const graph::OpDef* op = ops_.Find(request_.node->op);
    return graph::WorkspaceBytes(*op, graph::CallOf(case_.graph, case_.op_node()), target, graph::Parts::kApart);
  }
#endif

 private:
  graph::OpTable ops_;
  OpCase case_;
  std::vector<Buffer> in_, out_;
  std::vector<Array> arrays_;
  KernelRequest request_;
};

TEST(Kernels, EveryOpHasAKernel) {
  const std::vector<std::string> kernels = Table::Ops();
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
    Trial(text).Check(1e-9);
    Trial(absl::StrReplaceAll(text, {{"f64", "f32"}})).Check(2e-5);
  }
}

TEST(Kernels, RefusesAnUnknownOp) {
  Trial trial("neg f32[3]");
  graph::Node node = *trial.request().node;
  node.op = "frobnicate";
  trial.request().node = &node;
  const absl::StatusOr<Kernel> kernel = Table().Prepare(trial.request());
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(kernel.status().message(), absl::StrCat("the ", kDevice, " has no kernel for frobnicate(f32)"));
}

#ifdef TACC_GPU_KERNELS
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

TEST(Kernels, LeaveAttentionToWhoIsFaster) {
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
  Trial forward("attention " + qkv + " causal=true scale=0.7");
  (*table.Prepare(forward.request()))();
  EXPECT_EQ(forward.result(0)[0], 0.7);
  EXPECT_EQ(forward.result(1)[0], forward.array(0).values[0]);
  Trial backward("attention_grad f64[1,4,2,3] " + qkv + " f64[1,4,2,3] f64[1,2,4] causal=true scale=0.7");
  (*table.Prepare(backward.request()))();
  EXPECT_EQ(backward.result(0)[0], backward.array(0).values[0]);
  EXPECT_EQ(backward.result(1)[0], backward.array(5).values[0]);
  EXPECT_EQ(backward.result(2)[0], backward.array(3).values[0]);
  EXPECT_EQ(asked, 2);
  // Nobody takes these.
  Trial documents("attention " + qkv + " i32[1,4] causal=true scale=0.7");
  (*table.Prepare(documents.request()))();
  EXPECT_NE(documents.result(0)[0], 0.7);
  EXPECT_EQ(asked, 3);
  Trial further("attention_continue " + qkv + " f64[1,4,2,3] f64[1,2,4] causal=true scale=0.7");
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
TEST(Kernels, UpdateParametersInOneCall) {
  const auto make = [] {
    std::vector<std::unique_ptr<Trial>> trials;
    for (const char* dims : {"[3,5]", "[17000]", "[1]", "[1]"}) {
      const std::string text = absl::StrReplaceAll(
          "adamw f32D f32D f32D f32D f32[] f32[] f32[] f32[] beta1=0.9 beta2=0.95 epsilon=1e-08 weight_decay=0.1",
          {{"D", dims}});
      trials.push_back(std::make_unique<Trial>(text));
    }
    trials[3]->request().out[0] = trials[2]->request().in[3];
    return trials;
  };
  std::vector<std::unique_ptr<Trial>> joint = make(), single = make();
  std::vector<KernelRequest> requests;
  for (const auto& trial : joint) requests.push_back(trial->request());
  Kept kept;
  const absl::StatusOr<KernelTable::Joint> first = Table().PrepareFirst(requests, kept.keep());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->num_nodes, 3u);
  EXPECT_EQ(kept.kept.size(), 1u);
  const absl::StatusOr<KernelTable::Joint> last =
      Table().PrepareFirst(absl::MakeConstSpan(requests).subspan(3), kept.keep());
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->num_nodes, 1u);
  first->kernel();
  last->kernel();
  for (const auto& trial : single) (*Table().Prepare(trial->request()))();
  for (size_t i = 0; i < joint.size(); ++i) {
    for (size_t r = 0; r < 3; ++r)
      EXPECT_EQ(joint[i]->result(r).values, single[i]->result(r).values) << i << ", result " << r;
  }
  EXPECT_NE(joint[1]->result(0).values[16999], joint[1]->array(0).values[16999]);
  const absl::StatusOr<KernelTable::Joint> full =
      Table().PrepareFirst(requests, [](const std::vector<char>&) -> absl::StatusOr<const void*> {
        return absl::ResourceExhaustedError("no memory");
      });
  EXPECT_TRUE(absl::IsResourceExhausted(full.status()));
}

TEST(Kernels, DoManyTensorsInOneCall) {
  const std::vector<std::string> runs[] = {
      {"cast f32[3,5] dtype=bf16", "cast bf16[17000] dtype=f32", "cast i64[] dtype=f32", "cast f32[0] dtype=bf16"},
      {"constant shape=[3,5] dtype=f32 value=0.0", "constant shape=[17000] dtype=bf16 value=0.5"},
      {"sum_squares f32[3,5] bf16[17000] f32[1,8] f32[0]"}};
  for (const std::vector<std::string>& texts : runs) {
    std::vector<std::unique_ptr<Trial>> joint, single;
    std::vector<KernelRequest> requests;
    for (const std::string& text : texts) {
      joint.push_back(std::make_unique<Trial>(text));
      single.push_back(std::make_unique<Trial>(text));
      requests.push_back(joint.back()->request());
      (*Table().Prepare(single.back()->request()))();
    }
    Kept kept;
    const absl::StatusOr<KernelTable::Joint> first = Table().PrepareFirst(requests, kept.keep());
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->num_nodes, texts.size()) << texts[0];
    EXPECT_EQ(kept.kept.size(), 1u);
    first->kernel();
    for (size_t i = 0; i < joint.size(); ++i)
      EXPECT_EQ(joint[i]->result(0).values, single[i]->result(0).values) << texts[i];
  }
}

TEST(Kernels, JoinOnlyNodesThatMayRunInAnyOrder) {
  const auto num_joined = [](std::vector<KernelRequest> requests) {
    Kept kept;
    const absl::StatusOr<KernelTable::Joint> first = Table().PrepareFirst(requests, kept.keep());
    EXPECT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(kept.kept.size(), first.ok() && first->num_nodes > 1 ? 1u : 0u);
    return first.ok() ? first->num_nodes : 0;
  };
  Trial a("cast f32[100] dtype=bf16"), b("cast f32[100] dtype=bf16"), c("cast f32[100] dtype=bf16");
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
  Trial sum("sum_squares f32[100]"), other("sum_squares f32[100]");  // A sum of several is one node.
  EXPECT_EQ(num_joined({sum.request(), other.request()}), 1u);
}

TEST(Kernels, RefuseAttentionThatIsTooWide) {
  Trial wide("attention f64[1,2,1,130] f64[1,2,1,130] f64[1,2,1,130] causal=true scale=0.7");
  const absl::StatusOr<Kernel> kernel = Table().Prepare(wide.request());
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(kernel.status().message(), "attention on a GPU: head dim: 130, at most 128 in f64");
}
#endif

TEST(Kernels, TakeTheShardsOffsets) {
  Trial embedding("embedding f64[3,5] i32[3,4]");  // rows 2, 3, 4 of a larger table
  embedding.request().in_ranges[0][0] = {2, 5};
  embedding.Check(1e-12);
  Trial embedding_grad("embedding_grad f64[3,4,5] i32[3,4] vocab_size=3");
  embedding_grad.request().out_ranges[0][0] = {2, 5};
  embedding_grad.Check(1e-12);
  Trial experts("expert_matmul f64[3,5] i32[3,2] f64[3,4,5] num_experts=3");  // experts 2, 3, 4 of more
  experts.request().in_ranges[2][0] = {2, 5};
  experts.Check(1e-12);
  Trial experts_grad("expert_matmul_grad f64[3,4] f64[3,5] i32[3,2] num_experts=3");
  experts_grad.request().out_ranges[0][0] = {2, 5};
  experts_grad.Check(1e-12);
  Trial rope("rope_table inv_freq=[1.0,0.1] length=5 dtype=f64");
  for (auto& ranges : rope.request().out_ranges) ranges[0] = {10, 15};
  rope.Check(1e-12);
  Trial iota("iota dim=0 dtype=i64 shape=[3,5]");
  iota.request().out_ranges[0][0] = {6, 9};
  iota.Check(0);
  Trial alibi("attention f64[1,4,2,3] f64[1,4,2,3] f64[1,4,2,3] causal=true scale=0.7 alibi_slopes=[0.5,0.25]");
  for (auto& ranges : alibi.request().in_ranges) ranges[2] = {1, 3};  // heads 1 and (padding) 2
  alibi.Check(1e-9);
}

TEST(Kernels, LeaveOutPadding) {
  Trial sum("sum_squares f64[4,5]");
  sum.request().in_ranges[0] = {{4, 7}, {0, 5}};
  sum.Check(1e-12);
  Trial sum_of_several("sum_squares f64[4,5] f64[3] f64[2,6]");
  sum_of_several.request().in_ranges[0] = {{4, 7}, {0, 5}};
  sum_of_several.request().in_ranges[2] = {{0, 2}, {6, 9}};
  sum_of_several.Check(1e-12);
  Trial loss("cross_entropy f64[4,3,7] i32[4,3]");
  loss.request().in_ranges[0] = {{4, 6}, {0, 3}, {0, 7}};
  loss.request().in_ranges[1] = {{4, 6}, {0, 3}};
  for (int64_t i = 6; i < 12; ++i) loss.array(1).values[i] = -1;  // not counted
  loss.Check(1e-9);
  Trial mask("neg f64[4,3]");  // mask_padding has no case of its own
  graph::Node node = *mask.request().node;
  node.op = graph::Op::kMaskPadding;
  mask.request().node = &node;
  mask.request().in_ranges[0] = {{4, 6}, {0, 3}};
  const absl::StatusOr<Kernel> kernel = Table().Prepare(mask.request());
  ASSERT_TRUE(kernel.ok());
  (*kernel)();
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(mask.result(0)[i], i < 6 ? mask.array(0).values[i] : 0);
}

TEST(Kernels, DropoutOfAPartOfASampleEqualsTheWholes) {
  Trial whole("dropout f64[3,8,10] i64[] i64[3] rate=0.4 key=3 seed=42");
  whole.Check(1e-12);
  Trial part("dropout f64[3,4,5] i64[] i64[3] rate=0.4 key=3 seed=42");
  const Buffer& x = part.in(0);
  const auto index = [](int64_t b, int64_t s, int64_t n) { return (b * 8 + s + 4) * 10 + n + 5; };
  for (int64_t i = 0; i < 60; ++i) x.view().as<double>()[i] = whole.array(0).values[index(i / 20, i / 5 % 4, i % 5)];
  part.request().in_ranges[0] = {{0, 3}, {4, 8}, {5, 10}};
  part.request().in_logical = {{3, 8, 10}, {}, {3}};
  const absl::StatusOr<Kernel> kernel = Table().Prepare(part.request());
  ASSERT_TRUE(kernel.ok());
  (*kernel)();
  for (int64_t i = 0; i < 60; ++i) {
    EXPECT_EQ(part.result(0)[i], whole.result(0)[index(i / 20, i / 5 % 4, i % 5)]);
  }
}

#ifdef TACC_GPU_KERNELS
// cuBLASLt's algorithms want operands that begin at multiples of 16 bytes; a part may begin anywhere in its tensor.
TEST(Kernels, OfferPartsThatAreAlignedOnly) {
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
      Trial trial(text);
      KernelRequest request = trial.request();
      alignas(64) static float whole[64];
      request.in[0].data = whole;
      ASSERT_TRUE(table.Prepare(request).ok());
    }
    EXPECT_EQ(num_offered, offered) << width;
  }
}
#endif

#ifndef TACC_ON_GPU
// Parts that lie one behind the other are one operand.
TEST(Kernels, MultiplyPartsWhereTheyLie) {
  Trial whole("einsum f32[8,64] f32[128,64] spec=\"mk,nk->mn\"");
  Trial parts("einsum_joined f32[8,64] f32[64,64] f32[64,64] spec=\"mk,nk->mn\"");
  KernelRequest request = parts.request();
  const kernels::TensorView stack = whole.request().in[1];
  request.in[0] = whole.request().in[0];
  for (int64_t i = 0; i < 2; ++i) request.in[1 + i].data = stack.as<char>() + i * stack.bytes() / 2;
  const absl::StatusOr<Kernel> wanted = Table().Prepare(whole.request()), kernel = Table().Prepare(request);
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  (*wanted)();
  kernels::cpu::InstallCountingAllocator();
  kernels::cpu::ResetPeak();
  (*kernel)();
  EXPECT_LT(kernels::cpu::PeakBytes(), stack.bytes());
  EXPECT_EQ(parts.result(0).values, whole.result(0).values);
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
  const graph::TargetKind kind = kTarget();
  const bool is_gpu = kind.asynchronous;
  for (const std::string& text : texts) {
    // On the host LibTorch multiplies 16-bit numbers by other means than on a GPU.
    if (is_gpu && text.rfind("einsum", 0) == 0 && text.find("f16[") != std::string::npos) continue;
    Trial trial(text);
    for (int threads : is_gpu ? std::vector<int>{1} : std::vector<int>{1, 2, 4}) {
      omp_set_num_threads(threads);
      EXPECT_LE(trial.TakenBytes(), trial.PromisedBytes(*kind.make({threads, kernels::cpu::HasBf16Multiply()})))
          << text << " with " << threads << " threads";
    }
  }
  omp_set_num_threads(threads_before);
}
#endif

}  // namespace
}  // namespace tacc::worker
