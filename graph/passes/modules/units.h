#ifndef TACC_GRAPH_PASSES_MODULES_UNITS_H_
#define TACC_GRAPH_PASSES_MODULES_UNITS_H_

#include <map>
#include <string>
#include <vector>

namespace tacc::graph {

// The units of a model (module paths of layers): which one a module path belongs to.
class Units {
 public:
  explicit Units(const std::vector<std::string>& units) {
    for (size_t i = 0; i < units.size(); ++i) units_[units[i]] = static_cast<int>(i);
  }

  // Index of the unit that holds the module, the innermost one; -1: none does.
  int Of(const std::string& module) {
    auto [it, inserted] = cache_.try_emplace(module, -1);
    if (!inserted) return it->second;
    for (size_t end = module.size(); end != std::string::npos && end > 0; end = module.rfind('.', end - 1)) {
      auto unit = units_.find(module.substr(0, end));
      if (unit == units_.end()) continue;
      it->second = unit->second;
      break;
    }
    return it->second;
  }

 private:
  std::map<std::string, int> units_;
  std::map<std::string, int> cache_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_MODULES_UNITS_H_
