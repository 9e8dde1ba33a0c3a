#include "worker/rank/gpu/gpu_module.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

constexpr char kModule[] = "libtacc_cuda.so";
constexpr char kEntry[] = "tacc_gpu_module";

}  // namespace

bool HasGpuDriver() {
  // Some sandboxes show only one of them.
  return access("/proc/driver/nvidia/version", R_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
}

absl::StatusOr<GpuModule*> LoadGpuModule() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length <= 0) return absl::InternalError("/proc/self/exe cannot be read");
  std::string path(self, static_cast<size_t>(length));
  path = absl::StrCat(path.substr(0, path.rfind('/') + 1), kModule);
  if (access(path.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no CUDA module (", kModule,
                                            ") beside tacc-rank; use --device cpu, or a build with CUDA"));
  }
  // Each of the streams on which ranks wait for each other needs a queue in hardware of its own: in a shared one the
  // wait of one would hold up another, perhaps for good. (The most that there are; 8 if nothing is said.)
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);
  // LibTorch asks for its CUDA part once, and remembers: it is loaded, as what the module needs, before LibTorch is
  // used.
  void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (module == nullptr) {
    return absl::NotFoundError(absl::StrCat("the CUDA module cannot be loaded: ", dlerror(),
                                            "; LibTorch's CUDA libraries must be those of the build"));
  }
  auto* const entry = reinterpret_cast<GpuModule* (*)()>(dlsym(module, kEntry));
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat(path, " is of another version than tacc-rank"));
  return entry();
}

}  // namespace tacc::worker
