#include "page/svg.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tacc::svg {

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Open(double height, const std::string& title) {
  return absl::StrFormat("<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n", kWidth, height,
                         Escaped(title));
}

std::string Text(double x, double y, const std::string& css, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, css, Escaped(text));
}

std::string Rect(double x, double y, double width, double height, const std::string& css, const std::string& title) {
  return absl::StrFormat("<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" class=\"%s\">%s</rect>\n", x, y,
                         width, height, css, title.empty() ? "" : absl::StrCat("<title>", Escaped(title), "</title>"));
}

}  // namespace tacc::svg
