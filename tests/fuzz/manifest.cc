// A checkpoint's manifest, as it is and sealed, which a fuzzer cannot do. Written, it is read again as the same.
#include "worker/checkpoint/manifest.h"

#include "tests/fuzz/input.h"
#include "worker/checkpoint/files/sealed_json.h"

namespace tacc::worker {
namespace {

void Read(const std::string& text, ManifestSlices slices) {
  const auto manifest = ManifestFromJson(text, "input", slices);
  if (!manifest.ok()) return;
  const std::string written = ManifestToJson(*manifest);
  const auto again = ManifestFromJson(written, "written", slices);
  fuzz::Require(again.ok(), absl::StrCat("a written manifest is read: ", again.status().ToString()));
  fuzz::Require(ManifestToJson(*again) == written, "a written manifest is read as the same");
}

}  // namespace
}  // namespace tacc::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(tacc::fuzz::TextOf(data, size));
  tacc::worker::Read(text, tacc::worker::ManifestSlices::kPart);
  tacc::worker::Read(tacc::worker::SealJson(text), tacc::worker::ManifestSlices::kComplete);
  return 0;
}
