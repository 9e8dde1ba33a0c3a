// A file of weights, by its header. Tensors of one that is taken lie in the file.
#include "worker/checkpoint/tensors/safetensors.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto header = tacc::worker::ParseSafetensors(tacc::fuzz::TextOf(data, size).data(), size, "input");
  if (!header.ok()) return 0;
  for (const auto& [name, tensor] : header->tensors) {
    tacc::fuzz::Require(8 <= tensor.begin && tensor.begin <= tensor.end && tensor.end <= static_cast<int64_t>(size),
                        "a tensor lies in its file");
  }
  return 0;
}
