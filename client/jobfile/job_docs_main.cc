// job-docs PROTO_ROOT: prints docs/job.md.
#include <iostream>

#include "client/jobfile/job_docs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: job-docs PROTO_ROOT\n";
    return 2;
  }
  const absl::StatusOr<std::string> page = tacc::client::JobDocs(argv[1]);
  if (!page.ok()) {
    std::cerr << page.status().message() << "\n";
    return 1;
  }
  std::cout << *page;
  return 0;
}
