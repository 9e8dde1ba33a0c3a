#ifndef TACC_TESTS_MATRIX_TABLE_H_
#define TACC_TESTS_MATRIX_TABLE_H_

#include <string>

namespace tacc::matrix {

// Writes a table to standard output and as $TACC_TABLES/NAME.txt, for `make test` to print.
void PrintTable(const std::string& name, const std::string& table);

}  // namespace tacc::matrix

#endif  // TACC_TESTS_MATRIX_TABLE_H_
