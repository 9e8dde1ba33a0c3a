#include "worker/rank/state/checkpointer.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "graph/ir/text.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/folder_writer.h"
#include "worker/checkpoint/reader.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/testing/in_process_transport.h"
#include "worker/rank/testing/naive_kernels.h"

namespace tacc::worker {
namespace {

// Two ranks hold two rows each of w (of three, so one is padding) and all of v.
constexpr char kProgram[] = R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/v" : f32[2] of f32[2] shard=[-] kind=weight init=ones stored=[2]
state "weights/w" : f32[2,2] of f32[3,2] shard=[fsdp,-] kind=weight init=ones stored=[3,2]
state "exp_avg/w" : f32[2,2] of f32[3,2] shard=[fsdp,-] kind=optimizer init=zeros
state "gradients/w" : f32[2,2] of f32[3,2] shard=[fsdp,-] kind=gradient init=zeros
)";

// The events that a rank wrote, in a file.
class EventFile {
 public:
  explicit EventFile(std::string path) : path_(std::move(path)), file_(fopen(path_.c_str(), "w")) {}
  ~EventFile() { fclose(file_); }
  int fd() const { return fileno(file_); }

  std::vector<nlohmann::json> Of(const std::string& event) const {
    std::vector<nlohmann::json> found;
    for (const auto line : absl::StrSplit(TestDirectory::Read(path_), '\n', absl::SkipEmpty())) {
      nlohmann::json value = nlohmann::json::parse(std::string(line));
      if (value["event"] == event) found.push_back(std::move(value));
    }
    return found;
  }

 private:
  std::string path_;
  FILE* file_;
};

struct Rank {
  Rank(int rank, const graph::Program* program, const TestDirectory& directory, Transport* transport,
       const std::string& failpoints, int64_t spare_bytes, FolderClaim* claim)
      : collectives(rank, 2),
        event_file(directory.File(absl::StrCat("events-", rank))),
        events(event_file.fd()),
        points(*Failpoints::Parse(failpoints)),
        states(program, rank, &device, [this](const std::string& name) { return View(name); }),
        checkpointer(&start, program, &device, &states, &collectives, &events, points.get(), spare_bytes, claim) {
    start.version = "1";
    start.job = "j";
    start.rank = rank;
    start.world = 2;
    start.memory_bytes = 4096;
    start.checkpoint_dir = directory.File("runs");
    collectives.Connect(transport);
    SetAll(1);
  }

  kernels::TensorView View(const std::string& name) {
    return name == "weights/v" ? kernels::TensorView{memory[name].data(), kernels::DType::kF32, {2}}
                               : kernels::TensorView{memory[name].data(), kernels::DType::kF32, {2, 2}};
  }
  void SetAll(float value) {
    for (const char* name : {"weights/v", "weights/w", "exp_avg/w", "gradients/w"}) memory[name].assign(4, value);
  }
  // One turn of the training loop without a step.
  void Turn() {
    const auto all = collectives.GatherHost({static_cast<uint64_t>(checkpointer.progress())});
    ASSERT_TRUE(all.ok()) << all.status();
    checkpointer.Advance(
        {{static_cast<Checkpointer::Progress>((*all)[0][0]), static_cast<Checkpointer::Progress>((*all)[1][0])}});
  }

  std::map<std::string, std::vector<float>> memory;
  StartFile start;
  Collectives collectives;
  EventFile event_file;
  EventWriter events;
  std::unique_ptr<Failpoints> points;
  const NaiveKernels kernels;
  HostDevice device{&kernels};
  RankStates states;
  Checkpointer checkpointer;
};

class CheckpointerTest : public testing::Test {
 protected:
  CheckpointerTest() : program_(*graph::ParseProgram(kProgram, {})) {
    EXPECT_TRUE(MakeDirectory(directory_.File("runs")).ok());
  }

  // Runs `body` on both ranks at once.
  void Run(const std::function<void(Rank&)>& body, const std::string& failpoints, int64_t spare_bytes = 64) {
    auto transports = MakeInProcessTransports(2, absl::Seconds(20));
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, &program_, directory_, transports[rank].get(),
                                              rank == 1 ? failpoints : "", spare_bytes,
                                              rank == 0 ? claim_.get() : nullptr));
    }
    std::thread other([&] { body(*ranks_[1]); });
    body(*ranks_[0]);
    other.join();
  }

  std::vector<float> Read(const std::string& checkpoint, const std::string& tensor) {
    std::vector<float> values(6, -1);
    auto opened = Checkpoint::Open(absl::StrCat(directory_.File("runs"), "/", checkpoint));
    EXPECT_TRUE(opened.ok()) << opened.status();
    EXPECT_TRUE((*opened)->VerifyData(0, 1).ok());
    EXPECT_TRUE((*opened)->Read(tensor, {{0, 0}, {3, 2}}, values.data()).ok());
    return values;
  }
  std::vector<std::string> Saved() const { return TestDirectory::Names(directory_.File("runs")); }

  TestDirectory directory_;
  graph::Program program_;
  std::unique_ptr<FolderClaim> claim_;  // Of rank 0.
  std::vector<std::unique_ptr<Rank>> ranks_;
};

