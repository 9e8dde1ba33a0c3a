// The numbers that ids of jobs end with do not come back, whatever becomes of the jobs.
#ifndef TACC_COORDINATOR_STORE_JOB_NUMBER_H_
#define TACC_COORDINATOR_STORE_JOB_NUMBER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::coordinator {

// The largest number that an id has had, in a small text file, which may outlive the state directory. Of coordinators
// that have the same file one after the other, no two give the same id; those that run at the same time may.
class JobNumberFile {
 public:
  // A file that is not there counts as 0. FailedPrecondition: it cannot be read, or holds something else.
  static absl::StatusOr<std::unique_ptr<JobNumberFile>> Open(const std::string& path);

  // As it was when the file was opened.
  int64_t number() const { return number_; }

  // The file holds `number` or a larger one and is on the disk when it returns; never lowered, though another
  // coordinator has written it since. The folder is made. Unavailable: it cannot be written; the next call tries again.
  absl::Status Raise(int64_t number) const;

 private:
  JobNumberFile(std::string path, int64_t number) : path_(std::move(path)), number_(number) {}
  const std::string path_;
  const int64_t number_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_STORE_JOB_NUMBER_H_
