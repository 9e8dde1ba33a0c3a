#ifndef TACC_TESTS_PLANNER_CONFIG_MODEL_H_
#define TACC_TESTS_PLANNER_CONFIG_MODEL_H_

#include <nlohmann/json.hpp>

#include "graph/planner/planner.h"

namespace tacc::graph {

// The model that a config.json describes, without weights; `ops` is kept.
ForwardBuilder ModelOfConfig(nlohmann::json config, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_TESTS_PLANNER_CONFIG_MODEL_H_
