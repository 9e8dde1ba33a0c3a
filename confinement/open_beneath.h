// Opens what lies beneath a folder, and nothing that links lead to elsewhere.
#ifndef TACC_CONFINEMENT_OPEN_BENEATH_H_
#define TACC_CONFINEMENT_OPEN_BENEATH_H_

#include <string>

#include "machine/descriptor.h"

namespace tacc {

enum class Links {
  kBeneath,  // Relative ones are followed as long as they stay beneath the folder.
  kNone,
};

// How paths are resolved: by the kernel in one step (openat2, Linux 5.6), or, where it does not know how, one name
// after the other, which follows no link at all and refuses `..`.
enum class Resolver { kKernel, kByName };

// Returns an O_PATH descriptor of `path`, relative to the open folder `root`: what it names is found, not opened. Not
// open, with errno: ENOENT, ENOTDIR, EACCES and the like as of open(); EXDEV or ELOOP: a link or `..` leads elsewhere.
Descriptor FindBeneath(int root, const std::string& path, Links links, Resolver resolver);

// The kernel's, if it has it.
Resolver BestResolver();

}  // namespace tacc

#endif  // TACC_CONFINEMENT_OPEN_BENEATH_H_
