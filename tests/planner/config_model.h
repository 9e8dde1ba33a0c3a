#ifndef TACC_TESTS_PLANNER_CONFIG_MODEL_H_
#define TACC_TESTS_PLANNER_CONFIG_MODEL_H_

#include <nlohmann/json.hpp>

#include "graph/planner/planner.h"

namespace tacc::graph {

// The model that a config.json describes, without weights; `ops` is kept.
ForwardBuilder ModelOfConfig(nlohmann::json config, const OpTable& ops);

// A job in bf16 on so many GPUs of a preset, that leaves its layout open.
PlanRequest JobOn(const char* machine, int64_t gpus, int64_t seq_len, int64_t global_batch);

}  // namespace tacc::graph

#endif  // TACC_TESTS_PLANNER_CONFIG_MODEL_H_
