#ifndef TACC_PAGE_SVG_H_
#define TACC_PAGE_SVG_H_

#include <string>

#include "absl/strings/string_view.h"

// Pieces of pictures; `css` are classes of page.h.
namespace tacc::svg {

inline constexpr double kWidth = 1100;  // of all pictures, in user units

// `text` as it may stand in HTML.
std::string Escaped(absl::string_view text);

// The start of a picture; "</svg>" ends it.
std::string Open(double height, const std::string& title);
std::string Text(double x, double y, const std::string& css, const std::string& text);
std::string Rect(double x, double y, double width, double height, const std::string& css, const std::string& title);

}  // namespace tacc::svg

#endif  // TACC_PAGE_SVG_H_
