// job-docs job|json PROTO_ROOT: prints docs/job.md or docs/json.md.
#include <iostream>
#include <string>

#include "jobfile/job_docs.h"

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  if (what != "job" && what != "json") {
    std::cerr << "usage: job-docs job|json PROTO_ROOT\n";
    return 2;
  }
  const absl::StatusOr<std::string> page =
      what == "job" ? tacc::jobfile::JobDocs(argv[2]) : tacc::jobfile::JsonDocs(argv[2]);
  if (!page.ok()) {
    std::cerr << page.status().message() << "\n";
    return 1;
  }
  std::cout << *page;
  return 0;
}
