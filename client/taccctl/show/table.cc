#include "client/taccctl/show/table.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace tacc::client {
namespace {

// Characters, not bytes: bytes that go on a UTF-8 sequence are not counted.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string Printable(const std::string& text) {
  std::string out = text;
  for (size_t i = 0; i < out.size(); ++i) {
    if (static_cast<unsigned char>(out[i]) < 0x20 || out[i] == 0x7f) out[i] = ' ';
    // U+0080 to U+009F, of which one is as good as ESC [.
    if (out[i] == '\xc2' && i + 1 < out.size() && (out[i + 1] & 0xe0) == 0x80) out.replace(i, 2, " ");
  }
  return out;
}

std::string PrintableLines(const std::string& text, size_t indent) {
  std::string out;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    if (!out.empty()) out += "\n" + std::string(indent, ' ');
    out += Printable(std::string(line));
  }
  return out;
}

void PrintTable(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                std::ostream& out) {
  std::vector<size_t> widths;
  for (size_t i = 0; i < header.size(); ++i) {
    size_t width = Width(header[i]);
    for (const auto& row : rows) width = std::max(width, Width(row[i]));
    widths.push_back(width);
  }
  const auto print = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      out << Printable(row[i]);
      if (i + 1 < row.size()) out << std::string(widths[i] - Width(row[i]) + 2, ' ');
    }
    out << "\n";
  };
  print(header);
  for (const auto& row : rows) print(row);
}

void PrintFields(const std::vector<std::pair<std::string, std::string>>& fields, std::ostream& out) {
  size_t width = 0;
  for (const auto& [name, value] : fields) {
    if (!value.empty()) width = std::max(width, name.size());
  }
  for (const auto& [name, value] : fields) {
    if (value.empty()) continue;
    out << name << ":" << std::string(width - name.size() + 1, ' ') << PrintableLines(value, width + 2) << "\n";
  }
}

}  // namespace tacc::client
