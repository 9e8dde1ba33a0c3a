// The picker on a simulated device: what it decides, what it takes of memory and where. Backends are fakes that compute
// with our kernels, compiled for the host.
#include "worker/rank/cuda/tuning/attention_picker.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/contract/attention.h"
#include "kernels/cuda/kernels.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using kernels::TensorView;
using kernels::cuda::AttentionBackend;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kGrain = DeviceHeap::kGrainBytes;

void* Aligned(int64_t num_bytes) { return std::aligned_alloc(kGrain, (num_bytes + kGrain - 1) / kGrain * kGrain); }

// LibTorch's memory as on a GPU: a workspace for the queue, the system for what runs beside, which is counted.
struct Memory {
  explicit Memory(int64_t workspace_bytes) : region(Aligned(workspace_bytes)) {
    workspace.SetWorkspace(region, workspace_bytes, {&queue});
  }
  ~Memory() { std::free(region); }

  void* Allocate(int64_t num_bytes) {
    const auto data = workspace.Allocate(num_bytes, is_beside ? &beside : &queue, DeviceWorkspace::Capture::kOff);
    if (!data.ok()) throw std::runtime_error(std::string(data.status().message()));
    return *data;
  }

  void* const region;
  const int queue = 0, beside = 0;
  bool is_beside = false;
  bool is_in_call = false;                         // Of a backend.
  int64_t blocks_beside = 0, blocks_in_calls = 0;  // Of the system.
  DeviceWorkspace workspace{{[this](int64_t num_bytes) -> absl::StatusOr<void*> {
                               ++(is_in_call ? blocks_in_calls : blocks_beside);
                               return Aligned(num_bytes);
                             },
                             &std::free}};
};

Memory* memory_of_libtorch = nullptr;

class Allocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = num_bytes == 0                  ? nullptr
                 : memory_of_libtorch != nullptr ? memory_of_libtorch->Allocate(static_cast<int64_t>(num_bytes))
                                                 : Aligned(static_cast<int64_t>(num_bytes));
    return {data, data, &Delete, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override { std::memcpy(to, from, num_bytes); }

 private:
  static void Delete(void* data) {
    if (memory_of_libtorch == nullptr || !memory_of_libtorch->workspace.Free(data)) std::free(data);
  }
};

// What a fake backend does.
struct Behaviour {
  int pieces = 1;             // Of work, forward; backward twice as many: milliseconds of the simulated device's time
  int64_t scratch_bytes = 0;  // for each sequence of the batch, forward; backward three times as many
  double factor = 1;          // of its results
  int throws_at_call = 0;
  bool throws_when_made = false;
};

class Fake : public kernels::cuda::FastAttention {
 public:
  Fake(Device* device, Behaviour behaviour, int* num_calls)
      : device_(*device), does_(behaviour), num_calls_(*num_calls) {
    if (does_.throws_when_made) throw std::runtime_error("no engine\nException raised from ...");
  }

  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const kernels::AttentionExtras& extras,
           const kernels::AttentionParameters& parameters, const TensorView& out,
           const TensorView& lse) const override {
    NoteLayout(q, k, v, parameters);
    Work(out.as<char>(), does_.pieces, q.dims[0] * does_.scratch_bytes, [&] {
      kernels::cuda::kAttention.Attention(q, k, v, extras, parameters, out, lse);
      if (does_.factor != 1) at::from_blob(out.data, {out.size()}, at::kBFloat16).mul_(does_.factor);
    });
  }
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const kernels::AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override {
    NoteLayout(dq, dk, dv, parameters);
    Work(dv.as<char>() + 1, 2 * does_.pieces, 3 * q.dims[0] * does_.scratch_bytes,
         [&] { kernels::cuda::kAttention.AttentionGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv); });
  }

  // How queries, keys and values, or their gradients, lay in its calls: each kind of calls once.
  static std::vector<std::string>& layouts() {
    static std::vector<std::string> layouts;
    return layouts;
  }

 private:
  void NoteLayout(const TensorView& q, const TensorView& k, const TensorView& v,
                  const kernels::AttentionParameters& parameters) const {
    if (parameters.pitch == 0) return;
    const auto behind = [&q](const TensorView& x) { return (x.as<char>() - q.as<char>()) / SizeOf(q.dtype); };
    const std::string layout = absl::StrCat(q.dims[0], " sequences of ", q.dims[2], " heads, pitch ", parameters.pitch,
                                            ": k at ", behind(k), ", v at ", behind(v));
    if (layouts().empty() || layouts().back() != layout) layouts().push_back(layout);
  }

  // Computes once of many times with the same `result`: on the host that takes a while.
  void Work(const void* result, int pieces, int64_t scratch_bytes, const std::function<void()>& compute) const {
    if (++num_calls_ == does_.throws_at_call)
      throw std::runtime_error("operation not permitted when stream is capturing");
    memory_of_libtorch->is_in_call = true;
    const absl::Cleanup end = [] { memory_of_libtorch->is_in_call = false; };
    const at::Tensor scratch = at::empty({scratch_bytes}, at::kByte);
    if (std::exchange(result_, result) != result) compute();
    static char byte[1];
    for (int i = 0; i < pieces; ++i) device_.Clear(Flat(byte, 1));
  }

  Device& device_;
  const Behaviour does_;
  int& num_calls_;
  mutable const void* result_ = nullptr;
};

class AttentionPickerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static Allocator allocator;
    c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
  }

  ~AttentionPickerTest() override { memory_of_libtorch = nullptr; }

  // From now on LibTorch takes its memory here.
  AttentionBench& Bench(int64_t workspace_bytes) {
    memory_ = std::make_unique<Memory>(workspace_bytes);
    memory_of_libtorch = memory_.get();
    bench_ = std::make_unique<RecordedAttentionBench>(RecordedAttentionBench::Options{
        &device_, &memory_->workspace,
        [this](AttentionBackend backend, DType, int64_t) {
          return std::make_shared<const Fake>(&device_, behaviours_[Name(backend)], &num_calls_[Name(backend)]);
        },
        [this](const std::function<void()>& work) {
          if (fails_beside_) throw std::runtime_error("CUDA: out of memory");
          memory_->is_beside = true;
          work();
          memory_->is_beside = false;
        }});
    return *bench_;
  }

  // Of the operands below.
  AttentionMeasurement Measure(AttentionBench& bench) {
    return MeasureAttention(bench, q_, q_, {}, {.causal = true, .scale = 0.5});
  }

  // Six sequences of four heads, of which four are measured.
  static constexpr int64_t kBatches = 6, kPositions = 24, kHeads = 4, kHeadDim = 8;
  std::vector<char> bytes_ = std::vector<char>(kBatches * kPositions * kHeads * kHeadDim * 2);
  const TensorView q_{bytes_.data(), DType::kBF16, {kBatches, kPositions, kHeads, kHeadDim}};
  const NaiveKernels kernels_;
  SimulatedDevice device_{&kernels_};
  std::map<std::string, Behaviour> behaviours_ = {{"tensor", {50}}, {"flash", {4, 1024}}, {"cudnn", {3, 2048}}};
  std::map<std::string, int> num_calls_;
  bool fails_beside_ = false;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<RecordedAttentionBench> bench_;
};

// Its name, and why it is refused, a line; (failed) where it should have worked.
std::vector<std::string> Refusals(const AttentionMeasurement& measured) {
  std::vector<std::string> lines;
  for (const AttentionTiming& timing : measured.timings)
    lines.push_back(timing.backend + ": " + timing.refused + (timing.failed ? " (failed)" : ""));
  return lines;
}

// To ask the system for memory takes longer than attention, and is no part of a step.
TEST_F(AttentionPickerTest, MeasuredCallsTakeNothingOfTheSystem) {
  const AttentionMeasurement measured = Measure(Bench(1 << 20));
  EXPECT_THAT(Refusals(measured), ElementsAre("tiles: ", "tensor: ", "flash: ", "cudnn: "));
  EXPECT_EQ(memory_->blocks_in_calls, 0);
  EXPECT_GT(memory_->blocks_beside, 0);
  EXPECT_EQ(memory_->workspace.stats().num_refused, 0);
  EXPECT_EQ(memory_->workspace.stats().heap.used_bytes, 0);
  // Calls are recorded, and replayed as steps are: once before the times count, then three times.
  EXPECT_EQ(device_.num_replays(), 4 * 2 * (1 + 3));
  for (const auto& [index, pieces] : std::map<size_t, double>{{1, 50}, {2, 4}, {3, 3}}) {
    EXPECT_NEAR(measured.timings[index].forward_seconds, pieces * SimulatedDevice::kPieceSeconds, 1e-9);
    EXPECT_NEAR(measured.timings[index].backward_seconds, 2 * pieces * SimulatedDevice::kPieceSeconds, 1e-9);
  }
}

// The backward's, of all sequences: beside LibTorch's own, a number for each query and head of our kernel.
constexpr int64_t kCudnnBytes = 3 * 6 * 2048 + (6 * 24 * 4 * 4 + kGrain - 1) / kGrain * kGrain;

