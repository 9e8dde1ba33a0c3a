// A graph in text form. Printed, it is read again as the same.
#include "graph/ir/text.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto graph = tacc::graph::ParseGraph(tacc::fuzz::TextOf(data, size), {.symbols = {{"B", 2}, {"S", 8}}});
  if (!graph.ok()) return 0;
  const std::string text = tacc::graph::Print(*graph);
  const auto again = tacc::graph::ParseGraph(text, {});
  tacc::fuzz::Require(again.ok(), absl::StrCat("a printed graph is read: ", again.status().ToString()));
  tacc::fuzz::Require(tacc::graph::Print(*again) == text, "a printed graph is read as the same");
  return 0;
}
