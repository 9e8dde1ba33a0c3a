#include "graph/planner/finalists.h"

#include <algorithm>
#include <numeric>

#include "graph/ir/topology.h"

namespace tacc::graph {

Layout LayoutOfPlan(const Plan& plan) {
  Layout layout;
  std::vector<int> order;
  for (const Mesh::Axis& axis : plan.mesh.axes) {
    const int index = TopologyIndex(axis.name);
    if (index >= 0 && std::find(order.begin(), order.end(), index) == order.end()) order.push_back(index);
    if (axis.name == "pp") layout.pp = axis.size;
    if (axis.name == "dp") layout.dp = axis.size;
    if (axis.name == "fsdp") layout.fsdp = axis.size;
    if (axis.name == "ep") layout.ep = axis.size;
    if (axis.name == "cp" || axis.name == "sp") layout.cp *= axis.size;
    if (axis.name == "tp" || axis.name == "tpq") layout.tp *= axis.size;
  }
  // Axes that the mesh lacks are of size 1 and stay where they are.
  size_t next = 0;
  for (int& axis : layout.order) {
    if (std::find(order.begin(), order.end(), axis) != order.end()) axis = order[next++];
  }
  layout.micro_batch = plan.micro_batch;
  layout.accumulation = plan.accumulation;
  layout.zero_stage = plan.zero_stage;
  layout.reshard = plan.kept_units == 0;
  layout.recompute = plan.recompute_units > 0;
  return layout;
}

Execution ExecutionOf(const Machine& machine, DType compute) {
  Execution execution;
  execution.compute = compute;
  if (machine.issue_seconds == 0) execution.overlap_data = execution.overlap_sends = 0;
  return execution;
}

std::vector<Plan> Finalists(const ModelWork& model, const Cluster& cluster, std::vector<Plan> plans, size_t limit) {
  if (plans.size() <= limit) return plans;
  struct Estimated {
    double seconds = 0, bytes = 0;
    int fit = 0;  // 0: with room to spare, 1: perhaps, 2: not
  };
  std::vector<Estimated> estimated;
  for (const Plan& plan : plans) {
    const Layout layout = LayoutOfPlan(plan);
    const Execution execution = ExecutionOf(cluster.machine, plan.compute_dtype);
    Estimated e;
    e.bytes = EstimateMemory(model, layout, execution).total();
    e.seconds = EstimateStep(model, cluster, layout, execution).seconds;
    const double has = cluster.machine.memory_bytes;
    e.fit = has <= 0 || e.bytes < 0.9 * has ? 0 : e.bytes < 1.1 * has ? 1 : 2;
    estimated.push_back(e);
  }
  std::vector<size_t> order(plans.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Estimated &x = estimated[a], &y = estimated[b];
    if (x.fit != y.fit) return x.fit < y.fit;
    return x.fit == 2 ? x.bytes < y.bytes : x.seconds < y.seconds;
  });
  const size_t smallest = std::min_element(estimated.begin(), estimated.end(),
                                           [](const Estimated& a, const Estimated& b) { return a.bytes < b.bytes; }) -
                          estimated.begin();
  order.resize(limit);
  if (std::find(order.begin(), order.end(), smallest) == order.end()) order.back() = smallest;
  std::sort(order.begin(), order.end());
  std::vector<Plan> finalists;
  for (size_t i : order) finalists.push_back(std::move(plans[i]));
  return finalists;
}

}  // namespace tacc::graph
