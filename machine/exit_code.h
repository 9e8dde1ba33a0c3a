#ifndef TACC_MACHINE_EXIT_CODE_H_
#define TACC_MACHINE_EXIT_CODE_H_

namespace tacc {

// Exit codes of all programs. Scripts and the programs themselves rely on them; docs/contracts.md and docs/taccctl.md
// list what else a rank and taccctl may end with.
inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitBadInput = 2;  // Usage, job file, model or data: trying again changes nothing.

// Of ranks, which no restart can cure either.
inline constexpr int kExitNonfinite = 3;
inline constexpr int kExitStuck = 4;
inline constexpr int kExitExport = 5;

}  // namespace tacc

#endif  // TACC_MACHINE_EXIT_CODE_H_
