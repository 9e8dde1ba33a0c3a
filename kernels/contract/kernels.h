// Kernels: what a kind of device computes. A device's folder (kernels/cpu, kernels/cuda) defines one table a family,
// whose functions all are there: a table with a hole does not compile. worker/rank/program binds ops to them, and the
// suites of kernels/testing hold every device to the contracts, which are the headers of this folder.
//
// Holds for all functions: views lie in the device's memory and are dense unless said otherwise. A result may be
// exactly an operand of the same dtype where its contract says so, never a shifted overlap. Results do not depend on
// timing or on the number of threads (LibTorch's products excepted). NaN and infinity come through. Calls are queued
// where the device has a queue, on the current stream, and allocate nothing but scratch. A violated contract is a bug
// of ours: it is printed, and the process aborts (kernels/check.h).
#ifndef TACC_KERNELS_CONTRACT_KERNELS_H_
#define TACC_KERNELS_CONTRACT_KERNELS_H_

#include <cstdint>
#include <memory>

#include "kernels/contract/adafactor.h"
#include "kernels/contract/aten.h"
#include "kernels/contract/attention.h"
#include "kernels/contract/channel.h"
#include "kernels/contract/convolution.h"
#include "kernels/contract/cross_entropy.h"
#include "kernels/contract/dispatch.h"
#include "kernels/contract/dropout.h"
#include "kernels/contract/einsum.h"
#include "kernels/contract/embedding.h"
#include "kernels/contract/expert.h"
#include "kernels/contract/lr_schedule.h"
#include "kernels/contract/norm.h"
#include "kernels/contract/optimizer.h"
#include "kernels/contract/pointwise.h"
#include "kernels/contract/pool.h"
#include "kernels/contract/reduce.h"
#include "kernels/contract/resample.h"
#include "kernels/contract/rotary.h"
#include "kernels/contract/router.h"
#include "kernels/contract/shape.h"
#include "kernels/contract/sum_squares.h"
#include "kernels/contract/unary.h"

namespace tacc::kernels {

// Memory for kernels that are queued while it is held; given back when it is destroyed.
using ScratchMemory = std::shared_ptr<void>;

struct Kernels {
  const char* device;  // In messages: "CPU".
  // At a multiple of 64 bytes, not zeroed; null if bytes is 0. A rank serves it from its planned workspace, so a kernel
  // takes no more than its target says (graph/targets).
  ScratchMemory (&TakeScratch)(int64_t bytes);
  const AdafactorKernels& adafactor;
  const AtenKernels& aten;
  const AttentionKernels& attention;
  const ChannelKernels& channel;
  const ConvolutionKernels& convolution;
  const CrossEntropyKernels& cross_entropy;
  const DispatchKernels& dispatch;
  const DropoutKernels& dropout;
  const EinsumKernels& einsum;
  const EmbeddingKernels& embedding;
  const ExpertKernels& expert;
  const LrScheduleKernels& lr_schedule;
  const NormKernels& norm;
  const OptimizerKernels& optimizer;
  const PointwiseKernels& pointwise;
  const PoolKernels& pool;
  const ReduceKernels& reduce;
  const ResampleKernels& resample;
  const RotaryKernels& rotary;
  const RouterKernels& router;
  const ShapeKernels& shape;
  const SumSquaresKernels& sum_squares;
  const UnaryKernels& unary;
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_KERNELS_H_
