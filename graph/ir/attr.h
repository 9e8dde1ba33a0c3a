#ifndef TACC_GRAPH_IR_ATTR_H_
#define TACC_GRAPH_IR_ATTR_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace tacc::graph {

// An attribute's value. Text forms: 3, 1e-05, true, word or "any text", [1,2], [1.0,2.0], [dp,fsdp].
using Attr = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>, std::vector<double>,
                          std::vector<std::string>>;

// Ordered by name, so that printing and hashing are deterministic.
using Attrs = std::map<std::string, Attr>;

// The attribute as T, or `fallback` when it is absent. The type must be right, as inference has checked (else throws
// std::bad_variant_access). An integer stands in for a double, and [] for an empty list of any type.
template <typename T>
T GetAttr(const Attrs& attrs, const std::string& name, T fallback = T()) {
  auto it = attrs.find(name);
  if (it == attrs.end()) return fallback;
  if constexpr (std::is_same_v<T, double>) {
    if (const auto* i = std::get_if<int64_t>(&it->second)) return static_cast<double>(*i);
  }
  if constexpr (std::is_same_v<T, std::vector<double>> || std::is_same_v<T, std::vector<std::string>>) {
    if (const auto* ints = std::get_if<std::vector<int64_t>>(&it->second); ints != nullptr && ints->empty()) return T();
  }
  return std::get<T>(it->second);
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_ATTR_H_
