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

const std::vector<Peak>& Peaks() {
  static const std::vector<Peak> peaks = {{"A100", kA100HalfFlops, {}},
                                          {"H100", kH100HalfFlops, {"PCIe", "NVL"}},
                                          {"H200", kH200HalfFlops, {"NVL"}},
                                          {"B200", kB200HalfFlops, {}}};
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
