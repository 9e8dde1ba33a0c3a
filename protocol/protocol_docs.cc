// protocol-docs PAGE: writes the table of docs/contracts.md anew.
#include <fstream>
#include <iostream>
#include <sstream>

#include "protocol/start_file.h"

int main(int argc, char** argv) {
  std::ifstream in(argc == 2 ? argv[1] : "");
  std::stringstream page;
  page << in.rdbuf();
  if (!in) {
    std::cerr << "usage: protocol-docs docs/contracts.md\n";
    return 1;
  }
  in.close();
  std::ofstream out(argv[1]);
  out << tacc::protocol::WithStartTable(page.str());
  out.close();
  if (!out) std::cerr << argv[1] << ": cannot be written\n";
  return out ? 0 : 1;
}
