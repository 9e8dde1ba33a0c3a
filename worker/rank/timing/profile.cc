#include "worker/rank/timing/profile.h"

#include <algorithm>
#include <fstream>

#include "nlohmann/json.hpp"

namespace tacc::worker {

void Profile::Add(const graph::Program& program, const StepTimes& times) {
  const graph::Graph* graph = nullptr;
  int call = -1;
  for (const StepTimes::Instruction& instruction : times.instructions) {
    if (instruction.call != call) {
      call = instruction.call;
      const int num_step_calls = static_cast<int>(program.step.size());
      graph = program.FindGraph(call < num_step_calls ? program.step[call].graph
                                                      : program.eval[call - num_step_calls].graph);
    }
    const graph::Node& node = graph->nodes[instruction.node];
    Entry& entry = entries_[{std::string(node.op.name()), node.module}];
    entry.op = std::string(node.op.name());
    entry.module = node.module;
    ++entry.count;
    entry.seconds += instruction.end - instruction.begin;
  }
}

std::vector<Profile::Entry> Profile::Entries() const {
  std::vector<Entry> sorted;
  for (const auto& [key, entry] : entries_) sorted.push_back(entry);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry& a, const Entry& b) { return a.seconds > b.seconds; });
  return sorted;
}

void Profile::Write(const std::string& path, const CollectiveStats& collectives, const graph::Program& program,
                    const HostWorkspace* workspace) const {
  using nlohmann::json;
  json nodes = json::array();
  for (const Entry& entry : Entries()) {
    nodes.push_back({{"op", entry.op}, {"module", entry.module}, {"count", entry.count}, {"seconds", entry.seconds}});
  }
  json profile = {{"nodes", nodes},
                  {"collectives",
                   {{"calls", collectives.num_calls},
                    {"bytes_sent", collectives.bytes_sent},
                    {"busy_seconds", collectives.busy_seconds},
                    {"wait_seconds", collectives.wait_seconds}}}};
  if (workspace != nullptr) {
    const HostWorkspace::Stats memory = workspace->stats();
    profile["workspace"] = {{"bytes", program.workspace_bytes},
                            {"highest_bytes", memory.heap.highest_bytes},
                            {"fallbacks", memory.num_fallbacks},
                            {"fallback_bytes", memory.fallback_bytes},
                            {"largest_fallback_bytes", memory.largest_fallback_bytes}};
  }
  std::ofstream(path) << profile.dump(1) << "\n";
}

}  // namespace tacc::worker
