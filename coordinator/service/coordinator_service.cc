#include "coordinator/service/coordinator_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
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
#include "identity/access.h"
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

v1::Job FullView(const JobState& job, const std::string& clear_address, Store& store) {
  v1::Job view = ViewJob(job, clear_address);
  auto cursor = store.LastCursor(job.id);
  if (cursor.ok()) view.set_cursor(*cursor);
  return view;
}

// Whose jobs the caller sees and changes. By then its role may make the call. Unauthenticated: its certificate or token
// has expired since.
absl::StatusOr<JobScope> ScopeOf(const grpc::CallbackServerContext& context) {
  const absl::StatusOr<std::optional<identity::Principal>> peer = identity::PeerOf(context);
  if (!peer.ok()) return peer.status();
  if (!peer->has_value()) return JobScope{.all = true};
  return JobScope{(*peer)->role != identity::Role::kUser, (*peer)->project};
}

// Whose streams are counted together. Without TLS nobody is known.
std::string CallerOf(const grpc::CallbackServerContext& context) {
  const absl::StatusOr<std::optional<identity::Principal>> peer = identity::PeerOf(context);
  return peer.ok() && peer->has_value() ? identity::Describe(**peer) : "";
}

// Answers with the job of that id or name.
template <typename Response>
void AnswerWithJob(Loop* loop, grpc::ServerUnaryReactor* reactor, const std::string& name, const JobScope& scope,
                   const std::string& clear_address, Response* response) {
  loop->Read([reactor, name, scope, clear_address, response](const Loop::View& view) {
    const JobState* job = view.core.Find(name, scope);
    if (job == nullptr) return reactor->Finish(NoJob(name));
    *response->mutable_job() = FullView(*job, clear_address, view.store);
    reactor->Finish(grpc::Status::OK);
  });
}

