// A cluster's constants fitted to steps that were measured on it.
#ifndef TACC_GRAPH_PLANNER_CALIBRATE_H_
#define TACC_GRAPH_PLANNER_CALIBRATE_H_

#include <functional>
#include <vector>

#include "graph/planner/cost/cluster.h"
#include "graph/planner/cost/estimate.h"

namespace tacc::graph {

// What a prediction depends on beside the model and its layout: a machine, and how its programs run.
struct Setting {
  Machine machine;
  Execution execution;
};

// A constant that a fit may move.
struct FreeConstant {
  const char* name;  // as in Machine or in Execution
  const char* unit;
  double& (*of)(Setting& setting);
  double deviation;  // how far from where it begins: one standard deviation of its logarithm
  double low, high;  // physically plausible
};

// Of a machine, those that its data sheet does not say: 0.1 for fractions, 0.2 for attention's, 0.5 for depth and
// latencies, 1.2 for issue. In the order of MachineConstants().
const std::vector<FreeConstant>& UnlistedConstants();
// Its network, which differs between clusters of the same machines: 0.5.
FreeConstant NetworkConstant();
// Of a program that is not ours (Execution::micro_batch_seconds): 1.2.
FreeConstant HostConstant();

struct MeasuredStep {
  double seconds = 0;                                // > 0
  std::function<double(const Setting&)> prediction;  // seconds, > 0
};

struct Fit {
  Setting setting;
  // Of each free constant: its standard deviation once the steps are known, over that before. 1: they say nothing of
  // it.
  std::vector<double> spreads;
};

// The most probable constants, given that each begins where `start` has it and lies within about its deviation of that,
// and that predictions are off by 5 % and now and then by far more (Huber's loss). Stays within their bounds; one that
// is 0 stays so.
Fit FitConstants(const Setting& start, const std::vector<FreeConstant>& constants,
                 const std::vector<MeasuredStep>& steps);

// Mean of |prediction / measured - 1|; 0 without steps.
double MeanAbsoluteError(const Setting& setting, const std::vector<MeasuredStep>& steps);

// What Calibrate moves: the unlisted constants and the network.
std::vector<FreeConstant> CalibratedConstants();

// A fit of a cluster's constants to steps that ran on it.
struct Calibration {
  Setting setting;
  std::vector<FreeConstant> constants;  // CalibratedConstants()
  std::vector<bool> determined;         // by the steps; the others are those of the start
  double error_before = 0, error_after = 0;
};
// The steps determine a constant where they say three times as much of it as was known before: its deviation at most
// halves. What they do not determine stays where it was: one after the other, that first without which the others fit
// the steps best, so that of two that only their product tells one is left: the one that tells more.
Calibration Calibrate(const Setting& start, const std::vector<MeasuredStep>& steps);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_CALIBRATE_H_
