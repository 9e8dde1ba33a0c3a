#include "coordinator/service/coordinator_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/view.h"
#include "coordinator/service/grpc_status.h"
#include "coordinator/service/page_stream.h"
#include "jobfile/job_file.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::coordinator {
namespace {

constexpr size_t kMaxSpecBytes = 1 << 20;
constexpr size_t kMaxJobNameBytes = 128;
constexpr int kDefaultListLimit = 1000;
constexpr int kMaxProblems = 100;

grpc::Status NoJob(const std::string& job) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no job ", job.substr(0, kMaxJobNameBytes)));
}

v1::Job FullView(const JobState& job, Store& store) {
  v1::Job view = ViewJob(job);
  auto cursor = store.LastCursor(job.id);
  if (cursor.ok()) view.set_cursor(*cursor);
  return view;
}

// Answers with the job of that id or name.
template <typename Response>
void AnswerWithJob(Loop* loop, grpc::ServerUnaryReactor* reactor, const std::string& name, Response* response) {
  loop->Read([reactor, name, response](const Loop::View& view) {
    const JobState* job = view.core.Find(name);
    if (job == nullptr) return reactor->Finish(NoJob(name));
    *response->mutable_job() = FullView(*job, view.store);
    reactor->Finish(grpc::Status::OK);
  });
}

std::string RandomRequestId() {
  std::random_device random;
  const uint64_t high = (uint64_t{random()} << 32) | random();
  const uint64_t low = (uint64_t{random()} << 32) | random();
  return absl::StrFormat("%016x%016x", high, low);
}

grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context, const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

// Lives until gRPC is done with the call. A client that has gone away, or waits no longer, wants no plan.
class PlanReactor : public grpc::ServerUnaryReactor {
 public:
  const std::shared_ptr<std::atomic<bool>>& cancel() const { return cancel_; }

 private:
  void OnCancel() override { *cancel_ = true; }
  void OnDone() override { delete this; }

