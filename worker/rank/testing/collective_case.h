// Collectives in the text form with what they must give, for every CollectiveQueue.
#ifndef TACC_WORKER_RANK_TESTING_COLLECTIVE_CASE_H_
#define TACC_WORKER_RANK_TESTING_COLLECTIVE_CASE_H_

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/collectives/bind_collective.h"
#include "worker/rank/collectives/collectives.h"

namespace tacc::worker {

// A rank under test. `connect` follows the last Prepare; after `settle` the host sees what all waited for has done.
struct RankUnderTest {
  int rank = 0;
  CollectiveQueue& queue;
  std::function<absl::Status()> connect;
  std::function<absl::Status()> settle;
};

// Runs the body as each of `world` ranks.
using RunRanksFunction = std::function<void(int world, const std::function<void(RankUnderTest)>& body)>;

struct CollectiveText {
  const char* name;
  const char* mesh;
  const char* op;
  const char* from;
  const char* to;
};
inline void PrintTo(const CollectiveText& text, std::ostream* out) { *out << text.name; }

inline const CollectiveText kCollectiveTexts[] = {
    {"AllGatherOfFirstDim", "fsdp=2", "all_gather %x over=[fsdp] dim=0", "f32[4,3] of f32[8,3] shard=[fsdp,-]",
     "f32[8,3] of f32[8,3] shard=[-,-]"},
    {"AllGatherOfUnevenDims1", "fsdp=3", "all_gather %x over=[fsdp] dim=0", "f32[3,2] of f32[7,2] shard=[fsdp,-]",
     "f32[7,2] of f32[7,2] shard=[-,-]"},
    {"AllGatherOfUnevenDims2", "fsdp=4", "all_gather %x over=[fsdp] dim=0", "f32[1,5] of f32[2,5] shard=[fsdp,-]",
     "f32[2,5] of f32[2,5] shard=[-,-]"},
    {"AllGatherOfUnevenDims3", "fsdp=3", "all_gather %x over=[fsdp] dim=1", "f32[2,3] of f32[2,7] shard=[-,fsdp]",
     "f32[2,7] of f32[2,7] shard=[-,-]"},
    {"AllGatherOverOneOfTwoAxes1", "dp=2 fsdp=2", "all_gather %x over=[fsdp] dim=0",
     "f32[2,3] of f32[7,3] shard=[dp+fsdp,-]", "f32[4,3] of f32[7,3] shard=[dp,-]"},
    {"AllGatherOverOneOfTwoAxes2", "dp=2 fsdp=2", "all_gather %x over=[dp,fsdp] dim=0",
     "f32[2,3] of f32[7,3] shard=[dp+fsdp,-]", "f32[7,3] of f32[7,3] shard=[-,-]"},
    {"ReduceScatter1", "fsdp=2", "reduce_scatter %x over=[fsdp] dim=0",
     "f32[8,3] of f32[8,3] shard=[-,-] pending=[fsdp]", "f32[4,3] of f32[8,3] shard=[fsdp,-]"},
    {"ReduceScatter2", "fsdp=3", "reduce_scatter %x over=[fsdp] dim=1",
     "f32[2,7] of f32[2,7] shard=[-,-] pending=[fsdp]", "f32[2,3] of f32[2,7] shard=[-,fsdp]"},
    {"ReduceScatter3", "fsdp=4", "reduce_scatter %x over=[fsdp] dim=0",
     "f32[2,5] of f32[2,5] shard=[-,-] pending=[fsdp]", "f32[1,5] of f32[2,5] shard=[fsdp,-]"},
    {"AllReduceSmallAndLarge1", "fsdp=3", "all_reduce %x over=[fsdp]", "f32[] of f32[] shard=[] pending=[fsdp]",
     "f32[] of f32[] shard=[]"},
    {"AllReduceSmallAndLarge2", "fsdp=3", "all_reduce %x over=[fsdp]",
     "f32[101,333] of f32[101,333] shard=[-,-] pending=[fsdp]", "f32[101,333] of f32[101,333] shard=[-,-]"},
    {"AllToAllMovesAnAxis", "cp=2", "all_to_all %x over=[cp] split_dim=1 concat_dim=0",
     "f32[2,6] of f32[4,6] shard=[cp,-]", "f32[4,3] of f32[4,6] shard=[-,cp]"},
    {"AllReduceOfFourSmall", "fsdp=4", "all_reduce %x over=[fsdp]", "f32[7,3] of f32[7,3] shard=[-,-] pending=[fsdp]",
     "f32[7,3] of f32[7,3] shard=[-,-]"},
    {"AllReduceOfFourLarge", "fsdp=4", "all_reduce %x over=[fsdp]",
     "f32[301,333] of f32[301,333] shard=[-,-] pending=[fsdp]", "f32[301,333] of f32[301,333] shard=[-,-]"},
    {"AllGatherOfSix", "fsdp=6", "all_gather %x over=[fsdp] dim=1", "f32[5,2] of f32[5,11] shard=[-,fsdp]",
     "f32[5,11] of f32[5,11] shard=[-,-]"},
    {"ReduceScatterOfSix", "fsdp=6", "reduce_scatter %x over=[fsdp] dim=1",
     "f32[5,11] of f32[5,11] shard=[-,-] pending=[fsdp]", "f32[5,2] of f32[5,11] shard=[-,fsdp]"},
    {"LargeTensorsOfFour1", "fsdp=4", "all_gather %x over=[fsdp] dim=1",
     "f32[1500,500] of f32[1500,2000] shard=[-,fsdp]", "f32[1500,2000] of f32[1500,2000] shard=[-,-]"},
    {"LargeTensorsOfFour2", "fsdp=4", "reduce_scatter %x over=[fsdp] dim=0",
     "f32[2001,500] of f32[2001,500] shard=[-,-] pending=[fsdp]", "f32[501,500] of f32[2001,500] shard=[fsdp,-]"},
    {"LargeTensors1", "fsdp=2", "all_gather %x over=[fsdp] dim=1", "f32[1500,1000] of f32[1500,2000] shard=[-,fsdp]",
     "f32[1500,2000] of f32[1500,2000] shard=[-,-]"},
    {"LargeTensors2", "fsdp=2", "reduce_scatter %x over=[fsdp] dim=0",
     "f32[2001,1500] of f32[2001,1500] shard=[-,-] pending=[fsdp]", "f32[1001,1500] of f32[2001,1500] shard=[fsdp,-]"},
};

// One collective over types given in the text form; logical values are their flat index plus 1, summands of a pending
// value are that times (rank + 1).
class CollectiveCase {
 public:
  explicit CollectiveCase(const CollectiveText& text)
      : program_(*graph::ParseProgram(absl::StrCat("tacc.program 1 partitioned\nmesh ", text.mesh,
                                                   "\nstage 0 of 1\ngraph g {\n  %x = input \"x\" : ", text.from,
                                                   "\n  %y = ", text.op, " : ", text.to, "\n}\nstep {\n}\n"),
                                      {})) {}

