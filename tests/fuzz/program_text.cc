// The programs of a stage in text form. Printed, each is read again as the same.
#include "graph/ir/text.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const absl::string_view part : tacc::graph::SplitPrograms(tacc::fuzz::TextOf(data, size))) {
    const auto program = tacc::graph::ParseProgram(part, {});
    if (!program.ok()) continue;
    const std::string text = tacc::graph::Print(*program);
    const auto again = tacc::graph::ParseProgram(text, {});
    tacc::fuzz::Require(again.ok(), absl::StrCat("a printed program is read: ", again.status().ToString()));
    tacc::fuzz::Require(tacc::graph::Print(*again) == text, "a printed program is read as the same");
  }
  return 0;
}
