#include "machine/device_peaks.h"

#include <set>
#include <vector>

#include "absl/strings/str_split.h"

namespace tacc {
namespace {

struct Peak {
  const char* name;  // A word of the model's name.
  double half_flops_per_second;
  // Words of forms with another peak.
  std::vector<std::string> but;
};

// NVIDIA's data sheets of A100, H100, H200 and of B200 in DGX: tensor cores in bf16 and f16, without sparsity.
const std::vector<Peak>& Peaks() {
  static const std::vector<Peak> peaks = {
      {"A100", 312e12, {}}, {"H100", 989e12, {"PCIe", "NVL"}}, {"H200", 989e12, {"NVL"}}, {"B200", 2250e12, {}}};
  return peaks;
}

}  // namespace

std::map<std::string, double> TablePeaks(const std::string& model) {
  const std::set<std::string> words = absl::StrSplit(model, absl::ByAnyChar(" -"), absl::SkipEmpty());
  if (words.count("NVIDIA") == 0 || words.count("MIG") != 0) return {};
  for (const Peak& peak : Peaks()) {
    if (words.count(peak.name) == 0) continue;
    for (const std::string& other : peak.but) {
      if (words.count(other) != 0) return {};
    }
    return {{"bf16", peak.half_flops_per_second}, {"f16", peak.half_flops_per_second}};
  }
  return {};
}

}  // namespace tacc
