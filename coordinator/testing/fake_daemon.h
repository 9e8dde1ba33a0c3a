// A worker's daemon and the tools tacc-plan and tacc-data, as far as the coordinator can tell.
#ifndef TACC_COORDINATOR_TESTING_FAKE_DAEMON_H_
#define TACC_COORDINATOR_TESTING_FAKE_DAEMON_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"
#include "protocol/attach_protocol.h"
#include "tacc/v1/coordinator.grpc.pb.h"
#include "tacc/v1/worker.grpc.pb.h"

namespace tacc::coordinator {

// tacc-plan for `world` ranks, 1e9 FLOPs a step.
inline std::string FakePlan(int world) {
  return absl::StrCat(
      R"sh(
if [ "$1" = plan ]; then echo '[{"world": 1}]'; exit 0; fi
dir="$5"
cat > "$dir/summary.json" <<'END'
{"world": )sh",
      world, R"sh(, "mesh": {"dp": 1, "fsdp": )sh", world,
      R"sh(}, "axes": ["dp", "fsdp"], "precision": "f32", "per_device_train_batch_size": 4, "global_batch_size": 8,
 "accumulation": 1, "seq_len": 64, "num_parameters": 32768, "flops_per_step": 1e9, "memory": {"arena_bytes": 1000, "total_bytes": 2000},
 "predicted_step_seconds": 0.5, "communication_bytes_per_rank": 10, "peak_flops_per_second": 1e10, "fingerprint": "abc"}
END
echo plan > "$dir/plan.txt"
echo '{"traceEvents": []}' > "$dir/trace.json"
cat > "$dir/stage0.program" <<'END'
tacc.program 1 planned
mesh dp=1 fsdp=1
stage 0 of 1
arena bytes=4096 workspace=0
state "weights/fc.weight" : f32[128,256] of f32[128,256] shard=[-,-] kind=weight init="normal(0.02)" stored=[128,256] at=0
graph forward_backward {
  %w = read "weights/fc.weight" : f32[128,256] of f32[128,256] shard=[-,-] at=0 @fc
}
step {
  call forward_backward micro_batch=0
}
END
)sh");
}

inline const char* FakeData() {
  return R"sh(echo '{"vocab_size": 256, "seq_len": 64, "num_tokens": 100000, "num_samples": 1500, "eval_tokens": 0, "fingerprint": "f1"}')sh";
}

inline v1::JobSpec TestSpec(const std::string& name, const std::string& checkpoint_dir, int workers) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_model()->set_path("/models/m");
  spec.mutable_model()->set_weights(v1::WEIGHTS_RANDOM);
  spec.mutable_data()->set_path("/data/d");
  spec.mutable_train()->set_max_steps(10);
  spec.mutable_checkpoint()->set_dir(checkpoint_dir);
  spec.mutable_resources()->set_workers(workers);
  return spec;
}

