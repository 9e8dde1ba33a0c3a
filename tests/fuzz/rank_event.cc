// A line of a rank's stdout, as the coordinator reads it.
#include "coordinator/core/rank_event.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto event = tacc::coordinator::ParseRankEvent(std::string(tacc::fuzz::TextOf(data, size)));
  if (!event.ok()) return 0;
  tacc::fuzz::Require(event->port >= 0, "a port is no negative number");
  tacc::v1::StepMetrics stored;
  tacc::fuzz::Require(stored.ParseFromString(event->metrics.SerializeAsString()), "metrics can be stored");
  return 0;
}
