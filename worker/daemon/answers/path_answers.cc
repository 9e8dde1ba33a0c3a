#include "worker/daemon/answers/path_answers.h"

#include <utility>

#include "machine/clock.h"
#include "worker/daemon/answers/checkpoint_paths.h"

namespace tacc::worker {
namespace {

// Network file systems show a new file to other hosts after up to a few seconds.
constexpr double kPathPatienceSeconds = 5;
// A question about paths is answered by then, with an upload that is still on its way.
constexpr double kUploadPatienceSeconds = 5;

}  // namespace

PathAnswers::Question PathAnswers::QuestionOf(const v1::AttachResponse& message) {
  const AllowedPaths& paths = confinement_.paths;
  switch (message.message_case()) {
    case v1::AttachResponse::kCheckPaths:
      return [this, &paths, request = message.check_paths()] {
        // Of a job's rank, which is about to start.
        const auto upload_for = [this](const std::string& id) {
          uploads_->Fetch(id);
          return uploads_->Hold(id, kUploadPatienceSeconds);
        };
        v1::AttachRequest answer;
        *answer.mutable_check_paths_result() =
            CheckPaths(request, {kPathPatienceSeconds, coordinator_, &writers_, &SteadySeconds, upload_for, paths});
        return answer;
      };
    case v1::AttachResponse::kDeleteCheckpoints:
      return [&paths, request = message.delete_checkpoints()] {
        v1::AttachRequest answer;
        *answer.mutable_delete_checkpoints_result() = DeleteCheckpoints(request, paths);
        return answer;
      };
    case v1::AttachResponse::kWriteReport:
      return [&paths, request = message.write_report()] {
        v1::AttachRequest answer;
        *answer.mutable_write_report_result() = WriteReport(request, paths);
        return answer;
      };
    default:
      return nullptr;
  }
}

void PathAnswers::Take(const v1::AttachResponse& message, std::function<bool()> is_wanted,
                       std::function<void(v1::AttachRequest)> answer) {
  if (message.has_leave_folder())
    return Run([this, request = message.leave_folder()] { LeaveFolder(request, confinement_.paths); });
  if (Question question = QuestionOf(message); question != nullptr) {
    Run([is_wanted = std::move(is_wanted), answer = std::move(answer), question = std::move(question)] {
      if (is_wanted()) answer(question());
    });
  }
}

void PathAnswers::Run(std::function<void()> work) {
  thread_.Run([this, work = std::move(work)] {
    const absl::Status status = RunConfined(confinement_, work);
    if (!status.ok()) logger_->error("a question about paths is not answered: {}", std::string(status.message()));
  });
}

}  // namespace tacc::worker
