// Scratch bytes of a GPU's kernels (kernels/cuda), LibTorch's own included.
#include <algorithm>

#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

// Rounding of blocks to the workspace's grain, a few at a time.
constexpr int64_t kSmall = 64 << 10;

int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

int64_t Elements(const TensorType& type, size_t first, size_t last) {
  int64_t n = 1;
  for (size_t i = first; i < last; ++i) n *= type.dims[i];
  return n;
}

// Tokens sorted by id, as kernels/cuda/id_order.h.
int64_t IdOrderBytes(int64_t num_tokens, int64_t num_ids) {
  constexpr int64_t kDigits = 256, kChunk = 256;
  const int64_t chunks = (num_tokens + kChunk - 1) / kChunk;
  return 4 * (4 * RoundUp(num_tokens, 16) + RoundUp(kDigits * chunks, 16) + RoundUp(num_ids + 2, 16));
}

// LibTorch's attention, as kernels/cuda/attention.cc counts it.
constexpr int64_t kMaxMultiprocessors = 160, kAttentionBlock = 128, kAttentionSlack = int64_t{4} << 20;
int64_t AttentionHead(int64_t d) { return d <= 192 ? RoundUp(d, 32) : RoundUp(d, 256); }

class Cuda : public Target {
 public:
  // What cuBLAS keeps for the stream of a rank, and what blocks of the workspace lose to its grain of 512 bytes.
  int64_t LibraryBytes() const override { return (int64_t{32} << 20) + (int64_t{1} << 20); }

  int64_t EinsumBytes(const ProductCall& call) const override {
    const auto& [spec, a, b, y, is_part] = call;
    DType compute = DType::kF32;
    if (a.dtype == DType::kF64 || b.dtype == DType::kF64) compute = DType::kF64;
    if (a.dtype == b.dtype && IsHalf(a.dtype)) compute = a.dtype;
    const DType product = IsHalf(compute) && y.dtype != compute ? DType::kF32 : compute;
    const EinsumCopies copies = EinsumCopiesOf(spec);
    int64_t bytes = kSmall;
    if (copies.a || a.dtype != compute) bytes += RoundUp(a.num_elements() * ByteSize(compute), 64);
    if (copies.b || b.dtype != compute) bytes += RoundUp(b.num_elements() * ByteSize(compute), 64);
    if (copies.y || y.dtype != product) bytes += RoundUp(y.num_elements() * ByteSize(product), 64);
    return bytes;
  }

  // Where values have another head dim than queries, kernels of our own compute it, in any dtype.
  int64_t AttentionBytes(const TensorType& q, const TensorType& k, const TensorType& v,
                         int64_t /*key_runs*/) const override {
    if (!IsHalf(q.dtype) || v.dims[3] != q.dims[3]) return 0;
    const int64_t out = q.bytes() + Elements(q, 0, 3) * 4;
    const int64_t blocks = q.dims[0] * q.dims[2] * (RoundUp(q.dims[1], kAttentionBlock) / kAttentionBlock);
    const int64_t parts = blocks < kMaxMultiprocessors ? RoundUp(k.dims[1], kAttentionBlock) / kAttentionBlock : 1;
    const int64_t useful = std::min(parts * blocks, 4 * kMaxMultiprocessors);
    return out + (parts > 1 ? useful * kAttentionBlock * (AttentionHead(q.dims[3]) + 1) * 4 : 0) + kAttentionSlack;
  }

  int64_t AttentionGradBytes(const TensorType& q, const TensorType& k, const TensorType& v,
                             int64_t /*key_runs*/) const override {
    if (!IsHalf(q.dtype) || v.dims[3] != q.dims[3])
      return kSmall + Elements(q, 0, 3) * ByteSize(AccumulationType(q.dtype));
    const int64_t d = AttentionHead(q.dims[3]), rows = q.dims[0] * RoundUp(q.dims[1], kAttentionBlock) * q.dims[2];
    const int64_t shared = q.dims[2] == k.dims[2] ? 0 : 2 * q.dims[0] * k.dims[1] * q.dims[2] * d * ByteSize(q.dtype);
    // As the deterministic kernel, which takes more.
    const int64_t pairs = std::max<int64_t>(q.dims[0] * q.dims[2], 1);
    const int64_t sums = (kMaxMultiprocessors + pairs - 1) / pairs;
    return q.bytes() + 2 * k.bytes() + shared + sums * rows * d * 4 + rows * 4 + kAttentionSlack;
  }

