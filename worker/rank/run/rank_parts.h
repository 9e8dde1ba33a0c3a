#ifndef TACC_WORKER_RANK_RUN_RANK_PARTS_H_
#define TACC_WORKER_RANK_RUN_RANK_PARTS_H_

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "graph/ir/program.h"
#include "machine/clock.h"
#include "worker/data/shards.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/measured_attention.h"
#include "worker/rank/device/measured_products.h"
#include "worker/rank/gpu/gpu_module.h"
#include "worker/rank/program/device_watch.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/protocol/commands.h"
#include "worker/rank/protocol/events.h"
#include "worker/rank/protocol/folder_claim.h"
#include "worker/rank/protocol/run_record.h"
#include "worker/rank/protocol/start_file.h"
#include "worker/rank/protocol/status_block.h"
#include "worker/rank/run/run_options.h"
#include "worker/rank/run/step_source.h"
#include "worker/rank/session/client_link.h"
#include "worker/rank/state/batches.h"
#include "worker/rank/state/checkpointer.h"
#include "worker/rank/state/states.h"
#include "worker/rank/timing/device_metrics.h"
#include "worker/rank/timing/gap_trace.h"
#include "worker/rank/timing/step_measurement.h"
#include "worker/rank/torch/gloo_transport.h"

namespace tacc::worker {

// What a rank is made of, as LoadRank makes it: each part uses what stands above it.
struct RankParts {
  // All must outlive the object.
  RankParts(const RunOptions* run_options, StartFile start_file, EventWriter* event_writer,
            CommandReader* command_reader, std::function<void(const absl::Status&)> end_process_by)
      : options(*run_options),
        start(std::move(start_file)),
        events(*event_writer),
        commands(*command_reader),
        end_process(std::move(end_process_by)),
        collectives(start.rank, start.world) {}

  // In the status block, if there is one.
  void Show(Activity activity) const {
    if (status_block != nullptr) status_block->SetActivity(activity);
  }
  void ShowStep(int64_t steps_done) const {
    if (status_block != nullptr) status_block->SetStep(steps_done);
  }
  void Beat() const {
    if (status_block != nullptr) status_block->Beat();
  }

  // On rank 0: an event that is also a point of the run's metrics.
  void WritePoint(const char* event, nlohmann::json fields) const {
    fields["time"] = WallSeconds();
    if (record != nullptr) record->Add(fields);
    events.Write(event, std::move(fields));
  }

  bool saves_checkpoints() const { return !start.checkpoint_dir.empty(); }

  const RunOptions& options;
  const StartFile start;
  EventWriter& events;
  CommandReader& commands;
  FolderClaim* claim = nullptr;  // Rank 0's; null: nobody has claimed checkpoint.dir.
  // On any thread: reports an error of the device and ends the process, whatever else it waits for.
  const std::function<void(const absl::Status&)> end_process;
  std::unique_ptr<StatusBlock> status_block;  // Null: nobody looks.
  graph::Program program;
  std::vector<graph::Program> others;        // For shorter batches of a client, on the same states.
  std::unique_ptr<RendezvousServer> server;  // On rank 0 of several.
  Device* device = nullptr;
  std::unique_ptr<DeviceMetrics> metrics;
  std::unique_ptr<Transport> transport;  // Null in a world of one.
  Collectives collectives;               // Of values of the host, on CPUs all.
  std::unique_ptr<Arena> arena;          // Null: the program is not planned.
  RankTalk talk;                         // Of ranks on asynchronous devices.
  std::unique_ptr<DeviceWatch> watch;    // Of an asynchronous device.
  std::unique_ptr<Executor> executor;
  std::vector<AttentionChoice> attention;  // Of the shapes of all ranks; empty on CPUs.
  std::vector<ProductChoice> products;     // As attention.
  std::unique_ptr<StepMeasurement> measurement;
  std::unique_ptr<GapTrace> gaps;  // On rank 0, whose events say it; null: on a CPU, or not wanted.
  std::unique_ptr<RankStates> states;
  std::unique_ptr<Checkpointer> checkpointer;
  std::unique_ptr<Dataset> dataset;  // Null: a client sends the batches.
  std::unique_ptr<StepSource> source;
  std::unique_ptr<ClientLink> client_link;  // Null: the data is a folder's.
  std::unique_ptr<Dataset> eval_dataset;    // Null: nothing to evaluate on.
  std::unique_ptr<EvalBatches> eval_batches;
  std::unique_ptr<RunRecord> record;  // On rank 0 of a job with a folder.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_RANK_PARTS_H_
