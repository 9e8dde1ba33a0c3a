// Scratch bytes of the CPU's kernels (kernels/cpu), LibTorch's own included.
#include <algorithm>

#include "graph/ops/op.h"
#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

// Tensors, their shapes' bookkeeping, and rounding of blocks to the workspace's 64 bytes.
constexpr int64_t kSmall = 64 << 10;

// The product itself and its result, computed in a type. f32 and f64 take nothing. bf16: oneDNN packs operands block by
// block, at most 1.4 MB a thread (measured with LibTorch 2.11 on Zen 4, 30 shapes up to 65,536). Others are converted.
int64_t BytesOfProductIn(DType compute, const TensorType& a, const TensorType& b, const TensorType& y, int threads) {
  int64_t bytes = compute == DType::kBF16 ? threads * (int64_t{3} << 19) : 0;
  if (compute != a.dtype) bytes += ByteSize(compute) * (a.num_elements() + b.num_elements());
  if (compute != y.dtype) bytes += ByteSize(compute) * y.num_elements();
  return bytes;
}

// Attention's blocks, as kernels/cpu/simd/loops.h has them.
constexpr int64_t kQueryBlock = 48, kKeyBlock = 64;
int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
// Of keys, laid out in tiles that end with a run.
int64_t KeyRows(const TensorType& k, int64_t runs) { return RoundUp(k.dims[1], kKeyBlock) + (runs - 1) * kKeyBlock; }

// Rows of one expert that are gathered and multiplied at a time, as kernels/cpu/expert.cc has them.
int64_t ExpertBlockRows(const TensorType& ids, DType dtype) {
  constexpr int64_t kExpertRows = 1024, kExpertRowStep = 32;
  const int64_t rows = std::min(kExpertRows, ids.num_elements());
  return ByteSize(dtype) == 2 ? RoundUp(rows, kExpertRowStep) : rows;
}
// Slots sorted by expert; the count of each expert fits into kSmall.
int64_t OrderBytes(const TensorType& ids) { return kSmall + 4 * ids.num_elements(); }

class Cpu : public Target {
 public:
  explicit Cpu(const RankProcessors& processors) : processors_(processors) {}

  int64_t EinsumBytes(const ProductCall& product) const override {
    const auto& [spec, a, b, y, is_part] = product;
    const EinsumCopies copies = EinsumCopiesOf(spec);
    int64_t bytes = kSmall + ProductBytes(a, b, y);
    if (is_part) bytes += a.bytes() + kScratchAlignment;  // it is copied before it is multiplied
    if (copies.a) bytes += a.bytes() + 64;
    if (copies.b) bytes += b.bytes() + 64;
    if (copies.y) bytes += y.bytes();
    return bytes;
  }

  int64_t EinsumAccumulateBytes(const ProductCall& product) const override {
    return EinsumBytes(product) + (EinsumCopiesOf(product.spec).y ? product.y.bytes() : 0);
  }

  // For each thread the keys and values of one head, and blocks.
  int64_t AttentionBytes(const TensorType& q, const TensorType& k, const TensorType& v,
                         int64_t key_runs) const override {
    const int64_t d = RoundUp(q.dims[3], 16), value = RoundUp(v.dims[3], 16), keys = KeyRows(k, key_runs);
    const int64_t thread =
        keys * (q.dims[3] + value) + (kKeyBlock + kQueryBlock) * d + kQueryBlock * value + kQueryBlock * kKeyBlock;
    return kSmall + processors_.threads * RoundUp(thread * ByteSize(AccumulationType(q.dtype)), 64);
  }

  int64_t AttentionGradBytes(const TensorType& q, const TensorType& k, const TensorType& v,
                             int64_t key_runs) const override {
    const int64_t d = RoundUp(q.dims[3], 16), value = RoundUp(v.dims[3], 16), keys = KeyRows(k, key_runs);
    const int64_t thread = keys * (q.dims[3] + v.dims[3] + 2 * d + value) +
                           kQueryBlock * (d + value + std::max(d, value)) + 2 * kQueryBlock * kKeyBlock;
    return kSmall + processors_.threads * RoundUp(thread * ByteSize(AccumulationType(q.dtype)), 64);
  }

  int64_t AttentionBiasGradBytes(const TensorType& q, const TensorType& v, const TensorType& bias) const override {
    const int64_t d = RoundUp(q.dims[3], 16), value = RoundUp(v.dims[3], 16);
    const int64_t thread =
        kKeyBlock * (q.dims[3] + v.dims[3] + d + value) + kQueryBlock * (d + 2 * value) + 3 * kQueryBlock * kKeyBlock;
    const int64_t element = ByteSize(AccumulationType(q.dtype));
    return kSmall + processors_.threads * RoundUp(thread * element, 64) + BiasGradSumBytes(q, bias);
  }

