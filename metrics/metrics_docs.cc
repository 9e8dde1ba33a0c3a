// metrics-docs PAGE: writes the tables of docs/metrics.md anew.
#include <fstream>
#include <iostream>
#include <sstream>

#include "metrics/metric.h"

int main(int argc, char** argv) {
  std::ifstream in(argc == 2 ? argv[1] : "");
  std::stringstream page;
  page << in.rdbuf();
  if (!in) {
    std::cerr << "usage: metrics-docs docs/metrics.md\n";
    return 1;
  }
  in.close();
  std::ofstream(argv[1]) << tacc::metrics::WithTables(page.str());
  return 0;
}