TEST_F(AttentionPickerTest, TellsWhatTheWholeOperandsTakeOfTheWorkspace) {
  const AttentionMeasurement measured = Measure(Bench(kCudnnBytes));
  EXPECT_EQ(measured.timings[3].workspace_bytes, kCudnnBytes);
  EXPECT_EQ(measured.timings[2].workspace_bytes, kCudnnBytes - 3 * 6 * 1024);
  EXPECT_EQ(measured.timings[1].workspace_bytes, kCudnnBytes - 3 * 6 * 2048);
  EXPECT_EQ(measured.backends.count("cudnn"), 1u);
}

// At a step's first attention it would end the job. The measured sequences, fewer, have room.
TEST_F(AttentionPickerTest, RefusesWhatNeedsMoreThanThePlanHas) {
  const AttentionMeasurement measured = Measure(Bench(kCudnnBytes - kGrain));
  EXPECT_THAT(Refusals(measured),
              ElementsAre("tiles: ", "tensor: ", "flash: ",
                          "cudnn: the planned GPU workspace of 38912 bytes is too small: 2304 bytes wanted, 2048 free, "
                          "the largest gap 2048. The plan counts too little for an operator: please report the job; a "
                          "smaller micro_batch or sequence makes room (failed)"));
  EXPECT_EQ(measured.backends.count("cudnn"), 0u);
  EXPECT_EQ(measured.backends.count("flash"), 1u);
  EXPECT_EQ(memory_->workspace.stats().heap.used_bytes, 0);
}

TEST_F(AttentionPickerTest, SaysWhatFailedAndGoesOn) {
  behaviours_["tensor"].factor = 2;
  behaviours_["flash"].throws_when_made = true;
  // Its two calls of the whole operands and the first of the measured ones work; the next one is recorded.
  behaviours_["cudnn"].throws_at_call = 4;
  const AttentionMeasurement measured = Measure(Bench(1 << 20));
  EXPECT_THAT(
      Refusals(measured),
      ElementsAre("tiles: ", "tensor: its out is 1 from that of plain cores, at most 0.03 (failed)",
                  "flash: no engine (failed)", "cudnn: operation not permitted when stream is capturing (failed)"));
  EXPECT_TRUE(measured.backends.empty());
  EXPECT_EQ(device_.Synchronize(), absl::OkStatus());
  EXPECT_EQ(memory_->workspace.stats().heap.used_bytes, 0);
}

// Operands that are heads of one tensor are measured as such, and their gradients: with the pitch of the heads
// measured, and the whole operands with their own.
TEST_F(AttentionPickerTest, MeasuresHeadsOfOneTensor) {
  constexpr int64_t kSequences = 2, kQueryHeads = 32, kKeyHeads = 8, kPitch = (kQueryHeads + 2 * kKeyHeads) * kHeadDim;
  std::vector<char> bytes(kSequences * kPositions * kPitch * 2);
  const TensorView q{bytes.data(), DType::kBF16, {kSequences, kPositions, kQueryHeads, kHeadDim}};
  const TensorView k{
      bytes.data() + kQueryHeads * kHeadDim * 2, DType::kBF16, {kSequences, kPositions, kKeyHeads, kHeadDim}};
  const kernels::AttentionParameters parameters{.causal = true, .scale = 0.5, .pitch = kPitch};
  Fake::layouts().clear();
  AttentionPicker picker(&Bench(1 << 20));
  picker.Pick(q, k, {}, parameters);
  const std::vector<AttentionChoice> measured = picker.Measured();
  ASSERT_EQ(measured.size(), 1u);
  EXPECT_EQ(measured[0].shape, "bf16[2,24,32,8] of [2,24,8,8] causal, scale 0.5, in one tensor");
  for (const AttentionTiming& timing : measured[0].timings) EXPECT_EQ(timing.refused, "") << timing.backend;
  EXPECT_EQ(measured[0].timings[1].workspace_bytes, (2 * 24 * 32 * 4 + kGrain - 1) / kGrain * kGrain);
  // Of one backend after the other: both sequences, where k stands for v as well; then one.
  const std::string whole = "2 sequences of 32 heads, pitch 384: k at 256, v at 256",
                    cut = "1 sequences of 16 heads, pitch 192: k at 128, v at 160";
  EXPECT_THAT(Fake::layouts(), ElementsAre(whole, cut, whole, cut, whole, cut));
  picker.Pick(q, k, {}, {.causal = true, .scale = 0.5});
  EXPECT_EQ(picker.Measured().size(), 2u);
}

