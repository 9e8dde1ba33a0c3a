#include "kernels/cuda/launch/stream.h"

namespace tacc::kernels::cuda {
namespace {

thread_local Stream current_stream = nullptr;

}  // namespace

Stream CurrentStream() { return current_stream; }

StreamScope::StreamScope(Stream stream) : before_(current_stream) { current_stream = stream; }

StreamScope::~StreamScope() { current_stream = before_; }

}  // namespace tacc::kernels::cuda
