// The part of YAML that a job file needs, as a tree with places. What YAML reads in surprising ways is an error here.
#ifndef TACC_JOBFILE_YAML_TREE_H_
#define TACC_JOBFILE_YAML_TREE_H_

#include <string>
#include <vector>

namespace tacc::jobfile {

// A place in a file, both counted from 1; the column in bytes.
struct Place {
  int line = 1;
  int column = 1;
  // Not in the file but in the text that was given beside it as number `set`, counted from 1.
  int set = 0;
};

// Something wrong at a place.
struct Diagnostic {
  Place place;
  std::string message;
  // Path of the field that it is about, "train.max_steps"; empty: of none.
  std::string field;
};

struct YamlNode {
  enum class Kind { kNull, kPlain, kQuoted, kList, kMap };
  Kind kind = Kind::kNull;
  Place place;
  // Of kPlain and kQuoted: the text, escapes resolved.
  std::string text;
  // Entries of a list; values of a map.
  std::vector<YamlNode> items;
  // Keys of a map, each kPlain or kQuoted and all different; keys[i] belongs to items[i].
  std::vector<YamlNode> keys;
};

inline constexpr size_t kMaxYamlBytes = 256 * 1024;
inline constexpr int kMaxYamlDepth = 16;

// Reads `text` into `*root` and returns what is wrong, empty when nothing is; `*root` holds what could be read.
// Refused: more than kMaxYamlBytes, more than kMaxYamlDepth levels, bytes that are not UTF-8, control characters, tabs
// in the indentation, no document or a second one, anchors, aliases, tags, merge keys, duplicate keys, keys that are
// not text, values over several lines, quotes that do not close. Any bytes are safe.
std::vector<Diagnostic> ParseYaml(const std::string& text, YamlNode* root);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_YAML_TREE_H_
