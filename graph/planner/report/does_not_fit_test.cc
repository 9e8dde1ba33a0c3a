#include "graph/planner/report/does_not_fit.h"

#include "gmock/gmock.h"
#include "graph/planner/testing/test_request.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// GPUs of which a plan takes nothing beside its arena and workspace.
PlanRequest GpuRequest(int64_t world, int64_t memory_bytes) {
  PlanRequest request;
  request.seq_len = 6;
  request.training.max_steps = 10;
  request.bf16 = false;
  request.world = world;
  request.device.kind = "cuda";
  request.device.matmul_flops_per_second = {{DType::kF32, 1e13}, {DType::kBF16, 1e14}};
  request.device.memory_bytes_per_second = 1e12;
  request.device.link_bytes_per_second = 1e10;
  request.device.memory_bytes = memory_bytes;
  request.cluster = *MakeCluster(MachineOf(request.device), world);
  return request;
}

Candidate Smallest(const PlanRequest& request, const ForwardBuilder& model) {
  const auto planned = PlanCandidates(request, model, OpTable());
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned->candidates[0];
}

TEST(DoesNotFitTest, TheFewestWorkersItNamesAreEnough) {
  const OpTable ops;
  const ForwardBuilder model = TestModel(4);
  for (const int64_t enough : {2, 3, 4}) {
    // Nothing fits into a byte; then the smallest comes first.
    const int64_t memory = Smallest(GpuRequest(enough, 1), model).plan.total_bytes;
    const PlanRequest request = GpuRequest(1, memory);
    const Candidate smallest = Smallest(request, model);
    ASSERT_FALSE(smallest.fits);
    const std::string message(DoesNotFit(request, smallest, model, ops).message());
    int64_t named = 0;
    ASSERT_EQ(sscanf(message.c_str() + message.find("; ") + 2, "%ld such GPUs", &named), 1) << message;
    EXPECT_LE(named, enough) << message;
    EXPECT_TRUE(Smallest(GpuRequest(named, memory), model).fits) << message;
    for (int64_t fewer = 1; fewer < named; ++fewer)
      EXPECT_FALSE(Smallest(GpuRequest(fewer, memory), model).fits) << fewer << " would do: " << message;
  }
}

TEST(DoesNotFitTest, NamesADeviceAndWhatOfTheJobStandsInTheWay) {
  const OpTable ops;
  const ForwardBuilder model = TestModel(2);
  PlanRequest request = GpuRequest(1, 1000);
  const auto message = [&] { return std::string(DoesNotFit(request, Smallest(request, model), model, ops).message()); };
  EXPECT_THAT(message(), HasSubstr(" and has 1000 B; "));
  EXPECT_THAT(message(), HasSubstr("one NVIDIA A100 SXM4 40 GB would do\n  of it: weights "));
  EXPECT_THAT(message(), HasSubstr("\n  largest buffers: "));
  // A shorter sample would save less than what is missing.
  EXPECT_THAT(message(), Not(HasSubstr("this would help")));
  request = GpuRequest(2, 1);
  request.sizes[Axis::kFsdp] = request.sizes[Axis::kTp] = request.sizes[Axis::kPp] = request.sizes[Axis::kCp] = 1;
  request.device.memory_bytes = Smallest(request, model).plan.total_bytes - 1;
  EXPECT_THAT(message(), HasSubstr("\n  in the job, this would help: a larger dist.fsdp.size, a shorter data.seq_len"));
}

}  // namespace
}  // namespace tacc::graph
