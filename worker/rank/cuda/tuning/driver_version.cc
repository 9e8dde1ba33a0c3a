#include <cctype>
#include <sstream>

#include "worker/rank/cuda/tuning/probe.h"

namespace tacc::worker {

std::string DriverVersion(const std::string& text) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    bool has_point = false, is_version = std::isdigit(static_cast<unsigned char>(word[0]));
    for (char c : word) {
      has_point = has_point || c == '.';
      is_version = is_version && (c == '.' || std::isdigit(static_cast<unsigned char>(c)));
    }
    if (is_version && has_point) return word;
  }
  return "";
}

}  // namespace tacc::worker
