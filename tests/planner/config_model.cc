#include "tests/planner/config_model.h"

#include <utility>

#include "graph/import/families.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {

ForwardBuilder ModelOfConfig(nlohmann::json config, const OpTable& ops) {
  return [config = std::move(config), &ops](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    TACC_ASSIGN_OR_RETURN(const ReadFamily read, ReadModelConfig(config, seq_len));
    DecoderBuildOptions build;
    build.batch = batch;
    build.seq_len = seq_len;
    ForwardModel model;
    TACC_ASSIGN_OR_RETURN(model.forward, BuildDecoder(read.spec, build, ops));
    for (int64_t layer = 0; layer < read.spec.num_layers; ++layer) model.units.push_back(read.spec.LayerPath(layer));
    model.residual_module = read.spec.names.embedding;
    return model;
  };
}

PlanRequest JobOn(const char* machine, int64_t gpus, int64_t seq_len, int64_t global_batch) {
  PlanRequest request;
  request.cluster = *MakeCluster(*FindMachine(machine), gpus);
  request.device = ProfileOf(request.cluster.machine);
  request.world = gpus;
  request.bf16 = true;
  request.seq_len = seq_len;
  request.global_batch = global_batch;
  request.training.max_steps = 1;
  return request;
}

}  // namespace tacc::graph
