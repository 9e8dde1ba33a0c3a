// The option --op-library of commands that start workers.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_OP_LIBRARIES_H_
#define TACC_CLIENT_TACCCTL_LOCAL_OP_LIBRARIES_H_

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"

namespace tacc::client {

inline void AddOpLibraries(CLI::App* command, std::vector<std::string>* files) {
  command
      ->add_option(
          "--op-library", *files,
          "Shared library whose operators for PyTorch each worker's ranks can compute, as torchvision's _C.so; "
          "may be given several times (default: none)")
      ->allow_extra_args(false);
}

// As workers take them.
inline std::vector<std::string> WholePaths(std::vector<std::string> files) {
  for (std::string& file : files) {
    std::error_code error;  // The worker says what is wrong with the path.
    const std::string whole = file.empty() ? "" : std::filesystem::absolute(file, error).string();
    if (!error) file = whole;
  }
  return files;
}

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_OP_LIBRARIES_H_
