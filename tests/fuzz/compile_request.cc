// A job in JSON, as tacc-plan gets it from the coordinator and from `taccctl plan --local`.
#include "graph/planner/request.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto request = tacc::graph::ParseCompileRequest(tacc::fuzz::TextOf(data, size));
  if (request.ok()) tacc::fuzz::Require(request->plan.world >= 1, "a request is for at least one rank");
  return 0;
}