// Of a job, or of what is asked about one: it stays in memory until its turn comes.
absl::Status CheckSize(const google::protobuf::Message& job) {
  const size_t num_bytes = job.ByteSizeLong();
  if (num_bytes <= kMaxSpecBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the job has ", num_bytes, " bytes, at most ", kMaxSpecBytes));
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
  if (const absl::Status status = CheckSize(request->spec()); !status.ok()) return Finished(context, ToGrpc(status));
  if (const absl::Status status = uploads_->Check(request->spec()); !status.ok())
    return Finished(context, ToGrpc(status));
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  SubmitJob submit;
  submit.request_id = request->request_id().empty() ? RandomRequestId() : request->request_id();
  submit.spec = request->spec();
  submit.scope = *scope;
  loop_->Ask(std::move(submit), [this, reactor, scope = *scope, response](const Reply& reply) {
    if (!reply.status.ok()) return reactor->Finish(ToGrpc(reply.status));
    response->set_existed(reply.existed);
    AnswerWithJob(loop_, reactor, reply.job, scope, options_.clear_address, response);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                                   v1::GetResponse* response) {
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  AnswerWithJob(loop_, reactor, request->job(), *scope, options_.clear_address, response);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::List(grpc::CallbackServerContext* context,
                                                    const v1::ListRequest* request, v1::ListResponse* response) {
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read(
      [reactor, request, scope = *scope, response, &clear_address = options_.clear_address](const Loop::View& view) {
        const std::set<int> phases(request->phases().begin(), request->phases().end());
        std::vector<const JobState*> jobs;
        for (const auto& [id, job] : view.core.jobs()) {
          if (scope.Has(job.project) && (phases.empty() || phases.count(job.Phase()) != 0)) jobs.push_back(&job);
        }
        std::sort(jobs.begin(), jobs.end(), [](const auto* a, const auto* b) { return a->number > b->number; });
        const size_t limit = request->limit() > 0 ? std::min(request->limit(), kDefaultListLimit) : kDefaultListLimit;
        if (jobs.size() > limit) jobs.resize(limit);
        for (const JobState* job : jobs) *response->add_jobs() = ViewJob(*job, clear_address);
        reactor->Finish(grpc::Status::OK);
      });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::Cancel(grpc::CallbackServerContext* context,
                                                      const v1::CancelRequest* request, v1::CancelResponse* response) {
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  CancelJob cancel;
  cancel.job = request->job();
  cancel.mode = request->mode();
  cancel.scope = *scope;
  loop_->Ask(std::move(cancel), [this, reactor, scope = *scope, response](const Reply& reply) {
    if (!reply.status.ok()) return reactor->Finish(ToGrpc(reply.status));
    AnswerWithJob(loop_, reactor, reply.job, scope, options_.clear_address, response);
  });
  return reactor;
}

grpc::ServerWriteReactor<v1::WatchResponse>* CoordinatorHandlers::Watch(grpc::CallbackServerContext* context,
                                                                        const v1::WatchRequest* request) {
  const absl::StatusOr<JobScope> admitted = ScopeOf(*context);
  const JobScope scope = admitted.value_or(JobScope{});
  Store::Selection selection;
  selection.after = request->cursor();
  if (request->no_events()) selection.kinds = Store::Selection::Kinds::kMetrics;
  if (request->no_metrics()) selection.kinds = Store::Selection::Kinds::kEvents;
  auto state = std::make_shared<Store::Selection>(selection);
  auto read = [state, scope, no_follow = request->no_follow()](const Loop::View& view) {
    StreamPage<v1::WatchResponse> page;
    const JobState* job = view.core.Find(state->job, scope);
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
  const absl::StatusOr<std::shared_ptr<void>> ticket = streams_.Open(CallerOf(*context));
  auto stream = PageStream<v1::WatchResponse>::Make(loop_, read, ticket.ok() ? *ticket : nullptr);
  if (!admitted.ok() || !ticket.ok()) {
    stream->Fail(ToGrpc(admitted.ok() ? ticket.status() : admitted.status()));
  } else if (request->no_events() && request->no_metrics()) {
    stream->Fail(
        grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no_events and no_metrics: nothing is left to watch"));
  } else {
    loop_->Read([stream, state, scope, name = request->job()](const Loop::View& view) {
      const JobState* job = view.core.Find(name, scope);
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
    int tail = 0;                   // Only so many lines of what is there; 0: all.
    std::deque<v1::LogLine> lines;  // To send; of `tail` the last ones so far.
    int rank = -1;
    bool follow = false;
  };
  const absl::StatusOr<JobScope> admitted = ScopeOf(*context);
  const JobScope scope = admitted.value_or(JobScope{});
  auto state = std::make_shared<State>();
  state->tail = std::max(0, request->tail());
  state->rank = request->has_rank() ? request->rank() : -1;
  state->follow = request->follow();
  state->position = std::max<int64_t>(0, request->cursor());
  auto read = [state, scope](const Loop::View& view) {
    StreamPage<v1::LogsResponse> page;
    auto part = view.logs.Read(state->job, state->position);
    if (!part.ok()) {
      page.status = part.status();
      return page;
    }
    const bool end = part->next == state->position;
    state->position = part->next;
    for (v1::LogLine& line : part->lines) {
      if (state->rank >= 0 && line.rank() != state->rank) continue;
      state->lines.push_back(std::move(line));
      if (state->tail > 0 && static_cast<int>(state->lines.size()) > state->tail) state->lines.pop_front();
    }
    // The last lines are known only at the end.
    page.goes_on = !end;
    if (state->tail > 0 && !end) return page;
    state->tail = 0;
    if (!state->lines.empty()) {
      v1::LogsResponse response;
      for (v1::LogLine& line : state->lines) *response.add_lines() = std::move(line);
      state->lines.clear();
      response.set_cursor(state->position);
      page.responses.push_back(std::move(response));
    } else if (end) {
      const JobState* job = view.core.Find(state->job, scope);
      page.complete = !state->follow || job == nullptr || job->ended.has_value();
    }
    return page;
  };
  const absl::StatusOr<std::shared_ptr<void>> ticket = streams_.Open(CallerOf(*context));
  auto stream = PageStream<v1::LogsResponse>::Make(loop_, read, ticket.ok() ? *ticket : nullptr);
  if (!admitted.ok() || !ticket.ok()) {
    stream->Fail(ToGrpc(admitted.ok() ? ticket.status() : admitted.status()));
  } else {
    loop_->Read([stream, state, scope, name = request->job()](const Loop::View& view) {
      const JobState* job = view.core.Find(name, scope);
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
  if (const absl::Status status = CheckSize(*request); !status.ok()) return Finished(context, ToGrpc(status));
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
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read([reactor, scope = *scope, response](const Loop::View& view) {
    for (const auto& [name, worker] : view.core.members().workers()) {
      v1::WorkerView& shown = *response->add_workers();
      shown = ViewWorker(worker, view.core.AwakeSeconds(view.now));
      const auto job = view.core.jobs().find(shown.job());
      if (!scope.all && (job == view.core.jobs().end() || !scope.Has(job->second.project))) shown.clear_job();
    }
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorHandlers::GetEndpoints(grpc::CallbackServerContext* context,
                                                            const v1::GetEndpointsRequest* request,
                                                            v1::GetEndpointsResponse* response) {
  const absl::StatusOr<JobScope> scope = ScopeOf(*context);
  if (!scope.ok()) return Finished(context, ToGrpc(scope.status()));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Read([reactor, scope = *scope, name = request->job(), response](const Loop::View& view) {
    const JobState* job = view.core.Find(name, scope);
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