// Waits until `done`, at most 20 s. False when it did not come.
inline bool WaitUntil(const std::function<bool()>& done) {
  for (int i = 0; i < 4000; ++i) {
    if (done()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// Keeps unacknowledged reports over reconnects, as a daemon does. Answers CheckPaths and KillRank by itself; ranks do
// what the test says.
class FakeDaemon {
 public:
  explicit FakeDaemon(std::string name) : name_(std::move(name)) {}
  ~FakeDaemon() { Disconnect(); }

  // Dials and registers. Waits for the welcome, or returns the status with which the stream ended.
  grpc::Status Connect(const std::string& address) {
    return ConnectBy(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  }
  grpc::Status ConnectBy(const std::shared_ptr<grpc::Channel>& channel) {
    Disconnect();
    context_ = std::make_unique<grpc::ClientContext>();
    stub_ = v1::WorkerService::NewStub(channel);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stream_ = stub_->Attach(context_.get());
    }
    v1::AttachRequest request;
    v1::Register* registration = request.mutable_register_();
    registration->set_name(name_);
    registration->set_instance(instance);
    registration->set_version(version);
    registration->set_protocol(protocol);
    registration->set_advertise("127.0.0.1");
    registration->mutable_device()->set_name("cpu");
    registration->mutable_device()->set_kind("cpu");
    registration->mutable_device()->set_threads(1);
    registration->mutable_device()->set_memory_bytes(memory_bytes);
    (*registration->mutable_device()->mutable_matmul_flops_per_second())["f32"] = 1e10;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [id, rank] : ranks_) {
        v1::HeldRank* held = registration->add_ranks();
        *held->mutable_id() = rank.id;
        held->set_running(rank.running);
      }
      stream_->Write(request);
      v1::AttachResponse welcome;
      if (!stream_->Read(&welcome)) {
        const grpc::Status status = stream_->Finish();
        stream_.reset();
        return status;
      }
      EXPECT_TRUE(welcome.has_registered());
      for (const v1::AttachRequest& report : unacknowledged_) stream_->Write(report);
      connected_ = true;
    }
    reader_ = std::thread([this] { ReadLoop(); });
    beater_ = std::thread([this] { BeatLoop(); });
    return grpc::Status::OK;
  }

  void Disconnect() {
    connected_ = false;
    if (context_ != nullptr) context_->TryCancel();
    if (reader_.joinable()) reader_.join();
    if (beater_.joinable()) beater_.join();
    std::lock_guard<std::mutex> lock(mutex_);
    if (stream_ != nullptr) stream_->Finish();
    stream_.reset();
  }
  bool connected() const { return connected_; }

  // A running rank that was not taken before; false when there is none now.
  bool TakeRank(v1::RankId* id) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& [key, rank] : ranks_) {
      if (!rank.running || rank.taken) continue;
      rank.taken = true;
      *id = rank.id;
      return true;
    }
    return false;
  }

  // The newest rank that was started here and runs; waits for it.
  v1::RankId WaitForRank(int attempt) {
    v1::RankId id;
    EXPECT_TRUE(WaitUntil([&] {
      std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [key, rank] : ranks_) {
        if (rank.running && rank.id.attempt() == attempt) {
          id = rank.id;
          return true;
        }
      }
      return false;
    })) << name_
        << " has no rank of attempt " << attempt;
    return id;
  }

  void Event(const v1::RankId& id, const std::string& line) {
    v1::AttachRequest request;
    request.mutable_rank_report()->set_event(line);
    Report(id, &request);
  }
  void Step(const v1::RankId& id, int step) {
    Event(
        id,
        absl::StrCat(
            R"({"event":"step","time":1,"step":)", step, R"(,"loss":)", 4.0 / step,
            R"(,"grad_norm":1.5,"learning_rate":3e-4,"tokens":512,"target_tokens":500,"seconds":0.5,"data_wait_seconds":0.001,)",
            R"("communication_seconds":0.02,"tokens_per_second":1024,"batch_hash":"0123456789abcdef","skipped":0})"));
  }
  void Checkpoint(const v1::RankId& id, int step) {
    Event(id, absl::StrCat(R"({"event":"checkpoint","time":1,"step":)", step, R"(,"path":"step-)", step, ".a",
                           id.attempt(), R"(","bytes":100,"seconds":0.1,"stall_seconds":0.05})"));
  }
  void Ready(const v1::RankId& id, int step) {
    if (id.rank() == 0) Event(id, R"({"event":"listening","time":1,"port":29500})");
    Event(id, absl::StrCat(R"({"event":"ready","time":1,"step":)", step,
                           R"(,"resumed_from":"","arena_bytes":4096,"load_seconds":0.1})"));
  }
  void Finish(const v1::RankId& id, int step) {
    Event(id, absl::StrCat(R"({"event":"finished","time":1,"step":)", step, "}"));
    Exit(id, 0);
  }
  void Log(const v1::RankId& id, const std::string& line) {
    v1::AttachRequest request;
    request.mutable_rank_report()->mutable_log()->set_time(1);
    request.mutable_rank_report()->mutable_log()->add_lines(line);
    Report(id, &request);
  }
  void Exit(const v1::RankId& id, int code) {
    v1::RankExited exited;
    exited.set_exit_code(code);
    Exited(id, exited);
  }
  void Exited(const v1::RankId& id, const v1::RankExited& exited) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto it = ranks_.find(Key(id));
      if (it == ranks_.end() || !it->second.running) return;
      it->second.running = false;
    }
    v1::AttachRequest request;
    *request.mutable_rank_report()->mutable_exited() = exited;
    Report(id, &request);
  }

  size_t NumUnacknowledged() {
    std::lock_guard<std::mutex> lock(mutex_);
    return unacknowledged_.size();
  }
  void WaitForFewer(size_t unacknowledged) {
    std::unique_lock<std::mutex> lock(mutex_);
    acknowledged_.wait(lock, [&] { return unacknowledged_.size() < unacknowledged; });
  }
  // Of all times: lines for the stdin of ranks, and start files.
  std::vector<std::string> Commands() {
    std::lock_guard<std::mutex> lock(mutex_);
    return commands_;
  }
  std::vector<v1::StartRank> Starts() {
    std::lock_guard<std::mutex> lock(mutex_);
    return starts_;
  }

  // What it registers with, and finds in checkpoint folders.
  std::string instance = "i1";
  std::string version = "0.1.0";
  int protocol = protocol::kAttachProtocol;
  int64_t memory_bytes = int64_t{4} << 30;
  v1::CheckPathsResult found;
  std::atomic<bool> is_quiet{false};  // Sends no heartbeats.

 private:
  struct Rank {
    v1::RankId id;
    bool running = true;
    bool taken = false;
    uint64_t sequence = 0;
  };
  static std::string Key(const v1::RankId& id) { return absl::StrCat(id.job(), "/", id.attempt(), "/", id.rank()); }

  void Report(const v1::RankId& id, v1::AttachRequest* request) {
    std::lock_guard<std::mutex> lock(mutex_);
    *request->mutable_rank_report()->mutable_id() = id;
    request->mutable_rank_report()->set_sequence(++ranks_[Key(id)].sequence);
    unacknowledged_.push_back(*request);
    if (connected_) stream_->Write(*request);
  }

  void ReadLoop() {
    v1::AttachResponse message;
    while (stream_->Read(&message)) {
      if (message.has_kill_rank()) {
        v1::RankExited exited;
        exited.set_signal(9);
        exited.set_killed(true);
        Exited(message.kill_rank().id(), exited);
        continue;
      }
      std::lock_guard<std::mutex> lock(mutex_);
      if (message.has_check_paths()) {
        v1::AttachRequest answer;
        *answer.mutable_check_paths_result() = found;
        answer.mutable_check_paths_result()->set_request(message.check_paths().request());
        stream_->Write(answer);
      } else if (message.has_start_rank()) {
        starts_.push_back(message.start_rank());
        ranks_[Key(message.start_rank().id())].id = message.start_rank().id();
      } else if (message.has_rank_command()) {
        commands_.push_back(message.rank_command().line());
      } else if (message.has_delete_checkpoints()) {
        v1::AttachRequest answer;
        answer.mutable_delete_checkpoints_result()->set_request(message.delete_checkpoints().request());
        for (const std::string& name : message.delete_checkpoints().names())
          answer.mutable_delete_checkpoints_result()->add_deleted(name);
        stream_->Write(answer);
      } else if (message.has_ack()) {
        const auto is_of_rank = [&id = message.ack().id()](const v1::AttachRequest& report) {
          const v1::RankId& other = report.rank_report().id();
          return other.rank() == id.rank() && other.attempt() == id.attempt() && other.job() == id.job();
        };
        std::erase_if(unacknowledged_, [&](const v1::AttachRequest& report) {
          return is_of_rank(report) && report.rank_report().sequence() <= message.ack().sequence();
        });
        acknowledged_.notify_all();
        const bool any = std::any_of(unacknowledged_.begin(), unacknowledged_.end(), is_of_rank);
        auto rank = ranks_.find(Key(message.ack().id()));
        if (!any && rank != ranks_.end() && !rank->second.running) ranks_.erase(rank);
      }
    }
    connected_ = false;
  }

  void BeatLoop() {
    for (int i = 0; connected_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (i % 25 != 0 || is_quiet) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      v1::AttachRequest beat;
      beat.mutable_heartbeat();
      if (connected_) stream_->Write(beat);
    }
  }

  const std::string name_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AttachRequest, v1::AttachResponse>> stream_;
  std::thread reader_;
  std::thread beater_;
  std::atomic<bool> connected_{false};
  std::mutex mutex_;
  std::map<std::string, Rank> ranks_;
  std::deque<v1::AttachRequest> unacknowledged_;
  std::condition_variable acknowledged_;
  std::vector<std::string> commands_;
  std::vector<v1::StartRank> starts_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_TESTING_FAKE_DAEMON_H_
