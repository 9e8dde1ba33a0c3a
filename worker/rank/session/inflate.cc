#include "worker/rank/session/inflate.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

absl::Status Inflate(absl::string_view packed, absl::Span<char> to) {
  z_stream stream = {};
  if (inflateInit(&stream) != Z_OK) return absl::ResourceExhaustedError("no memory for zlib");
  // zlib's counts have 32 bits.
  constexpr size_t kMost = std::numeric_limits<uInt>::max();
  size_t read = 0, written = 0;
  int result = Z_OK;
  char beyond = 0;  // A stream that goes on behind `to` is seen by the byte that it writes here.
  while (result == Z_OK) {
    const uInt input = static_cast<uInt>(std::min(kMost, packed.size() - read));
    const bool is_full = written == to.size();
    const uInt room = is_full ? 1 : static_cast<uInt>(std::min(kMost, to.size() - written));
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + read));
    stream.avail_in = input;
    stream.next_out = reinterpret_cast<Bytef*>(is_full ? &beyond : to.data() + written);
    stream.avail_out = room;
    result = inflate(&stream, Z_NO_FLUSH);
    read += input - stream.avail_in;
    if (is_full && stream.avail_out == 0) {
      inflateEnd(&stream);
      return absl::InvalidArgumentError(
          absl::StrCat("a compressed part holds more than the ", to.size(), " bytes that it stands for"));
    }
    if (!is_full) written += room - stream.avail_out;
  }
  inflateEnd(&stream);
  if (result != Z_STREAM_END)
    return absl::InvalidArgumentError(absl::StrCat("a compressed part is no whole zlib stream (", zError(result), ")"));
  if (written != to.size() || read != packed.size())
    return absl::InvalidArgumentError(absl::StrCat("a compressed part of ", packed.size(), " bytes holds ", written,
                                                   " in the first ", read, "; it stands for ", to.size()));
  return absl::OkStatus();
}

}  // namespace tacc::worker
