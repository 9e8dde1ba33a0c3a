// The 64 bytes of shared memory through which a rank shows its daemon where it is: written by the rank at each
// instruction, sampled by the daemon each second, so that a hang can be named. The daemon makes the segment and removes
// its name.
#ifndef TACC_WORKER_RANK_PROTOCOL_STATUS_BLOCK_H_
#define TACC_WORKER_RANK_PROTOCOL_STATUS_BLOCK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

// What a rank does.
enum class Activity : uint32_t {
  kStarting = 0,  // Reading its start file and program.
  kBinding = 1,
  kLoadingWeights = 2,
  kLoadingCheckpoint = 3,
  kMeeting = 4,  // Waiting until the other ranks have loaded, connecting to them, agreeing with them.
  kOpeningData = 5,
  kBetweenSteps = 6,  // Reading a batch, agreeing with the others, copying or writing a checkpoint, exporting.
  kInNode = 7,
  kInCollective = 8,  // In the node's collective, perhaps waiting for other ranks.
  kWaitingForClient = 9,
};

// For people: "loading weights".
const char* ActivityText(Activity activity);

// The layout. Every field is written alone, relaxed; a reader may see fields of neighbouring instructions together.
// 4-byte fields where a CUDA graph writes them.
struct StatusFields {
  std::atomic<uint32_t> magic;  // kStatusMagic once the segment is ready.
  std::atomic<uint32_t> attempt;
  std::atomic<uint64_t> step;      // Steps done.
  std::atomic<uint32_t> call;      // Index in the program's list of calls.
  std::atomic<uint32_t> node;      // Index of the node in the call's graph.
  std::atomic<uint32_t> activity;  // An Activity.
  std::atomic<uint32_t> reserved0;
  std::atomic<uint64_t> heartbeat;  // Grows with each instruction, and while it loads.
  uint8_t reserved1[24];
};
static_assert(sizeof(StatusFields) == 64);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint32_t kStatusMagic = 0x31434154;  // "TAC1", little-endian.

// One reading of the fields.
struct RankStatus {
  int64_t attempt = 0;
  int64_t step = 0;
  int64_t call = 0;
  int64_t node = 0;
  Activity activity = Activity::kStarting;
  uint64_t heartbeat = 0;
};

// Where the file system has the segment of a name.
std::string StatusBlockPath(const std::string& name);

// A mapped segment. `name` is that of shm_open: "/tacc-...", without another slash.
class StatusBlock {
 public:
  // Makes the segment, zeroed but for magic and attempt; one left under this name by a killed daemon is replaced. The
  // name is removed when the object is destroyed. ResourceExhausted: no room in /dev/shm.
  static absl::StatusOr<std::unique_ptr<StatusBlock>> Create(const std::string& name, int64_t attempt);
  // Opens a segment made by Create. NotFound: no such name; InvalidArgument: not such a segment.
  static absl::StatusOr<std::unique_ptr<StatusBlock>> Open(const std::string& name);
  // The same, and removes the name when the object is destroyed, as the one that made it.
  static absl::StatusOr<std::unique_ptr<StatusBlock>> TakeOver(const std::string& name);
  // Leaves the name.
  void Release() { name_to_remove_.clear(); }
  ~StatusBlock();
  StatusBlock(const StatusBlock&) = delete;
  StatusBlock& operator=(const StatusBlock&) = delete;

  // For the rank: says where it is. Cheap enough for every instruction (three stores).
  void SetNode(uint32_t call, uint32_t node, Activity activity) {
    fields_->call.store(call, std::memory_order_relaxed);
    fields_->node.store(node, std::memory_order_relaxed);
    SetActivity(activity);
  }
  void SetActivity(Activity activity) {
    fields_->activity.store(static_cast<uint32_t>(activity), std::memory_order_relaxed);
    Beat();
  }
  // Says that it goes on.
  void Beat() {
    fields_->heartbeat.store(fields_->heartbeat.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void SetStep(int64_t steps_done) { fields_->step.store(steps_done, std::memory_order_relaxed); }

  // For the daemon.
  RankStatus Sample() const;

  // For writes that a device does by itself.
  StatusFields* fields() { return fields_; }

 private:
  StatusBlock(StatusFields* fields, std::string name_to_remove)
      : fields_(fields), name_to_remove_(std::move(name_to_remove)) {}
  StatusFields* fields_;
  std::string name_to_remove_;  // Empty: opened, not made.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_STATUS_BLOCK_H_