using Names = std::vector<std::string>;

TEST_F(CheckpointerTest, TrainingGoesOnWhileTheCopyIsWritten) {
  Run(
      [](Rank& rank) {
        const absl::Time begin = absl::Now();
        ASSERT_TRUE(rank.checkpointer.Start(3).ok());
        EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
        rank.SetAll(2);  // The next step.
        rank.Turn();
        EXPECT_EQ(rank.checkpointer.last_saved_step(), -1);
        while (rank.checkpointer.last_saved_step() < 0) rank.Turn();
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 3);
      },
      "before_shard_write=sleep:1");
  EXPECT_EQ(Saved(), Names{"step-00000003.a1"});
  EXPECT_EQ(Read("step-00000003.a1", "weights/w"), std::vector<float>(6, 1));
  EXPECT_EQ(Read("step-00000003.a1", "exp_avg/w"), std::vector<float>(6, 1));
  const auto events = ranks_[0]->event_file.Of("checkpoint");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["path"], "step-00000003.a1");
  EXPECT_LT(events[0]["stall_seconds"], 1.0);
  EXPECT_GE(events[0]["seconds"], 1.0);
  EXPECT_TRUE(ranks_[1]->event_file.Of("checkpoint").empty());
}

TEST_F(CheckpointerTest, TheNextAndTheLastWaitForTheOneUnderWay) {
  Run(
      [](Rank& rank) {
        ASSERT_TRUE(rank.checkpointer.Start(1).ok());
        rank.SetAll(2);
        ASSERT_TRUE(rank.checkpointer.Start(2).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 1);
        ASSERT_TRUE(rank.checkpointer.Start(2).ok());  // It is under way.
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 1);
        ASSERT_TRUE(rank.checkpointer.Save(2).ok());  // It has become one.
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 2);
        rank.SetAll(3);
        ASSERT_TRUE(rank.checkpointer.Save(3).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 3);
      },
      "before_shard_write=sleep:0.3");
  EXPECT_EQ(Saved(), (Names{"step-00000001.a1", "step-00000002.a1", "step-00000003.a1"}));
  for (int step : {1, 2, 3}) {
    EXPECT_EQ(Read(absl::StrCat("step-0000000", step, ".a1"), "weights/w"), std::vector<float>(6, step));
  }
  const auto events = ranks_[0]->event_file.Of("checkpoint");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_GE(events[1]["stall_seconds"], 0.2);  // Most of the first's writing.
  EXPECT_EQ(events[2]["stall_seconds"], events[2]["seconds"]);
}

TEST_F(CheckpointerTest, OneThatIsHeldIsCommittedWhenItIsJudgedGood) {
  Run(
      [](Rank& rank) {
        for (int step : {1, 2}) {
          ASSERT_TRUE(rank.checkpointer.Start(step).ok());
          rank.checkpointer.Hold();
          rank.checkpointer.JoinThread();
          for (int turn = 0; turn < 3; ++turn) rank.Turn();
          EXPECT_EQ(rank.checkpointer.last_saved_step(), -1);
          rank.checkpointer.Judge(step == 2);
          ASSERT_TRUE(rank.checkpointer.Wait().ok());
        }
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 2);
      },
      "");
  EXPECT_EQ(Saved(), Names{"step-00000002.a1"});
  EXPECT_TRUE(ranks_[0]->event_file.Of("warning").empty());
}

TEST_F(CheckpointerTest, TheNextTakesThePlaceOfOneThatIsHeld) {
  Run(
      [](Rank& rank) {
        for (int step : {1, 2, 3}) {
          ASSERT_TRUE(rank.checkpointer.Start(step).ok());
          rank.checkpointer.Hold();
          rank.Turn();
        }
        EXPECT_EQ(rank.checkpointer.last_saved_step(), -1);
        // But for the last, which may not come to be.
        ASSERT_TRUE(rank.checkpointer.Save(4).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 4);
      },
      "");
  EXPECT_EQ(Saved(), (Names{"step-00000003.a1", "step-00000004.a1"}));
}

TEST_F(CheckpointerTest, WhatIsAskedForIsNotHeld) {
  Run(
      [](Rank& rank) {
        ASSERT_TRUE(rank.checkpointer.Start(1).ok());
        rank.checkpointer.Hold();
        ASSERT_TRUE(rank.checkpointer.Start(1).ok());  // A command.
        rank.checkpointer.Judge(false);
        ASSERT_TRUE(rank.checkpointer.Start(2).ok());
        rank.checkpointer.Hold();
        ASSERT_TRUE(rank.checkpointer.Save(2).ok());  // The training stops.
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 2);
      },
      "");
  EXPECT_EQ(Saved(), (Names{"step-00000001.a1", "step-00000002.a1"}));
}

