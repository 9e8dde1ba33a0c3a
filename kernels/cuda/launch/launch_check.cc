#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {
namespace {

std::string NameOf(const std::type_info& type) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &failed),
                                                         &std::free);
  return name == nullptr ? type.name() : name.get();
}

}  // namespace

void CheckTeam(const std::type_info& functor, int team_size, int largest, int64_t shared_bytes, int64_t room) {
  if (team_size <= 0 || team_size > largest || team_size % kWarp != 0) {
    throw std::runtime_error(absl::StrCat(NameOf(functor), ": a team of ", team_size,
                                          " threads; it must be of whole warps of ", kWarp, ", and of ", largest,
                                          " threads at most"));
  }
  if (shared_bytes < 0 || shared_bytes > room) {
    throw std::runtime_error(absl::StrCat(NameOf(functor), ": a team that shares ", shared_bytes,
                                          " bytes of memory; the device has ", room, " for each"));
  }
}

}  // namespace tacc::kernels::cuda