  void Check(const RunRanksFunction& run_ranks) const {
    const graph::Graph& graph = program_.graphs[0];
    const int world = static_cast<int>(program_.mesh.num_ranks());
    double factor = 1;
    if (!graph.values[0].placement->sharding.pending.empty()) {
      // The summands over the pending axes; here always all ranks.
      factor = world * (world + 1) / 2.0;
    }
    run_ranks(world, [&](RankUnderTest rank) {
      std::vector<char> in = Fill(graph.values[0], rank.rank, factor == 1 ? 1.0 : rank.rank + 1.0),
                        out(graph.values[1].type.bytes(), 0);
      const kernels::TensorView x = View(graph.values[0], in), y = View(graph.values[1], out);
      auto call = BindCollective(graph, graph.nodes[1], program_.mesh, rank.rank, x, y);
      ASSERT_TRUE(call.ok()) << call.status();
      ASSERT_EQ(rank.queue.Prepare(&*call), absl::OkStatus());
      ASSERT_EQ(rank.connect(), absl::OkStatus());
      for (const bool is_started : {false, true}) {
        std::fill(out.begin(), out.end(), 0);
        ASSERT_EQ(is_started ? rank.queue.Wait(*rank.queue.Start(&*call)) : rank.queue.Run(*call), absl::OkStatus());
        ASSERT_EQ(rank.settle(), absl::OkStatus());
        EXPECT_EQ(out, Fill(graph.values[1], rank.rank, factor)) << "rank " << rank.rank;
      }
    });
  }

 private:
  static kernels::TensorView View(const graph::Value& value, std::vector<char>& memory) {
    return {memory.data(), static_cast<kernels::DType>(value.type.dtype),
            kernels::Dims(value.type.dims.begin(), value.type.dims.end())};
  }

  // f32 only. Padding is 0.
  std::vector<char> Fill(const graph::Value& value, int rank, double factor) const {
    std::vector<char> memory(value.type.bytes(), 0);
    float* data = reinterpret_cast<float*>(memory.data());
    const std::vector<graph::Range> ranges = RangesOf(value, program_.mesh, rank);
    const graph::Dims& local = value.type.dims;
    const graph::Dims& global = value.placement->global.dims;
    for (int64_t i = 0; i < value.type.num_elements(); ++i) {
      int64_t rest = i, flat = 0, stride = 1;
      bool inside = true;
      for (int d = static_cast<int>(local.size()) - 1; d >= 0; --d) {
        const int64_t index = ranges[d].begin + rest % local[d];
        inside = inside && index < ranges[d].end;
        flat += index * stride;
        stride *= global[d];
        rest /= local[d];
      }
      if (inside) data[i] = static_cast<float>(static_cast<double>(flat + 1) * factor);
    }
    return memory;
  }

  graph::Program program_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TESTING_COLLECTIVE_CASE_H_
