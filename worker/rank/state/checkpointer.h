#ifndef TACC_WORKER_RANK_STATE_CHECKPOINTER_H_
#define TACC_WORKER_RANK_STATE_CHECKPOINTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "failpoint/failpoint.h"
#include "graph/ir/program.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/reader.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/protocol/events.h"
#include "worker/rank/protocol/folder_claim.h"
#include "worker/rank/protocol/start_file.h"
#include "worker/rank/state/states.h"

namespace tacc::worker {

// Writes the checkpoints of one attempt: the states are copied at a step boundary, and a thread writes the copy while
// training goes on. One checkpoint is under way at most. All ranks call each method at the same steps.
//
// Every rank writes its shard; when all have, rank 0 commits (manifest, rename). The ranks agree on how far it is where
// they talk anyway: at each step boundary each tells the others its progress() and hands all answers to Advance, so the
// threads that write send nothing themselves.
//
// A failure on any rank leaves no checkpoint and is a warning event, not an error: training can go on, and
// last_saved_step stays. So is a checkpoint.dir that a daemon has claimed and that is not to be seen any more: no
// checkpoint goes to the bare folder under a mount point.
class Checkpointer {
 public:
  // All must outlive the object. `spare_bytes`: memory that a copy of the states may take. `claim`: rank 0's, which is
  // asked before a checkpoint counts; null: nobody has claimed checkpoint.dir.
  Checkpointer(const StartFile* start, const graph::Program* program, Device* device, const RankStates* states,
               Collectives* collectives, EventWriter* events, Failpoints* failpoints, int64_t spare_bytes,
               FolderClaim* claim)
      : start_(*start),
        program_(*program),
        device_(*device),
        states_(*states),
        collectives_(*collectives),
        events_(*events),
        failpoints_(failpoints),
        spare_bytes_(spare_bytes),
        claim_(claim) {}
  ~Checkpointer() { JoinThread(); }

  // Starts a checkpoint of the states as they are after `step` updates; nothing when there is one of them or it is
  // under way. Waits for an older one. The copy takes as much memory as this rank's shard, from the first checkpoint
  // on; where that is more than `spare_bytes`, this rank's shard is written before Start returns, and a log event says
  // so once. Takes the place of one that is held; the same one is held no more. Unavailable: another rank does not
  // answer.
  absl::Status Start(int64_t step);

  // The checkpoint that was just started is not committed before Judge, at the latest Wait. Nothing when there is none
  // under way.
  void Hold() { is_held_ = stage_ == Stage::kWriting; }
  // Ends that: one that is not good goes.
  void Judge(bool is_good) {
    is_rejected_ = is_rejected_ || (is_held_ && !is_good);
    is_held_ = false;
  }

  // The same as Start, without a copy, and returns when it is committed or has failed: for states after which nothing
  // follows. One that is held is committed before.
  absl::Status Save(int64_t step);

  // What the client that sends the batches needs to go on from here; kept with the checkpoints that begin from now on.
  void SetClientState(std::string state) { client_state_ = std::move(state); }

  // Returns when no checkpoint is under way; one that is held is committed.
  absl::Status Wait();
  // Waits for what this rank's thread writes.
  void JoinThread();

  // How this rank's part of the checkpoint under way stands; kDone also when there is none.
  enum class Progress : uint64_t { kBusy, kDone, kFailed };
  Progress progress() const { return progress_.load(); }
  // Takes the progress() of all ranks, by rank, as they were at one step boundary.
  void Advance(absl::Span<const Progress> ranks);

  // The step of the newest checkpoint of this attempt, -1 when there is none.
  int64_t last_saved_step() const { return last_saved_step_; }
  // Its path.
  const std::string& last_saved_path() const { return last_saved_path_; }
  // Why this rank's part of the last checkpoint failed, once none is under way; OK where it did not.
  const absl::Status& last_error() const { return last_error_; }

 private:
  enum class Stage { kIdle, kWriting, kEnding };

  CheckpointId id() const { return {step_, start_.attempt}; }
  absl::Status Begin(int64_t step);
  // False when there is no room for it.
  bool MakeSnapshotMemory();
  // The parts of the work; each reports its failure and sets progress_.
  void Write();
  void End();
  void Run(void (Checkpointer::*part)());
  absl::Status Commit();

  const StartFile& start_;
  const graph::Program& program_;
  Device& device_;
  const RankStates& states_;
  Collectives& collectives_;
  EventWriter& events_;
  Failpoints* failpoints_;
  const int64_t spare_bytes_;
  FolderClaim* const claim_;

  bool is_clean_ = false;  // What killed attempts left has been removed.
  bool has_told_no_room_ = false;
  std::unique_ptr<Arena> snapshot_memory_;

  Stage stage_ = Stage::kIdle;
  int64_t step_ = -1;  // Of the checkpoint under way.
  RankStates::Shard shard_;
  std::string client_state_, saved_client_state_;  // Of now, and of the checkpoint under way.
  bool is_held_ = false;
  bool is_rejected_ = false;
  bool is_complete_ = false;  // All ranks have written their shards, and it is not rejected.
  double begin_seconds_ = 0;
  absl::optional<double> stall_seconds_;  // Nothing: training stands still until the end.
  std::thread thread_;                    // Does a part of it.
  std::atomic<Progress> progress_{Progress::kDone};

  int64_t last_saved_step_ = -1;
  std::string last_saved_path_;
  absl::Status last_error_;
};

// What SetClientState gave when the checkpoint began; empty where there is none. Errors: as Checkpoint::Read.
absl::StatusOr<std::string> ReadClientState(const Checkpoint& checkpoint);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STATE_CHECKPOINTER_H_