TEST_F(CheckpointerTest, WithoutRoomForTheCopyTrainingWaits) {
  Run(
      [](Rank& rank) {
        for (int step : {1, 2}) {
          ASSERT_TRUE(rank.checkpointer.Start(step).ok());
          EXPECT_EQ(rank.checkpointer.progress(), Checkpointer::Progress::kDone);
          rank.SetAll(7);
          ASSERT_TRUE(rank.checkpointer.Wait().ok());
          EXPECT_EQ(rank.checkpointer.last_saved_step(), step);
        }
      },
      "before_shard_write=sleep:0.3@1", 15);
  EXPECT_EQ(Read("step-00000001.a1", "weights/w"), std::vector<float>(6, 1));
  const auto logs = ranks_[1]->event_file.Of("log");
  ASSERT_EQ(logs.size(), 1u);
  const std::string message = logs[0]["message"];
  // One row of w and of its average.
  EXPECT_NE(message.find("rank 1 has no room for a copy of its states, 16 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find("it can spare 15 bytes"), std::string::npos) << message;
}

// What a mount point shows whose file system is away, on the host of one rank.
TEST_F(CheckpointerTest, NothingIsWrittenToAFolderThatIsNotTheClaimedOne) {
  const std::string bare = directory_.File("bare"), owner = absl::StrCat("/", kOwnerFileName);
  ASSERT_TRUE(MakeDirectory(bare).ok());
  ASSERT_TRUE(WriteSmallFile(directory_.File("runs") + owner, "{}").ok());
  Run(
      [&](Rank& rank) {
        rank.start.checkpoint_claimed = true;
        if (rank.start.rank == 1) rank.start.checkpoint_dir = bare;
        ASSERT_TRUE(rank.checkpointer.Save(1).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), -1);
        EXPECT_EQ(rank.checkpointer.last_error().code(),
                  rank.start.rank == 1 ? absl::StatusCode::kNotFound : absl::StatusCode::kOk);
        rank.start.checkpoint_dir = directory_.File("runs");  // It is mounted again.
        ASSERT_TRUE(rank.checkpointer.Save(2).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 2);
      },
      "");
  EXPECT_EQ(TestDirectory::Names(bare), Names{});
  EXPECT_EQ(Saved(), (Names{"job.json", "step-00000002.a1"}));
  const auto warnings = ranks_[1]->event_file.Of("warning");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0]["code"], "checkpoint_failed");
  const std::string message = warnings[0]["message"];
  EXPECT_NE(message.find(bare + owner), std::string::npos) << message;
  EXPECT_NE(message.find("mount it again"), std::string::npos) << message;
}

TEST_F(CheckpointerTest, AFailureIsAWarningAndTheNextOneWorks) {
  Run(
      [](Rank& rank) {
        ASSERT_TRUE(rank.checkpointer.Start(1).ok());
        ASSERT_TRUE(rank.checkpointer.Wait().ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), -1);
        ASSERT_TRUE(rank.checkpointer.Save(1).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 1);
      },
      "after_shard_write=error@1");
  EXPECT_EQ(Saved(), Names{"step-00000001.a1"});
  const auto warnings = ranks_[1]->event_file.Of("warning");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0]["code"], "checkpoint_failed");
  EXPECT_TRUE(ranks_[0]->event_file.Of("warning").empty());
}

TEST_F(CheckpointerTest, WhoHasLostTheFolderPublishesNothing) {
  TestDirectory::Write(directory_.File("runs/job.json"), "{}");
  FolderClaim::Options options;
  options.dir = directory_.File("runs");
  options.service = "mine";
  options.renew_seconds = 1000;
  claim_ = std::make_unique<FolderClaim>(options);
  Run(
      [&](Rank& rank) {
        ASSERT_TRUE(rank.checkpointer.Save(3).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 3);
        if (rank.start.rank == 0) {
          FolderWriter other;
          other.service = "theirs";
          other.job = "t-1";
          ASSERT_TRUE(WriteFolderWriter(options.dir, other).ok());
        }
        ASSERT_TRUE(rank.collectives.Barrier().ok());
        rank.SetAll(4);
        ASSERT_TRUE(rank.checkpointer.Save(4).ok());
        EXPECT_EQ(rank.checkpointer.last_saved_step(), 3);
      },
      "");
  const auto warnings = ranks_[0]->event_file.Of("warning");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0]["message"].get<std::string>().find("is used by job t-1 of another service"), std::string::npos);
  EXPECT_EQ(TestDirectory::Names(directory_.File("runs/step-00000004.a1")), Names());
}

}  // namespace
}  // namespace tacc::worker
