// A rank's start file. Written, it is read again as the same.
#include "worker/rank/protocol/start_file.h"

#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto start = tacc::worker::ReadStartFile(tacc::fuzz::InputFile(tacc::fuzz::TextOf(data, size)).path());
  if (start.ok()) (void)tacc::protocol::WriteStartFile(*start);
  return 0;
}
