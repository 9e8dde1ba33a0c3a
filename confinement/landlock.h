// Landlock: what files a thread, and all that it starts from then on, may touch (Linux 5.13).
#ifndef TACC_CONFINEMENT_LANDLOCK_H_
#define TACC_CONFINEMENT_LANDLOCK_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tacc {

// Folders with all beneath them, or single files. The rights of the user stay a condition of their own.
struct FileRights {
  // To read, write, make and remove; of devices, pipes, sockets and links nothing is made.
  std::vector<std::string> write;
  std::vector<std::string> read;
  std::vector<std::string> sockets;  // To make sockets in.
};

// Whether this kernel has it, and lets this process use it.
bool HasLandlock();

// Of this kernel's; 0: it has none.
int LandlockVersion();

// From what a Landlock of this version does not keep who is restricted, for people; empty: from nothing that a later
// one does.
std::string LandlockLacks(int version);

// Gives this thread no more than these rights and those of SystemRights, for good; it can gain none by running another
// program, and, where LandlockLacks does not say otherwise, signal no process outside. Paths that are not there are
// left out. What counts is where a file lies when it is opened, however it is named: links, `..` and /proc lead nowhere
// else. Modes, owners and times of files are none of its. Errors: Unimplemented without Landlock; Internal.
absl::Status RestrictFiles(const FileRights& rights);

// What any program reads of the system: libraries, CPUs and GPUs, names of hosts, time zones; null devices, GPUs and
// shared memory to write, with sockets in it. Not what tells secrets, such as passwords or environments of other
// processes.
FileRights SystemRights();

// The folders of this program and of the libraries that it has loaded, of which it may load more.
std::vector<std::string> LibraryFolders();

}  // namespace tacc

#endif  // TACC_CONFINEMENT_LANDLOCK_H_
