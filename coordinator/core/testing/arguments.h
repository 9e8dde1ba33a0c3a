#ifndef TACC_COORDINATOR_CORE_TESTING_ARGUMENTS_H_
#define TACC_COORDINATOR_CORE_TESTING_ARGUMENTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tacc::coordinator {

// Arguments of a script's command: words, and key=value pairs.
struct Arguments {
  std::vector<std::string> words;
  std::map<std::string, std::string> values;

  explicit Arguments(const std::string& line) {
    for (const std::string& word : std::vector<std::string>(absl::StrSplit(line, ' ', absl::SkipEmpty()))) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos || word.find(':') < equals || word[0] == '{') {
        words.push_back(word);
      } else {
        values[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }
  std::string Text(const std::string& key, const std::string& fallback = "") const {
    auto it = values.find(key);
    return it == values.end() ? fallback : it->second;
  }
  // Words are joined by "_".
  std::string Words(const std::string& key) const { return absl::StrReplaceAll(Text(key), {{"_", " "}}); }
  int64_t Int(const std::string& key, int64_t fallback) const {
    auto it = values.find(key);
    return it == values.end() ? fallback : std::stoll(it->second);
  }
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_TESTING_ARGUMENTS_H_
