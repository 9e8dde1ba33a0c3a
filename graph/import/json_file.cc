#include "graph/import/json_file.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "graph/ir/status_macros.h"
#include "json/parse_json.h"

namespace tacc::graph {
namespace {

constexpr int kNumberOverflow = 406;  // nlohmann::json::out_of_range's id

std::string Place(const std::string& text, const std::string& path, size_t byte) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i + 1 < byte && i < text.size(); ++i) {
    column = text[i] == '\n' ? 1 : column + 1;
    line += text[i] == '\n';
  }
  return absl::StrCat(path, ":", line, ":", column);
}

// Checks the events of a parse: keys given twice, depth. Builds nothing.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Checker(const std::string& text) : text_(text) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Enter(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }
  bool key(string_t& name) override {
    last_key_ = name;
    if (keys_.back().insert(name).second) return true;
    problem_ = absl::StrCat("the key \"", name, "\" is given twice in one object");
    return false;
  }
  bool parse_error(std::size_t position, const std::string& last_token,
                   const nlohmann::json::exception& error) override {
    position_ = position;
    // It may begin with the key.
    absl::string_view token = last_token;
    if (absl::ConsumePrefix(&token, absl::StrCat("\"", last_key_, "\"")) && absl::ConsumePrefix(&token, ":"))
      token = absl::StripLeadingAsciiWhitespace(token);
    if (token.size() > 40) token.remove_prefix(token.size() - 40);
    problem_ = absl::StrCat(error.id == kNumberOverflow ? "too large a number: \"" : "not JSON at \"", token,
                            RestOfWord(position), "\"",
                            last_key_.empty() ? "" : absl::StrCat(", after the key \"", last_key_, "\""));
    return false;
  }
  const std::string& problem() const { return problem_; }
  size_t position() const { return position_; }

 private:
  bool Enter() {
    keys_.emplace_back();
    if (keys_.size() <= kMaxJsonDepth) return true;
    problem_ = absl::StrCat("nested deeper than ", kMaxJsonDepth, " levels");
    return false;
  }
  bool Leave() {
    keys_.pop_back();
    return true;
  }

  // Letters after the place where the parser gave up, as "aN" of NaN.
  std::string RestOfWord(size_t position) const {
    size_t end = position;
    while (end < text_.size() && end < position + 20 && absl::ascii_isalpha(text_[end])) ++end;
    return position < end ? text_.substr(position, end - position) : "";
  }

  const std::string& text_;
  std::string last_key_;
  std::vector<std::set<std::string>> keys_;
  std::string problem_;
  size_t position_ = 0;
};

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": there is no such file"));
  if (!std::filesystem::is_regular_file(path, error))
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a file"));
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (size > static_cast<uintmax_t>(max_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", size, " bytes; the limit is ", max_bytes));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(size, '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return text;
}

absl::StatusOr<nlohmann::json> ParseJson(const std::string& text, const std::string& path) {
  Checker checker(text);
  if (!nlohmann::json::sax_parse(text, &checker)) {
    const std::string place = checker.position() > 0 ? Place(text, path, checker.position()) : path;
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", checker.problem()));
  }
  return tacc::ParseJson(text);
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, max_bytes));
  return ParseJson(text, path);
}

}  // namespace tacc::graph
