// roles-docs PAGE: writes the table of docs/roles.md anew.
#include <fstream>
#include <iostream>
#include <sstream>

#include "identity/roles_page.h"

int main(int argc, char** argv) {
  std::ifstream in(argc == 2 ? argv[1] : "");
  std::stringstream page;
  page << in.rdbuf();
  if (!in) {
    std::cerr << "usage: roles-docs docs/roles.md\n";
    return 1;
  }
  in.close();
  std::ofstream(argv[1]) << tacc::identity::WithTable(page.str());
  return 0;
}
