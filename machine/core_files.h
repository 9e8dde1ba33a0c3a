// What a process leaves when it crashes.
#ifndef TACC_MACHINE_CORE_FILES_H_
#define TACC_MACHINE_CORE_FILES_H_

namespace tacc {

// This process and those that it starts leave no core file when they crash, nor hand one to a program of the system:
// they hold private keys, tokens and secrets of ranks. Cannot be undone, but by root.
void LeaveNoCoreFiles();

}  // namespace tacc

#endif  // TACC_MACHINE_CORE_FILES_H_
