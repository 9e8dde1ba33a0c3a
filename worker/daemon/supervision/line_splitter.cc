#include "worker/daemon/supervision/line_splitter.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tacc::worker {
namespace {

// Returns the length of the UTF-8 sequence at `at`, 0 when there is none. Source: Unicode 15, table 3-7.
size_t SequenceLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const auto in = [](unsigned value, unsigned low, unsigned high) { return value >= low && value <= high; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (in(first, 0xc2, 0xdf)) return in(byte(1), 0x80, 0xbf) ? 2 : 0;
  if (in(first, 0xe0, 0xef)) {
    const unsigned low = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : 0xbf;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xbf) ? 3 : 0;
  }
  if (in(first, 0xf0, 0xf4)) {
    const unsigned low = first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xf4 ? 0x8f : 0xbf;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xbf) && in(byte(3), 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string ValidUtf8(const std::string& text) {
  std::string result = text;
  for (size_t at = 0; at < result.size();) {
    const size_t length = SequenceLength(result, at);
    if (length == 0) result[at] = '?';
    at += std::max<size_t>(length, 1);
  }
  return result;
}

void LineSplitter::Take(std::vector<std::string>* lines) {
  if (!partial_.empty() && partial_.back() == '\r') partial_.pop_back();
  if (!partial_.empty()) lines->push_back(ValidUtf8(partial_));
  partial_.clear();
}

std::vector<std::string> LineSplitter::Add(const char* data, size_t num_bytes) {
  std::vector<std::string> lines;
  const char* const end = data + num_bytes;
  while (data < end) {
    const char* newline = static_cast<const char*>(std::memchr(data, '\n', end - data));
    const char* stop = newline == nullptr ? end : newline;
    const size_t room = max_line_bytes_ - partial_.size();
    if (static_cast<size_t>(stop - data) > room) {
      partial_.append(data, room);
      data += room;
      Take(&lines);
      continue;
    }
    partial_.append(data, stop - data);
    data = stop;
    if (newline == nullptr) break;
    Take(&lines);
    ++data;
  }
  return lines;
}

std::vector<std::string> LineSplitter::Finish() {
  std::vector<std::string> lines;
  Take(&lines);
  return lines;
}

}  // namespace tacc::worker
