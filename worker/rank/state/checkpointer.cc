#include "worker/rank/state/checkpointer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {

namespace {

// The tensor's name.
constexpr char kClientState[] = "client/state";

}  // namespace

absl::StatusOr<std::string> ReadClientState(const Checkpoint& checkpoint) {
  const auto found = checkpoint.manifest().tensors.find(kClientState);
  if (found == checkpoint.manifest().tensors.end()) return "";
  const Rectangle whole = WholeTensor(found->second.shape);
  std::string state(NumElements(whole.shape).value_or(0), '\0');
  TACC_RETURN_IF_ERROR(checkpoint.Read(kClientState, whole, state.data()));
  return state;
}

absl::Status Checkpointer::Start(int64_t step) {
  Judge(step == step_);
  if (step == last_saved_step_ || (stage_ != Stage::kIdle && step == step_)) return absl::OkStatus();
  const double begin = SteadySeconds();
  TACC_RETURN_IF_ERROR(Wait());
  TACC_RETURN_IF_ERROR(Begin(step));
  begin_seconds_ = begin;
  if (MakeSnapshotMemory()) {
    TACC_ASSIGN_OR_RETURN(shard_, states_.MakeSnapshot(snapshot_memory_->data()));
    Run(&Checkpointer::Write);
  } else {
    TACC_ASSIGN_OR_RETURN(shard_, states_.MakeShard());
    Write();
  }
  stall_seconds_ = SteadySeconds() - begin;
  return absl::OkStatus();
}

absl::Status Checkpointer::Save(int64_t step) {
  const double begin = SteadySeconds();
  // One that is held and not judged is as good as this one, which is not judged either, and may be all that stays.
  TACC_RETURN_IF_ERROR(Wait());
  if (step == last_saved_step_) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(Begin(step));
  begin_seconds_ = begin;
  stall_seconds_.reset();
  TACC_ASSIGN_OR_RETURN(shard_, states_.MakeShard());
  Write();
  return Wait();
}

absl::Status Checkpointer::Begin(int64_t step) {
  if (!is_clean_) {
    if (start_.rank == 0) {
      if (absl::Status status = RemoveUnfinishedCheckpoints(start_.checkpoint_dir, start_.attempt); !status.ok()) {
        events_.Log(absl::StrCat("left-overs of an earlier attempt stay: ", status.message()));
      }
    }
    // Nobody writes before they are gone.
    TACC_RETURN_IF_ERROR(collectives_.Barrier());
    is_clean_ = true;
  }
  step_ = step;
  saved_client_state_ = client_state_;
  is_rejected_ = false;
  stage_ = Stage::kWriting;
  return absl::OkStatus();
}

bool Checkpointer::MakeSnapshotMemory() {
  if (snapshot_memory_ != nullptr) return true;
  const int64_t bytes = states_.ShardBytes();
  absl::Status status;
  if (bytes > spare_bytes_) {
    status = absl::ResourceExhaustedError(absl::StrCat("it can spare ", std::max<int64_t>(spare_bytes_, 0), " bytes"));
  } else if (auto memory = device_.AllocateHost(bytes); memory.ok()) {
    snapshot_memory_ = *std::move(memory);
  } else {
    status = memory.status();
  }
  if (!status.ok() && !has_told_no_room_) {
    events_.Log(absl::StrCat("training stands still while checkpoints are written: rank ", start_.rank,
                             " has no room for a copy of its states, ", bytes, " bytes: ", status.message()));
    has_told_no_room_ = true;
  }
  return status.ok();
}

absl::Status Checkpointer::Wait() {
  is_held_ = false;
  while (stage_ != Stage::kIdle) {
    JoinThread();
    TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost({static_cast<uint64_t>(progress())}));
    std::vector<Progress> ranks;
    for (const std::vector<uint64_t>& values : all) ranks.push_back(static_cast<Progress>(values[0]));
    Advance(ranks);
  }
  return absl::OkStatus();
}

void Checkpointer::Advance(absl::Span<const Progress> ranks) {
  if (stage_ == Stage::kWriting) {
    if (is_held_ || std::count(ranks.begin(), ranks.end(), Progress::kBusy) > 0) return;
    JoinThread();
    shard_ = {};
    is_complete_ = !is_rejected_ && std::count(ranks.begin(), ranks.end(), Progress::kFailed) == 0;
    stage_ = Stage::kEnding;
    if (start_.rank == 0) Run(&Checkpointer::End);
  } else if (stage_ == Stage::kEnding) {
    if (ranks[0] == Progress::kBusy) return;
    JoinThread();
    stage_ = Stage::kIdle;
    if (!is_complete_ || ranks[0] == Progress::kFailed) return;
    last_saved_step_ = step_;
    last_saved_path_ = absl::StrCat(start_.checkpoint_dir, "/", CheckpointName(id()));
  }
}

void Checkpointer::Run(void (Checkpointer::*part)()) {
  progress_ = Progress::kBusy;
  thread_ = std::thread(part, this);
}

void Checkpointer::JoinThread() {
  if (thread_.joinable()) thread_.join();
}

void Checkpointer::Write() {
  absl::Status status = start_.checkpoint_claimed ? CheckClaimed(start_.checkpoint_dir) : absl::OkStatus();
  if (start_.rank == 0 && !saved_client_state_.empty()) {
    const std::vector<int64_t> shape = {static_cast<int64_t>(saved_client_state_.size())};
    shard_.tensors.push_back({kClientState, "U8", shape, shape, WholeTensor(shape), saved_client_state_.data()});
  }
  if (status.ok()) status = WriteShard(start_.checkpoint_dir, id(), start_.rank, shard_.tensors, failpoints_);
  if (!status.ok()) {
    events_.Warning("checkpoint_failed",
                    absl::StrCat("checkpoint of step ", step_, ", rank ", start_.rank, ": ", status.message()));
  }
  last_error_ = status;
  progress_ = status.ok() ? Progress::kDone : Progress::kFailed;
}

void Checkpointer::End() {
  absl::Status status;
  if (is_complete_) {
    status = Commit();
    if (!status.ok()) {
      events_.Warning("checkpoint_failed", absl::StrCat("checkpoint of step ", step_, ": ", status.message()));
    }
  } else if (absl::Status abandoned = AbandonCheckpoint(start_.checkpoint_dir, id()); !abandoned.ok()) {
    events_.Log(absl::StrCat("an unfinished checkpoint stays: ", abandoned.message()));
  }
  if (!status.ok()) last_error_ = status;
  progress_ = status.ok() ? Progress::kDone : Progress::kFailed;
}

absl::Status Checkpointer::Commit() {
  if (claim_ != nullptr) TACC_RETURN_IF_ERROR(claim_->Check());
  Manifest manifest;
  manifest.version = start_.version;
  manifest.job = start_.job;
  manifest.step = step_;
  manifest.attempt = start_.attempt;
  manifest.identity = start_.identity.dump();
  for (const graph::Mesh::Axis& axis : program_.mesh.axes) manifest.layout[axis.name] = axis.size;
  TACC_ASSIGN_OR_RETURN(const CommittedCheckpoint committed,
                        CommitCheckpoint(start_.checkpoint_dir, std::move(manifest), start_.world, failpoints_));
  const double seconds = SteadySeconds() - begin_seconds_;
  events_.Write(protocol::CheckpointEvent{.step = step_,
                                          .path = committed.name,
                                          .bytes = committed.num_bytes,
                                          .seconds = seconds,
                                          .stall_seconds = stall_seconds_.value_or(seconds)});
  return absl::OkStatus();
}

}  // namespace tacc::worker
