#include "worker/rank/torch/op_libraries.h"

#include <c10/core/Allocator.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/cpu/aten_call.h"

namespace tacc::worker {
namespace {

// Beside tacc-rank, without content. By the names in them (SONAME) they are libtorch_python.so, which cannot be loaded
// without Python, and libtorch.so, which is nothing but all of LibTorch: 0.24 GB of it are for GPUs, and libraries that
// need those name them too.
constexpr const char* kStandIns[] = {"libtacc_no_python.so", "libtacc_no_libtorch.so"};
// Libraries of LibTorch that one may need.
constexpr int kMaxMissing = 16;

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

absl::StatusOr<std::string> OwnFolder() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return absl::InternalError("/proc/self/exe cannot be read");
  return FolderOf(std::string(self, static_cast<size_t>(length)));
}

absl::StatusOr<std::string> LibTorchFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&c10::SetAllocator), &info) == 0 || info.dli_fname == nullptr)
    return absl::InternalError("the folder of LibTorch is not known");
  return FolderOf(info.dli_fname);
}

// Empty: it is loaded; else why not. What throws while it is loaded, as the second registration of an operator does,
// ends the process: the daemon tries libraries before it gives them to ranks.
std::string Open(const std::string& path, int mode) {
  return dlopen(path.c_str(), mode | RTLD_LOCAL) != nullptr ? "" : dlerror();
}

// The library that `error` says is not found; empty: it says something else.
std::string Missing(absl::string_view error) {
  const size_t colon = error.find(": cannot open shared object file: No such file");
  const absl::string_view name = error.substr(0, colon == absl::string_view::npos ? 0 : colon);
  return absl::StrContains(name, "/") ? "" : std::string(name);
}

// The symbol of Python that `error` says is not there; empty: it says something else.
std::string MissingOfPython(absl::string_view error) {
  constexpr absl::string_view kUndefined = "undefined symbol: ";
  const size_t at = error.find(kUndefined);
  if (at == absl::string_view::npos) return "";
  const absl::string_view symbol = error.substr(at + kUndefined.size());
  return absl::StartsWith(absl::StripPrefix(symbol, "_"), "Py") ? std::string(symbol) : "";
}

// As Open, with what of LibTorch it needs.
std::string OpenWithLibTorch(const std::string& path, const std::string& libtorch) {
  std::string error;
  for (int i = 0; i < kMaxMissing; ++i) {
    error = Open(path, RTLD_NOW);
    const std::string missing = Missing(error);
    if (missing.empty() || access(absl::StrCat(libtorch, missing).c_str(), R_OK) != 0) break;
    if (std::string why = Open(absl::StrCat(libtorch, missing), RTLD_NOW); !why.empty()) return why;
  }
  if (MissingOfPython(error).empty()) return error;
  // Functions are looked for when they are called, variables now.
  error = Open(path, RTLD_LAZY);
  const std::string symbol = MissingOfPython(error);
  if (symbol.empty()) return error;
  return absl::StrCat("it needs Python (", symbol,
                      "), which ranks have not: build it of TORCH_LIBRARY and <torch/library.h>",
                      " alone, without a Python module, or link it with -Wl,-z,lazy");
}

std::string WithPath(const std::string& path, const std::string& error) {
  std::string text = absl::StartsWith(error, path) ? error : absl::StrCat(path, ": ", error);
  if (const std::string missing = Missing(error); !missing.empty())
    absl::StrAppend(&text, "; give that library by an --op-library before this one");
  return text;
}

}  // namespace

absl::Status LoadOpLibraries(const std::vector<std::string>& files, Gpus gpus) {
  if (files.empty()) return absl::OkStatus();
  if (gpus == Gpus::kHidden) setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
  const absl::StatusOr<std::string> own = OwnFolder(), libtorch = LibTorchFolder();
  if (!own.ok()) return own.status();
  if (!libtorch.ok()) return libtorch.status();
  for (const char* stand_in : kStandIns) {
    if (const std::string error = Open(absl::StrCat(*own, stand_in), RTLD_NOW); !error.empty())
      return absl::InvalidArgumentError(absl::StrCat(error, "; it must lie beside tacc-rank, as the build puts it"));
  }
  for (const std::string& path : files) {
    if (const std::string error = OpenWithLibTorch(path, *libtorch); !error.empty())
      return absl::InvalidArgumentError(absl::StrCat("--op-library ", WithPath(path, error)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> OperatorsOf(const std::vector<std::string>& files) {
  const std::vector<std::string> before = kernels::cpu::OperatorNames();
  if (absl::Status status = LoadOpLibraries(files, Gpus::kHidden); !status.ok()) return status;
  const std::vector<std::string> after = kernels::cpu::OperatorNames();
  std::vector<std::string> added;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(added));
  return added;
}

}  // namespace tacc::worker
