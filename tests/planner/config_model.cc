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

}  // namespace tacc::graph