TEST_F(AttentionPickerTest, DoesNotThrow) {
  fails_beside_ = true;
  EXPECT_THAT(Refusals(Measure(Bench(1 << 20))),
              ElementsAre("tiles: ", "tensor: measuring failed: CUDA: out of memory (failed)",
                          "flash: measuring failed: CUDA: out of memory (failed)",
                          "cudnn: measuring failed: CUDA: out of memory (failed)"));
}

TEST_F(AttentionPickerTest, ComputesByWhatIsTaken) {
  AttentionPicker picker(&Bench(1 << 20));
  const kernels::AttentionParameters parameters{.causal = true, .scale = 0.5};
  const auto fast = picker.Pick(q_, q_, {}, parameters);
  std::vector<float> lse(kBatches * kPositions * kHeads);
  const TensorView lse_view{lse.data(), DType::kF32, {kBatches, kHeads, kPositions}};
  const auto num_calls_of_a_run = [&] {
    const auto before = num_calls_;
    fast->Run(q_, q_, q_, {}, parameters, q_, lse_view);
    std::string calls;
    for (const auto& [backend, count] : num_calls_) {
      if (count != before.at(backend)) calls += backend;
    }
    return calls;
  };
  EXPECT_EQ(num_calls_of_a_run(), "");  // Plain cores.
  std::vector<AttentionChoice> choices = picker.Measured();
  ASSERT_EQ(choices.size(), 1u);
  choices[0].backend = "flash";
  picker.Take(choices);
  EXPECT_EQ(num_calls_of_a_run(), "flash");
}

TEST_F(AttentionPickerTest, MeasuresAShapeOnce) {
  AttentionPicker picker(&Bench(1 << 20));
  const TensorView q{nullptr, DType::kF32, {2, 64, 4, 32}}, k{nullptr, DType::kF32, {2, 64, 2, 32}};
  const auto first = picker.Pick(q, k, {}, {.causal = true, .scale = 0.5});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(picker.Pick(q, k, {}, {.causal = true, .scale = 0.5}), first);
  ASSERT_EQ(picker.Measured().size(), 1u);
  EXPECT_EQ(picker.Measured()[0].shape, "f32[2,64,4,32] of [2,64,2,32] causal, scale 0.5, its dtype is f32");
  EXPECT_EQ(picker.Measured()[0].backend, "");
  EXPECT_EQ(picker.Measured()[0].timings.size(), 4u);
  EXPECT_NE(picker.Pick(q, k, {}, {.causal = false, .scale = 0.5}), first);
  EXPECT_EQ(picker.Measured().size(), 2u);
}

TEST_F(AttentionPickerTest, LeavesToOurKernelsWhatLibtorchDoesNotTake) {
  const TensorView q{nullptr, DType::kBF16, {1, 64, 4, 32}};
  kernels::AttentionParameters parameters{.causal = true, .scale = 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.queries = parameters.keys = {{.length = 64}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.keys = {{.length = 32}, {.length = 32, .position = 96}};
  parameters.alibi_slopes = {1, 1, 1, 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "it has alibi slopes");
  const TensorView narrow{nullptr, DType::kBF16, {1, 64, 4, 12}};
  const AttentionMeasurement measured = MeasureAttention(Bench(1 << 20), narrow, narrow, {}, parameters);
  EXPECT_TRUE(measured.backends.empty());
  EXPECT_THAT(Refusals(measured), ElementsAre("tiles: ", "tensor: its head dim is 12", "flash: its head dim is 12",
                                              "cudnn: its head dim is 12"));
  EXPECT_EQ(memory_->blocks_beside, 0);
  parameters.alibi_slopes.clear();
  EXPECT_THAT(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), HasSubstr("natural order"));
  const TensorView longer{nullptr, DType::kBF16, {1, 96, 4, 32}};
  EXPECT_THAT(kernels::cuda::WhyNotLibtorch(q, longer, {}, {.causal = true}), HasSubstr("other numbers"));
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, longer, {}, {.causal = false}), "");
  float key_bias[64] = {};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, {.key_bias = {key_bias, DType::kF32, {1, 64}}}),
            "its keys have biases");
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, {.bias = {key_bias, DType::kF32, {1, 1, 64, 64}}}),
            "its scores have biases");
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, {.pitch = 12 * 32}), "");
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, {.pitch = 12 * 32 + 4}), "its tokens are 388 elements apart");
  const TensorView odd{nullptr, DType::kBF16, {1, 64, 4, 33}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(odd, odd, {}, {}), "its head dim is 33");
  const TensorView wide{nullptr, DType::kF32, {1, 64, 4, 32}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(wide, wide, {}, {}), "its dtype is f32");
}

}  // namespace
}  // namespace tacc::worker
