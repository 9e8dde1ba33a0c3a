#include "jobfile/yaml_tree.h"

#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace tacc::jobfile {
namespace {

// Length of the UTF-8 sequence at text[i], 0 when there is none.
size_t Utf8Length(const std::string& text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || i + length > text.size()) return 0;
  for (size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(i + 1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f;
  const bool too_large = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || too_large ? 0 : length;
}

// The traps that are in the bytes, before any YAML.
std::vector<Diagnostic> CheckBytes(const std::string& text) {
  static const char kHex[] = "0123456789abcdef";
  std::vector<Diagnostic> diagnostics;
  Place place;
  bool indentation = true;
  for (size_t i = 0; i < text.size();) {
    const unsigned char c = text[i];
    const size_t length = Utf8Length(text, i);
    const std::string byte = absl::StrCat("byte 0x", std::string(1, kHex[c >> 4]), std::string(1, kHex[c & 15]));
    if (length == 0) {
      diagnostics.push_back({place, absl::StrCat(byte, " is not UTF-8; save the file as UTF-8")});
      return diagnostics;
    }
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f) {
      diagnostics.push_back({place, absl::StrCat(byte, " is a control character; a job file is plain text")});
      return diagnostics;
    }
    if (c == '\t' && indentation) {
      diagnostics.push_back({place, "tab in the indentation; use spaces"});
      indentation = false;
    }
    if (c != ' ') indentation = false;
    if (c == '\n') {
      ++place.line;
      place.column = 1;
      indentation = true;
    } else {
      place.column += static_cast<int>(length);
    }
    i += length;
  }
  return diagnostics;
}

// What yaml-cpp says, in words that help.
std::string SyntaxMessage(const std::string& message) {
  static const std::map<std::string, std::string> kMessages = {
      {"illegal map value", "a ':' is out of place; check the indentation, and put text that has a colon in quotes"},
      {"end of sequence flow not found", "a '[' is never closed"},
      {"end of map flow not found", "a '{' is never closed"},
      {"end of map not found", "this line does not fit the indentation of the lines before"},
      {"end of sequence not found", "this line does not fit the indentation of the list before"},
      {"illegal block entry", "a '-' is out of place; check the indentation"},
      {"illegal map key", "a '?' is out of place"},
      {"illegal flow end", "a ']' or '}' closes nothing"},
      {"unknown token", "this character cannot begin a value; put the value in quotes"},
      {"the referenced anchor is not defined", "aliases are not supported; write the value out"},
  };
  const auto found = kMessages.find(message);
  return absl::StrCat("not valid YAML: ", found == kMessages.end() ? message : found->second);
}

// Thrown through yaml-cpp's parser to leave it, and caught in ParseYaml.
struct Stop {};

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const std::string& text, YamlNode* root, std::vector<Diagnostic>* diagnostics)
      : text_(text), root_(root), diagnostics_(diagnostics) {}

  int num_documents() const { return num_documents_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++num_documents_ == 2) {
      Add(mark, "a second document begins here; a job file is one document");
      throw Stop();
    }
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { Leaf(YamlNode::Kind::kNull, mark, "", anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Add(mark, "aliases are not supported; write the value out");
    Leaf(YamlNode::Kind::kNull, mark, "", 0);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool plain = tag == "?";
    if (!plain && tag != "!") CheckTag(mark, tag);
    CheckOneLine(mark, plain, value);
    Leaf(plain ? YamlNode::Kind::kPlain : YamlNode::Kind::kQuoted, mark, value, anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, mark, tag, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { Close(); }

 private:
  // A node that is still open, and the key that waits for its value.
  struct Frame {
    YamlNode node;
    YamlNode key;
    bool has_key = false;
    std::map<std::string, int> key_lines;  // of a map's keys so far
  };

  void Add(const YAML::Mark& mark, const std::string& message) { Add(Place{mark.line + 1, mark.column + 1}, message); }
  void Add(const Place& place, const std::string& message) { diagnostics_->push_back({place, message}); }

  void CheckTag(const YAML::Mark& mark, const std::string& tag) {
    if (tag != "?" && tag != "!" && !tag.empty()) Add(mark, "tags are not supported; write the value alone");
  }

  void CheckAnchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor != 0) Add(mark, "anchors are not supported; write the value where it is needed");
  }

  // yaml-cpp folds lines together, and takes a quote that does not close as closed at the end of the file.
  void CheckOneLine(const YAML::Mark& mark, bool plain, const std::string& value) {
    const size_t start = static_cast<size_t>(mark.pos);
    if (mark.pos < 0 || start >= text_.size()) return;
    const char first = text_[start];
    if (plain) {
      if (text_.compare(start, value.size(), value) != 0)
        Add(mark, "the value goes over several lines; write it on one, or check the indentation");
    } else if (first == '|' || first == '>') {
      Add(mark, "values over several lines are not supported; write it on one line");
    } else if (first == '\'' || first == '"') {
      size_t i = start + 1;
      while (i < text_.size() && text_[i] != '\n' && text_[i] != first) i += (first == '"' && text_[i] == '\\') ? 2 : 1;
      if (i >= text_.size() || text_[i] != first)
        Add(mark, absl::StrCat("the quote (", std::string(1, first), ") does not close on this line"));
    }
  }

  void Leaf(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& text, YAML::anchor_t anchor) {
    CheckAnchor(mark, anchor);
    YamlNode node;
    node.kind = kind;
    node.place = {mark.line + 1, mark.column + 1};
    node.text = text;
    Attach(std::move(node));
  }

  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    CheckAnchor(mark, anchor);
    CheckTag(mark, tag);
    if (open_.size() >= kMaxYamlDepth) {
      Add(mark, absl::StrCat("more than ", kMaxYamlDepth, " levels of nesting"));
      throw Stop();
    }
    Frame frame;
    frame.node.kind = kind;
    frame.node.place = {mark.line + 1, mark.column + 1};
    open_.push_back(std::move(frame));
  }

  void Close() {
    YamlNode node = std::move(open_.back().node);
    open_.pop_back();
    Attach(std::move(node));
  }

  void Attach(YamlNode node) {
    if (open_.empty()) {
      *root_ = std::move(node);
      return;
    }
    Frame& frame = open_.back();
    if (frame.node.kind == YamlNode::Kind::kList) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.has_key) {
      frame.key = std::move(node);
      frame.has_key = true;
    } else {
      frame.has_key = false;
      AddEntry(&frame, std::move(frame.key), std::move(node));
    }
  }

  void AddEntry(Frame* map, YamlNode key, YamlNode value) {
    if (key.kind != YamlNode::Kind::kPlain && key.kind != YamlNode::Kind::kQuoted) {
      Add(key.place, "a key must be the name of a field");
      return;
    }
    if (key.text == "<<" && key.kind == YamlNode::Kind::kPlain) {
      Add(key.place, "merge keys are not supported; write the fields out");
      return;
    }
    const auto [first, is_new] = map->key_lines.emplace(key.text, key.place.line);
    if (!is_new) {
      Add(key.place, absl::StrCat("\"", key.text.substr(0, 100), "\" is given twice, first at line ", first->second,
                                  "; keep one"));
      return;
    }
    // An empty value has the place of whatever comes next.
    if (value.kind == YamlNode::Kind::kNull) value.place = key.place;
    map->node.keys.push_back(std::move(key));
    map->node.items.push_back(std::move(value));
  }

  const std::string& text_;
  YamlNode* root_;
  std::vector<Diagnostic>* diagnostics_;
  std::vector<Frame> open_;
  int num_documents_ = 0;
};

}  // namespace

std::vector<Diagnostic> ParseYaml(const std::string& text, YamlNode* root) {
  if (text.size() > kMaxYamlBytes) {
    return {{Place{}, absl::StrCat("the file has more than ", kMaxYamlBytes, " bytes; is it a job file?")}};
  }
  // A byte order mark would shift the places.
  const std::string body = absl::StartsWith(text, "\xef\xbb\xbf") ? text.substr(3) : text;
  std::vector<Diagnostic> diagnostics = CheckBytes(body);
  if (!diagnostics.empty()) return diagnostics;
  TreeBuilder builder(body, root, &diagnostics);
  try {
    std::istringstream stream(body);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
  } catch (const YAML::Exception& error) {
    diagnostics.push_back({Place{error.mark.line + 1, error.mark.column + 1}, SyntaxMessage(error.msg)});
  }
  if (diagnostics.empty() && (builder.num_documents() == 0 || root->kind == YamlNode::Kind::kNull))
    diagnostics.push_back({Place{}, "the file is empty"});
  return diagnostics;
}

}  // namespace tacc::jobfile
