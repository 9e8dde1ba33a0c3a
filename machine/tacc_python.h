// Commands of tacc's Python package in messages, such that they run when they are pasted.
#ifndef TACC_MACHINE_TACC_PYTHON_H_
#define TACC_MACHINE_TACC_PYTHON_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tacc {

// The Python that has tacc's package: `.venv/bin/python` of the checkout in which `folder` lies, where a program was
// built; empty: it lies in none, or the .venv is not there.
std::string FindTaccPython(const std::string& folder);

// `text` with that Python, of the folder of this program, in the place of each `python` of "python -m tacc". Where
// there is none it says which is wanted: "CHECKOUT/.venv/bin/python".
std::string WithTaccPython(absl::string_view text);

// `word` as one word of a shell's command: in quotes where it needs them.
std::string ShellWord(const std::string& word);

}  // namespace tacc

#endif  // TACC_MACHINE_TACC_PYTHON_H_
