// Answers what the coordinator asks about jobs' files, on a thread of its own, confined as ranks are.
#ifndef TACC_WORKER_DAEMON_ANSWERS_PATH_ANSWERS_H_
#define TACC_WORKER_DAEMON_ANSWERS_PATH_ANSWERS_H_

#include <functional>
#include <string>

#include "confinement/confine.h"
#include "spdlog/logger.h"
#include "tacc/v1/worker.pb.h"
#include "worker/daemon/answers/path_thread.h"
#include "worker/daemon/answers/upload_cache.h"
#include "worker/daemon/answers/writer_watch.h"

namespace tacc::worker {

class PathAnswers {
 public:
  // All are borrowed and must outlive it.
  PathAnswers(const Confinement* confinement, const std::string* coordinator, UploadCache* uploads,
              spdlog::logger* logger)
      : confinement_(*confinement), coordinator_(*coordinator), uploads_(uploads), logger_(logger) {}

  // A question: `answer` is called on the thread, unless `is_wanted`, which is asked there before, says no. A message
  // that asks for no answer is done. Others are ignored.
  void Take(const v1::AttachResponse& message, std::function<bool()> is_wanted,
            std::function<void(v1::AttachRequest)> answer);
  bool IsIdle() { return thread_.IsIdle(); }

 private:
  using Question = std::function<v1::AttachRequest()>;
  void Run(std::function<void()> work);
  // Null: it is none.
  Question QuestionOf(const v1::AttachResponse& message);

  const Confinement& confinement_;
  const std::string& coordinator_;
  UploadCache* const uploads_;
  spdlog::logger* const logger_;
  WriterWatch writers_;  // Of the thread.
  PathThread thread_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_PATH_ANSWERS_H_
