// Cuts a stream of bytes into lines of valid UTF-8.
#ifndef TACC_WORKER_DAEMON_SUPERVISION_LINE_SPLITTER_H_
#define TACC_WORKER_DAEMON_SUPERVISION_LINE_SPLITTER_H_

#include <cstddef>
#include <string>
#include <vector>

namespace tacc::worker {

// Not thread-safe.
class LineSplitter {
 public:
  // Lines longer than `max_line_bytes` are cut into several.
  explicit LineSplitter(size_t max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  // Returns the lines that `num_bytes` more bytes complete, without their newlines (\n, \r\n); empty lines are left
  // out. They are ValidUtf8 (text/utf8.h).
  std::vector<std::string> Add(const char* data, size_t num_bytes);

  // Returns the rest after the last newline, at the end of the stream.
  std::vector<std::string> Finish();

  // What has come of the next line, which may be no UTF-8.
  const std::string& partial() const { return partial_; }

 private:
  void Take(std::vector<std::string>* lines);
  size_t max_line_bytes_;
  std::string partial_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_SUPERVISION_LINE_SPLITTER_H_