  // The order of the slots, and a block of sorted rows.
  int64_t ExpertMatmulBytes(const TensorType& x, const TensorType& ids, const TensorType& w,
                            const TensorType& y) const override {
    const int64_t rows = ExpertBlockRows(ids, x.dtype);
    const TensorType block_x{x.dtype, {rows, x.dims.back()}}, block_w{w.dtype, {y.dims.back(), x.dims.back()}};
    const TensorType block_y{x.dtype, {rows, y.dims.back()}};
    return OrderBytes(ids) + block_x.bytes() + block_y.bytes() +
           EinsumBytes({{"rn", "mn", "rm"}, block_x, block_w, block_y});
  }

  int64_t ExpertMatmulGradBytes(const TensorType& a, const TensorType& b, const TensorType& ids,
                                const TensorType& /*dw*/) const override {
    const int64_t rows = ExpertBlockRows(ids, a.dtype);
    const TensorType block_a{a.dtype, {rows, a.dims.back()}}, block_b{b.dtype, {rows, b.dims.back()}};
    const TensorType y{AccumulationType(a.dtype), {a.dims.back(), b.dims.back()}};
    return OrderBytes(ids) + block_a.bytes() + block_b.bytes() +
           EinsumAccumulateBytes({{"rm", "rn", "mn"}, block_a, block_b, y});
  }

  // LibTorch's result, which is copied to its place; all of them in oneDNN's blocks of channels, and once more where
  // they are converted or sums of threads are added up; single threads' blocks, and columns of images of at most 20,480
  // elements, which one thread multiplies without oneDNN. (LibTorch 2.11 took at most 2.3 times the three tensors in
  // f32 in 13 shapes.) f64 takes nothing.
  int64_t ConvolutionBytes(const ConvolutionCall& call) const override {
    if (call.x.dtype == DType::kF64) return kSmall;
    constexpr int64_t kBlock = 16, kOfThread = 256 << 10, kColumns = 1 << 20;
    const auto in_blocks = [](TensorType type, int num_channels) {
      type.dtype = DType::kF32;
      for (int i = 2 - num_channels; i < 2; ++i) type.dims[i] = RoundUp(type.dims[i], kBlock);
      return type.bytes();
    };
    const int64_t result = std::max({call.x.num_elements(), call.w.num_elements(), call.y.num_elements()}) * 4;
    return kColumns + processors_.threads * kOfThread + result +
           2 * (in_blocks(call.x, 1) + in_blocks(call.w, 2) + in_blocks(call.y, 1));
  }

  // 16-bit elements are converted, a plane of both images a thread.
  int64_t PlaneBytes(const TensorType& from, const TensorType& to) const override {
    if (ByteSize(from.dtype) != 2) return kSmall;
    const auto plane = [](const TensorType& image) {
      int64_t elements = 1;
      for (int i = 2; i < image.rank(); ++i) elements *= image.dims[i];
      return elements;
    };
    return kSmall + processors_.threads * RoundUp(plane(from) + plane(to), 16) * ByteSize(DType::kF32);
  }

  // Sums of blocks of runs, as kernels/cpu/adafactor.cc makes them, in f64.
  int64_t SquareSumsBytes(int64_t rows, int64_t columns) const override {
    constexpr int64_t kBlocks = 8;
    return kSmall + kBlocks * (rows + columns) * static_cast<int64_t>(sizeof(double));
  }

  // What the gradient is multiplied by, by row and by column.
  int64_t AdafactorBytes(int64_t /*elements*/, int64_t rows, int64_t columns) const override {
    return kSmall + (rows + columns) * static_cast<int64_t>(sizeof(double));
  }

  // How full each of the D buffers is.
  int64_t DispatchSlotsBytes(const TensorType& row_ids) const override {
    return kSmall + row_ids.dims[2] * static_cast<int64_t>(sizeof(int64_t));
  }

  int64_t NormGradBytes(const TensorType& x, int64_t num_sums) const override {
    constexpr int64_t kMaxGroups = 64;  // partial sums of groups of rows
    const int64_t n = x.dims.back();
    const int64_t groups = n == 0 ? 0 : std::clamp<int64_t>((x.num_elements() / n + 15) / 16, 1, kMaxGroups);
    return kSmall + groups * num_sums * n * ByteSize(AccumulationType(x.dtype));
  }

 private:
  // The product itself and its result, in whichever type these processors may compute it.
  int64_t ProductBytes(const TensorType& a, const TensorType& b, const TensorType& y) const {
    const bool is_half = a.dtype == DType::kF16 || a.dtype == DType::kBF16;
    const int64_t through_f32 = BytesOfProductIn(is_half ? DType::kF32 : a.dtype, a, b, y, processors_.threads);
    if (a.dtype != DType::kBF16) return through_f32;
    const int64_t in_bf16 = BytesOfProductIn(DType::kBF16, a, b, y, processors_.threads);
    return processors_.multiplies_bf16 ? in_bf16 : std::max(in_bf16, through_f32);
  }

  RankProcessors processors_;
};

}  // namespace

TargetKind CpuTarget() {
  TargetKind kind{"cpu"};
  kind.shares_cores = true;
  kind.make = [](const RankProcessors& processors) -> std::shared_ptr<const Target> {
    return std::make_shared<const Cpu>(processors);
  };
  return kind;
}

}  // namespace tacc::graph
