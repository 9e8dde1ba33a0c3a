#ifndef TACC_PAGE_PAGE_H_
#define TACC_PAGE_PAGE_H_

#include <cstddef>
#include <string>
#include <vector>

namespace tacc {

struct PageHead {
  std::string title;  // of the window
  std::string heading;
  std::string subtitle;  // a line below
};
// A page for a browser: nothing is loaded from anywhere; light or dark as the reader's system is; 360 px wide and up.
// `script` is added to what zooms the timeline.
std::string Page(const PageHead& head, const std::string& body, const std::string& script);

// Parts of its body.
std::string Section(const std::string& title, const std::string& body);
// What a colour means: a class that is also a colour's name.
std::string Key(const std::string& css, const std::string& text);
// A timeline (timeline.h) with a slider; one a page.
std::string ZoomedTimeline(const std::string& svg);
// The cells of a table's row, `tag` th or td; those from first_number to last_number are numbers.
std::string TableRow(const char* tag, const std::vector<std::string>& cells, size_t first_number, size_t last_number);

}  // namespace tacc

#endif  // TACC_PAGE_PAGE_H_