  int64_t AttentionBiasGradBytes(const TensorType& q, const TensorType& /*v*/, const TensorType& bias) const override {
    return kSmall + Elements(q, 0, 3) * ByteSize(AccumulationType(q.dtype)) + BiasGradSumBytes(q, bias);
  }

  int64_t ExpertMatmulBytes(const TensorType& /*x*/, const TensorType& ids, const TensorType& w,
                            const TensorType& y) const override {
    constexpr int64_t kColumns = 256;  // of y, whose summands are held at a time
    return kSmall + IdOrderBytes(ids.num_elements(), w.dims[0]) +
           ids.num_elements() * std::min(y.dims.back(), kColumns) * ByteSize(y.dtype);
  }

  int64_t ExpertMatmulGradBytes(const TensorType& /*a*/, const TensorType& /*b*/, const TensorType& ids,
                                const TensorType& dw) const override {
    return kSmall + IdOrderBytes(ids.num_elements(), dw.dims[0]);
  }

  int64_t DispatchSlotsBytes(const TensorType& row_ids) const override {
    return kSmall + Elements(row_ids, 0, 2) * static_cast<int64_t>(sizeof(int64_t));
  }

  // The result, which is copied to its place, channels last as cuDNN's kernels want them, and cuDNN's workspace: a
  // kernel that wants more is passed over.
  int64_t ConvolutionBytes(const ConvolutionCall& call) const override {
    constexpr int64_t kCudnnBytes = int64_t{64} << 20;
    return kSmall + 2 * (call.x.bytes() + call.w.bytes() + call.y.bytes()) + kCudnnBytes;
  }

  // Of each channel two sums of f64 by at most so many teams.
  int64_t ChannelSumsBytes(const TensorType& x) const override {
    constexpr int64_t kEnoughTeams = 1024;
    return kSmall + 2 * 8 * std::max(kEnoughTeams, x.dims[1]);
  }

  // Columns' sums of blocks of rows, as kernels/cuda/adafactor.cu makes them, in f64.
  int64_t SquareSumsBytes(int64_t /*rows*/, int64_t columns) const override {
    constexpr int64_t kMaxBlocks = 64, kMaxPartials = 1 << 20;
    const int64_t partials = std::max(columns, std::min(kMaxBlocks * columns, kMaxPartials));
    return kSmall + partials * static_cast<int64_t>(sizeof(double));
  }

  // A mean for each matrix, and a sum for each chunk.
  int64_t AdafactorBytes(int64_t elements, int64_t rows, int64_t /*columns*/) const override {
    constexpr int64_t kChunk = 16384;
    return kSmall + (rows + elements / kChunk + 1) * static_cast<int64_t>(sizeof(double));
  }

  int64_t NormGradBytes(const TensorType& x, int64_t num_sums) const override {
    // Partial sums of groups of rows, as kernels/cuda/launch/sum_groups.h.
    const int64_t n = x.dims.back(), rows = n == 0 ? 0 : x.num_elements() / n;
    const int64_t groups = n == 0 ? 1 : std::clamp<int64_t>((int64_t{1} << 20) / n, 512, 8192);
    return kSmall + std::clamp<int64_t>(rows, 1, groups) * num_sums * n * ByteSize(AccumulationType(x.dtype));
  }

  int64_t EmbeddingGradBytes(const TensorType& ids, const TensorType& dtable) const override {
    constexpr int64_t kBlock = 64;  // places of the order that are summed at a time
    return kSmall + IdOrderBytes(ids.num_elements(), dtable.dims[0]) +
           ids.num_elements() / kBlock * dtable.dims[1] * ByteSize(dtable.dtype);
  }

  int64_t ReduceBytes() const override { return int64_t{512} << 10; }

  // An f64 for each of at most 16,384 chunks, and for what is left over at the end of each operand.
  int64_t SumSquaresBytes(int64_t num_operands) const override { return ((int64_t{16} << 10) + num_operands) * 8; }
};

}  // namespace

TargetKind CudaTarget() {
  TargetKind kind{"cuda"};
  kind.asynchronous = kind.has_graphs = kind.joins_products = kind.sums_in_library = true;
  kind.make = [](const RankProcessors&) -> std::shared_ptr<const Target> { return std::make_shared<const Cuda>(); };
  return kind;
}

}  // namespace tacc::graph