  const std::shared_ptr<std::atomic<bool>> cancel_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace

grpc::ServerUnaryReactor* CoordinatorHandlers::Submit(grpc::CallbackServerContext* context,
                                                      const v1::SubmitRequest* request, v1::SubmitResponse* response) {
  if (request->spec().ByteSizeLong() > kMaxSpecBytes) {
    return Finished(context, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                          absl::StrCat("the job has ", request->spec().ByteSizeLong(),
                                                       " bytes, at most ", kMaxSpecBytes)));
  }
  if (const absl::Status status = uploads_->Check(request->spec()); !status.ok())
    return Finished(context, ToGrpc(status));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  SubmitJob submit;
  submit.request_id = request->request_id().empty() ? RandomRequestId() : request->request_id();
  submit.spec = request->spec();
  loop_->Ask(std::move(submit), [this, reactor, response](const Reply& reply) {
    if (!reply.status.ok()) return reactor->Finish(ToGrpc(reply.status));
    response->set_existed(reply.existed);
    AnswerWithJob(loop_, reactor, reply.job, response);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                                   v1::GetResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  AnswerWithJob(loop_, reactor, request->job(), response);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::List(grpc::CallbackServerContext* context,
                                                    const v1::ListRequest* request, v1::ListResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read([reactor, request, response](const Loop::View& view) {
    const std::set<int> phases(request->phases().begin(), request->phases().end());
    std::vector<const JobState*> jobs;
    for (const auto& [id, job] : view.core.jobs()) {
      if (phases.empty() || phases.count(job.Phase()) != 0) jobs.push_back(&job);
    }
    std::sort(jobs.begin(), jobs.end(), [](const auto* a, const auto* b) { return a->number > b->number; });
    const size_t limit = request->limit() > 0 ? std::min(request->limit(), kDefaultListLimit) : kDefaultListLimit;
    if (jobs.size() > limit) jobs.resize(limit);
    for (const JobState* job : jobs) *response->add_jobs() = ViewJob(*job);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Cancel(grpc::CallbackServerContext* context,
                                                      const v1::CancelRequest* request, v1::CancelResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  CancelJob cancel;
  cancel.job = request->job();
  cancel.mode = request->mode();
  loop_->Ask(std::move(cancel), [this, reactor, response](const Reply& reply) {
    if (!reply.status.ok()) return reactor->Finish(ToGrpc(reply.status));
    AnswerWithJob(loop_, reactor, reply.job, response);
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchResponse>* CoordinatorHandlers::Watch(grpc::CallbackServerContext* context,
                                                                        const v1::WatchRequest* request) {
  Store::Selection selection;
  selection.after = request->cursor();
  if (request->no_events()) selection.kinds = Store::Selection::Kinds::kMetrics;
  if (request->no_metrics()) selection.kinds = Store::Selection::Kinds::kEvents;
  auto state = std::make_shared<Store::Selection>(selection);
  auto read = [state, no_follow = request->no_follow()](const Loop::View& view) {
    StreamPage<v1::WatchResponse> page;
    const JobState* job = view.core.Find(state->job);
    auto records = view.store.Read(*state);
    if (!records.ok()) {
      page.status = records.status();
      return page;
    }
    for (v1::WatchResponse& record : *records) {
      state->after = record.cursor();
      page.responses.push_back(std::move(record));
    }
    page.complete = page.responses.empty() && (no_follow || job == nullptr || job->ended.has_value());
    return page;
  };
  auto stream = PageStream<v1::WatchResponse>::Make(loop_, read, &num_streams_);
  if (num_streams_ > options_.max_streams) {
    stream->Fail(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many open streams"));
  } else if (request->no_events() && request->no_metrics()) {
    stream->Fail(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no_events and no_metrics: nothing is left to watch"));
  } else {
    loop_->Read([stream, state, name = request->job()](const Loop::View& view) {
      const JobState* job = view.core.Find(name);
      if (job == nullptr) return stream->Fail(NoJob(name));
      state->job = job->id;
      stream->Begin(job->id);
    });
  }
  return stream.get();
}

grpc::ServerWriteReactor<v1::LogsResponse>* CoordinatorHandlers::Logs(grpc::CallbackServerContext* context,
                                                                      const v1::LogsRequest* request) {
  struct State {
    std::string job;
    int64_t position = 0;
    int tail = 0;
    int rank = -1;
    bool follow = false;
  };
  auto state = std::make_shared<State>();
  state->tail = std::max(0, request->tail());
  state->rank = request->has_rank() ? request->rank() : -1;
  state->follow = request->follow();
  state->position = std::max<int64_t>(0, request->cursor());
  auto read = [state](const Loop::View& view) {
    StreamPage<v1::LogsResponse> page;
    std::deque<v1::LogLine> lines;
    const bool all = state->tail > 0;  // The last lines are known only at the end.
    while (true) {
      auto part = view.logs.Read(state->job, state->position);
      if (!part.ok()) {
        page.status = part.status();
        return page;
      }
      const bool end = part->next == state->position;
      state->position = part->next;
      for (v1::LogLine& line : part->lines) {
        if (state->rank >= 0 && line.rank() != state->rank) continue;
        lines.push_back(std::move(line));
        if (all && static_cast<int>(lines.size()) > state->tail) lines.pop_front();
      }
      if (end || (!all && !lines.empty())) break;
    }
    state->tail = 0;
    if (!lines.empty()) {
      v1::LogsResponse response;
      for (v1::LogLine& line : lines) *response.add_lines() = std::move(line);
      response.set_cursor(state->position);
      page.responses.push_back(std::move(response));
    } else {
      const JobState* job = view.core.Find(state->job);
      page.complete = !state->follow || job == nullptr || job->ended.has_value();
    }
    return page;
  };
  auto stream = PageStream<v1::LogsResponse>::Make(loop_, read, &num_streams_);
  if (num_streams_ > options_.max_streams) {
    stream->Fail(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many open streams"));
  } else {
    loop_->Read([stream, state, name = request->job()](const Loop::View& view) {
      const JobState* job = view.core.Find(name);
      if (job == nullptr) return stream->Fail(NoJob(name));
      state->job = job->id;
      stream->Begin(job->id);
    });
  }
  return stream.get();
}

grpc::ServerUnaryReactor* CoordinatorHandlers::ReadJob(grpc::CallbackServerContext* context,
                                                       const v1::ReadJobRequest* request,
                                                       v1::ReadJobResponse* response) {
  if (request->directory().empty() || request->directory()[0] != '/') {
    return Finished(context, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                                          "directory: give an absolute path, from which relative ones are taken"));
  }
  jobfile::JobFile file = jobfile::ReadJob(request->text(), request->directory());
  if (file.problems.empty()) *response->mutable_spec() = std::move(file.spec);
  for (const jobfile::Diagnostic& diagnostic : file.problems) {
    if (response->problems_size() == kMaxProblems) {
      response->add_problems()->set_message(absl::StrCat("and ", file.problems.size() - kMaxProblems, " more"));
      break;
    }
    v1::JobProblem* problem = response->add_problems();
    problem->set_field(diagnostic.field);
    problem->set_message(diagnostic.message);
    problem->set_line(diagnostic.place.line);
    problem->set_column(diagnostic.place.column);
  }
  return Finished(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Plan(grpc::CallbackServerContext* context,
                                                    const v1::PlanRequest* request, v1::PlanResponse* response) {
  std::string wrong;
  for (const JobDiagnostic& diagnostic : ValidateJobSpec(request->spec())) {
    absl::StrAppend(&wrong, wrong.empty() ? "" : "\n", diagnostic.message);
  }
  if (!wrong.empty()) return Finished(context, grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, wrong));
  auto* reactor = new PlanReactor;
  const auto answer = [reactor, response](absl::StatusOr<Compiler::Plans> planned) {
    if (!planned.ok()) return reactor->Finish(ToGrpc(planned.status()));
    response->set_candidates_json(std::move(planned->candidates));
    response->set_request_json(std::move(planned->request));
    reactor->Finish(grpc::Status::OK);
  };
  if (!request->cluster_json().empty()) {
    compiler_->Plan(request->spec(), {.cluster = request->cluster_json()}, reactor->cancel(), answer);
    return reactor;
  }
  loop_->Read([this, answer, reactor, request](const Loop::View& view) {
    const int world = RequestedWorld(request->spec());
    const auto device = DeviceToCompileFor(view.core.members(), world);
    if (!device.has_value()) {
      return reactor->Finish(grpc::Status(
          grpc::StatusCode::FAILED_PRECONDITION,
          absl::StrCat("a plan is for the devices of the job's workers: it ", NeedsWorkers(view.core.members(), world),
                       "; start more, or plan without them: --local, --cluster or --gpus")));
    }
    compiler_->Plan(request->spec(), {world, *device, ""}, reactor->cancel(), answer);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::ListWorkers(grpc::CallbackServerContext* context,
                                                           const v1::ListWorkersRequest* request,
                                                           v1::ListWorkersResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read([reactor, response](const Loop::View& view) {
    for (const auto& [name, worker] : view.core.members().workers())
      *response->add_workers() = ViewWorker(worker, view.core.AwakeSeconds(view.now));
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::GetEndpoints(grpc::CallbackServerContext* context,
                                                            const v1::GetEndpointsRequest* request,
                                                            v1::GetEndpointsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read([reactor, name = request->job(), response](const Loop::View& view) {
    const JobState* job = view.core.Find(name);
    if (job == nullptr) return reactor->Finish(NoJob(name));
    if (!job->spec.data().has_client()) {
      return reactor->Finish(
          grpc::Status(grpc::StatusCode::FAILED_PRECONDITION,
                       absl::StrCat(job->id, " reads its batches from ", job->spec.data().path(),
                                    "; a client drives jobs with ", "data.client in place of data.path")));
    }
    *response = ViewEndpoints(*job);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::PutFolder(grpc::CallbackServerContext* context,
                                                         const v1::PutFolderRequest* request,
                                                         v1::PutFolderResponse* response) {
  return uploads_->PutFolder(context, *request, response);
}

grpc::ServerReadReactor<v1::PutFileRequest>* CoordinatorHandlers::PutFile(grpc::CallbackServerContext* context,
                                                                          v1::PutFileResponse* response) {
  return uploads_->PutFile();
}

grpc::ServerUnaryReactor* CoordinatorHandlers::GetVersion(grpc::CallbackServerContext* context,
                                                          const v1::GetVersionRequest* request,
                                                          v1::GetVersionResponse* response) {
  response->set_version(options_.version);
  response->set_pid(getpid());
  response->set_state_dir(options_.state_dir);
  response->set_metrics_address(options_.metrics_address);
  return Finished(context, grpc::Status::OK);
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Shutdown(grpc::CallbackServerContext* context,
                                                        const v1::ShutdownRequest* request,
                                                        v1::ShutdownResponse* response) {
  grpc::ServerUnaryReactor* reactor = Finished(context, grpc::Status::OK);
  shutdown_();
  return reactor;
}

}  // namespace tacc::coordinator
