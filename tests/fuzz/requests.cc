// Requests of clients and messages of workers to the coordinator's core, one behind the other. The input is messages,
// each a byte for its kind, two for its length (little-endian), and so many bytes of the message. What the core has
// logged at the end, another core can replay.
#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <variant>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/view.h"
#include "jobfile/job_file.h"
#include "proto/tacc/v1/validate_job.h"
#include "tests/fuzz/input.h"

namespace tacc::coordinator {
namespace {

// In the order of their bytes.
enum class Kind {
  kSubmit,
  kPlan,
  kReadJob,
  kCancel,
  kCompiled,
  kAttach,
  kWorker,
  kDetach,
  kTick,
  kGet,
  kList,
  kGetEndpoints,
};
constexpr int kNumKinds = 12;

std::string Describe(const JobState&, int, int, int) { return "all_gather"; }

template <typename Message>
std::optional<Message> Parse(absl::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  return message;
}

class Coordinator {
 public:
  Coordinator() : core_({.version = "0.1.0"}, Describe) { core_.Resume(now_); }

  void Take(Kind kind, absl::string_view bytes) {
    switch (kind) {
      case Kind::kSubmit:
        if (auto request = Parse<v1::SubmitRequest>(bytes)) {
          const std::string id = request->request_id().empty() ? "r" : request->request_id();
          Handle(SubmitJob{
              .tag = 1, .request_id = id, .spec = std::move(*request->mutable_spec()), .scope = administrator_});
        }
        return;
      case Kind::kPlan:
        if (auto request = Parse<v1::PlanRequest>(bytes)) {
          (void)ValidateJobSpec(request->spec());
          (void)RequestedWorld(request->spec());
          (void)WithDefaults(request->spec());
        }
        return;
      case Kind::kReadJob:
        if (auto request = Parse<v1::ReadJobRequest>(bytes))
          (void)jobfile::ReadJob(request->text(), request->directory());
        return;
      case Kind::kCancel:
        if (auto request = Parse<v1::CancelRequest>(bytes))
          Handle(CancelJob{.tag = 2, .job = request->job(), .mode = request->mode(), .scope = administrator_});
        return;
      case Kind::kCompiled:
        for (const std::string& id : Jobs()) Handle(Compiled(core_.jobs().at(id)));
        return;
      case Kind::kAttach:
        if (auto registration = Parse<v1::Register>(bytes))
          Handle(WorkerAttached{++session_, std::move(*registration)});
        return;
      case Kind::kWorker:
        if (auto message = Parse<v1::AttachRequest>(bytes)) Handle(WorkerMessage{session_, std::move(*message)});
        return;
      case Kind::kDetach:
        Handle(WorkerDetached{session_});
        return;
      case Kind::kTick:
        now_.steady += 1;
        now_.wall += 1;
        Handle(Tick{});
        return;
      case Kind::kGet:
        if (auto request = Parse<v1::GetRequest>(bytes)) {
          if (const JobState* job = core_.Find(request->job(), user_); job != nullptr) (void)ViewJob(*job, "");
        }
        return;
      case Kind::kList:
        if (auto request = Parse<v1::ListRequest>(bytes)) View(*request);
        return;
      case Kind::kGetEndpoints:
        if (auto request = Parse<v1::GetEndpointsRequest>(bytes)) {
          if (const JobState* job = core_.Find(request->job(), administrator_); job != nullptr)
            (void)ViewEndpoints(*job);
        }
        return;
    }
  }

  // All that it shows.
  void View(const v1::ListRequest& request) const {
    const std::set<int> phases(request.phases().begin(), request.phases().end());
    for (const auto& [id, job] : core_.jobs()) {
      if (phases.empty() || phases.count(job.Phase()) != 0) (void)ViewJob(job, /*clear_address=*/"10.0.0.1:7070");
    }
    for (const auto& [name, worker] : core_.members().workers()) (void)ViewWorker(worker, core_.AwakeSeconds(now_));
  }

  void Replay() const {
    Core restarted({.version = "0.1.0"}, Describe);
    for (const v1::Fact& fact : facts_) {
      const absl::Status status = restarted.Replay(fact);
      fuzz::Require(status.ok(), absl::StrCat("what was logged can be replayed: ", status.ToString()));
    }
    restarted.Resume(now_);
  }

 private:
  std::vector<std::string> Jobs() const {
    std::vector<std::string> ids;
    for (const auto& [id, job] : core_.jobs()) ids.push_back(id);
    return ids;
  }

  // As tacc-plan does.
  static CompileDone Compiled(const JobState& job) {
    const int world = std::max(1, job.World());
    return {.job = job.id,
            .summary = absl::StrCat(R"({"mesh":{"dp":)", world, R"(},"axes":["dp"],"precision":"f32","world":)", world,
                                    R"(,"max_steps":100,"memory":{"total_bytes":1000}})"),
            .data = "{}",
            .identity = R"({"model":"m","seq_len":64})"};
  }

  void Handle(const Input& input) {
    for (const Decision& decision : core_.Handle(now_, input)) {
      if (const auto* log = std::get_if<LogFact>(&decision)) {
        v1::Fact& fact = facts_.emplace_back();
        fuzz::Require(fact.ParseFromString(log->fact.SerializeAsString()), "a fact can be stored");
      } else if (const auto* forget = std::get_if<ForgetJob>(&decision)) {
        std::erase_if(facts_, [&](const v1::Fact& fact) { return fact.job() == forget->job; });
      } else if (const auto* reply = std::get_if<Reply>(&decision)) {
        fuzz::Require(!absl::IsPermissionDenied(reply->status), "an administrator may do all");
      }
    }
  }

  const JobScope administrator_{.all = true};
  const JobScope user_{.project = "vision"};
  Time now_{100, 1000};
  uint64_t session_ = 0;
  std::vector<v1::Fact> facts_;
  Core core_;
};

}  // namespace
}  // namespace tacc::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 3;
  // Protobuf says what is wrong with strings on stderr.
  static const google::protobuf::LogSilencer silence;
  absl::string_view input = tacc::fuzz::TextOf(data, size);
  tacc::coordinator::Coordinator coordinator;
  while (input.size() >= kHeadBytes) {
    const auto byte = [&input](size_t i) { return static_cast<unsigned char>(input[i]); };
    const auto kind = static_cast<tacc::coordinator::Kind>(byte(0) % tacc::coordinator::kNumKinds);
    const size_t length = byte(1) | byte(2) << 8;
    coordinator.Take(kind, input.substr(kHeadBytes, length));
    input.remove_prefix(std::min(kHeadBytes + length, input.size()));
  }
  coordinator.View({});
  coordinator.Replay();
  return 0;
}
