// For tests: one op run by the kernels of a device, beside its definition.
#ifndef TACC_WORKER_RANK_PROGRAM_TESTING_KERNEL_TRIAL_H_
#define TACC_WORKER_RANK_PROGRAM_TESTING_KERNEL_TRIAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/interpreter/evaluate.h"
#include "graph/ops/op_cases.h"
#include "graph/targets/targets.h"
#include "kernels/reference/buffer.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// The device whose kernels the suite beside this holds to the definitions of the ops. Each binary of tests defines
// it for one device.
struct TestedDevice {
  const KernelTable& table;
  const char* name;  // In messages: "CPU".
  graph::TargetKind target;
};
const TestedDevice& DeviceUnderTest();

// One op with random operands, run by the kernel of the device under test and by the interpreter.
class KernelTrial {
 public:
  // `text`: as graph/ops/op_cases.h has them.
  explicit KernelTrial(const std::string& text);

  KernelRequest& request() { return request_; }
  interpreter::Array& array(size_t operand) { return arrays_[operand]; }
  const kernels::reference::Buffer& in(size_t operand) const { return in_[operand]; }
  kernels::reference::Tensor result(size_t i) const { return out_[i].ToTensor(); }

  // Runs both and expects equal results.
  void Check(double tolerance);

  // The most scratch memory that the op promises to take.
  int64_t PromisedBytes(const graph::Target& target) const;

 private:
  graph::OpTable ops_;
  graph::OpCase case_;
  std::vector<kernels::reference::Buffer> in_, out_, kept_;
  std::vector<interpreter::Array> arrays_;
  KernelRequest request_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_TESTING_KERNEL_TRIAL_H_
