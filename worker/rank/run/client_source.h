#ifndef TACC_WORKER_RANK_RUN_CLIENT_SOURCE_H_
#define TACC_WORKER_RANK_RUN_CLIENT_SOURCE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"
#include "worker/rank/run/load_states.h"
#include "worker/rank/run/rank_parts.h"
#include "worker/rank/run/step_source.h"
#include "worker/rank/session/client_inputs.h"
#include "worker/rank/session/client_link.h"

namespace tacc::worker {

// The steps that a client asks for, with what else it asks: evaluations, checkpoints, the end. Every command comes to
// all ranks, and is carried out by all of them or by none.
class ClientSource : public StepSource {
 public:
  // Opens parts->client_link. `parts`, but for its source, must outlive the object. Errors: as ClientInputs, and
  // ClientLink::Open.
  static absl::StatusOr<std::unique_ptr<ClientSource>> Open(RankParts* parts, const StartPoint& begin);

  absl::StatusOr<Work> Next(int64_t num_launched, bool may_wait) override;
  absl::Status Launch() override;
  absl::Status Serve(int64_t step, const std::function<absl::Status()>& save) override;
  void End() override;
  void Finished(int64_t step) override;
  // There may be evaluations after the last step, until the client closes.
  bool HasBegunStep() const override { return num_micro_batches_ > 0; }
  bool IsLast(int64_t) const override { return false; }
  std::vector<int64_t> Lengths() const override;
  std::string GiveUpReason() const override;

 private:
  // The program for micro-batches of one length, the executor's of the same number.
  struct Bucket {
    std::vector<ClientInput> inputs;
    std::vector<ClientOutput> outputs;
    std::vector<std::pair<size_t, graph::Range>> sample_inputs;  // Where the rank's samples go, and which they are.
  };
  // What a step and an evaluation of so many micro-batches read.
  struct Batch {
    std::vector<std::vector<int64_t>> samples;
    int64_t step = 0;                              // The input.
    std::vector<std::vector<const void*>> inputs;  // [micro-batch][Executor's input]
  };

  ClientSource(RankParts* parts, int64_t step);
  nlohmann::json Welcome(std::string* bytes);
  // Why the command cannot be carried out after so many updates; empty: it can. The same on all ranks.
  std::string Refusal(const ClientCommand& command, int64_t num_launched) const;
  absl::Status OpenBucket(size_t index);
  const graph::Program& ProgramOf(size_t bucket) const;
  // Whether all micro-batches of the step with this command have one length.
  bool HasOneLength(const ClientCommand& command) const;
  // The batch of a command whose first micro-batch is the `first` of its step; `update`: of its update.
  Batch& BatchOf(const ClientCommand& command, int64_t first, const UpdateOptions& update = {});
  // `bytes`: outputs that are asked for, as the answer describes them.
  absl::Status Forward(const ClientCommand& command, nlohmann::json& answer, std::string& bytes);
  absl::Status RunMicroBatches(const ClientCommand& command, nlohmann::json& answer);
  // The step under way has not been.
  void Discard();
  // The micro-batches that the command finds in the step under way: none where another client sent them, which has
  // gone.
  int64_t NumUnderWay(const ClientCommand& command) const;
  // Discards them, now that all ranks carry the command out.
  void LeaveOthersStep(const ClientCommand& command);
  absl::Status Read(const ClientCommand& command, nlohmann::json& answer, std::string& bytes);
  absl::Status Load(const ClientCommand& command, nlohmann::json& answer);
  absl::Status Save(int64_t step, const std::function<absl::Status()>& save, nlohmann::json& answer);
  // The sum of a counter of this micro-batch, over the ranks.
  absl::StatusOr<std::vector<double>> Counters();
  void TakeState(const ClientCommand& command);

  RankParts& parts_;
  const bool in_ring_;  // Its tokens lie in another order than the client's.
  std::vector<Bucket> buckets_;
  std::map<size_t, std::variant<float, double>> update_inputs_;  // Those of the update, by their index.
  int64_t micro_batch_ = 0;                                      // Samples of one, over all ranks.
  int64_t step_ = 0;                                             // Updates launched.
  Batch batch_;
  std::shared_ptr<const ClientCommand> next_;
  std::string refusal_;                                     // Of next_.
  std::deque<std::shared_ptr<const ClientCommand>> steps_;  // Launched, and not finished.
  // Of the step under way, by parts.
  int64_t num_micro_batches_ = 0;
  std::string step_client_;      // Whose it is.
  std::vector<size_t> of_step_;  // Buckets of the micro-batches of the step that was launched last, or is under way.
  std::vector<double> counters_;
  std::shared_ptr<const ClientCommand> last_micro_batch_;  // Its memory is that of the update's inputs.

  absl::Mutex mutex_;
  int64_t welcome_step_ ABSL_GUARDED_BY(mutex_) = 0;  // Updates done.
  std::string state_ ABSL_GUARDED_BY(mutex_);         // The client's, of that step.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_CLIENT_SOURCE_H_
