#ifndef TACC_GRAPH_PASSES_UNITS_H_
#define TACC_GRAPH_PASSES_UNITS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {

// The units of a model (module paths of layers): which one a module path belongs to.
class Units {
 public:
  explicit Units(const std::vector<std::string>& units) : units_(units) {}

  // Index of the unit that holds the module; -1: none does.
  int Of(const std::string& module) {
    auto [it, inserted] = cache_.try_emplace(module, -1);
    if (inserted) {
      for (size_t i = 0; i < units_.size(); ++i) {
        if (module == units_[i] || absl::StartsWith(module, absl::StrCat(units_[i], ".")))
          it->second = static_cast<int>(i);
      }
    }
    return it->second;
  }

 private:
  const std::vector<std::string>& units_;
  std::map<std::string, int> cache_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_UNITS_H_
