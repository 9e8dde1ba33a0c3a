#include "graph/targets/targets.h"

namespace tacc::graph {

TargetKind ReferenceTarget() {
  TargetKind kind{"reference"};
  kind.shares_cores = true;
  kind.make = [](const RankProcessors&) -> std::shared_ptr<const Target> { return std::make_shared<const Target>(); };
  return kind;
}

}  // namespace tacc::graph
