#include "worker/daemon/supervision/line_splitter.h"

#include <cstring>

#include "text/utf8.h"

namespace tacc::worker {

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
