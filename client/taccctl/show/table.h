// Tables for people.
#ifndef TACC_CLIENT_TACCCTL_SHOW_TABLE_H_
#define TACC_CLIENT_TACCCTL_SHOW_TABLE_H_

#include <ostream>
#include <string>
#include <vector>

namespace tacc::client {

// Prints `rows` under `header`, columns padded to the widest cell and two spaces apart; the last one is not padded.
// Control characters in cells become spaces. Each row has as many cells as the header.
void PrintTable(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows,
                std::ostream& out);

// Prints `name: value` lines, values in one column, skipping those with an empty value. Further lines of a value stand
// below its first one.
void PrintFields(const std::vector<std::pair<std::string, std::string>>& fields, std::ostream& out);

// `text` without control characters, so that what others wrote cannot steer the terminal.
std::string Printable(const std::string& text);

// The same of a text of several lines: each but the first begins with `indent` spaces.
std::string PrintableLines(const std::string& text, size_t indent);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_TABLE_H_
