#include "graph/planner/simulate/task_simulator.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A task that takes `demand` of each resource.
int Task(TaskSimulator& s, double seconds, const std::vector<int>& resources, double demand = 1) {
  const int task = s.AddTask(seconds);
  for (int resource : resources) s.Take(task, resource, demand);
  return task;
}

TEST(TaskSimulator, AStreamRunsInOrder) {
  TaskSimulator s;
  const int stream = s.AddStream();
  const int a = s.AddTask(2), b = s.AddTask(3);
  s.Append(stream, a);
  s.Append(stream, b);
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_EQ(s.end(a), 2);
  EXPECT_EQ(s.begin(b), 2);
  EXPECT_EQ(s.makespan(), 5);
}

TEST(TaskSimulator, StreamsOverlapAndWait) {
  // compute a(4) c(1); communication b(3) after nothing, c waits for it.
  TaskSimulator s;
  const int compute = s.AddStream(), communication = s.AddStream();
  const int a = s.AddTask(4), b = s.AddTask(5), c = s.AddTask(1);
  s.Append(compute, a);
  s.Append(communication, b);
  s.Append(compute, c);
  s.Wait(c, b);
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_EQ(s.begin(b), 0);
  EXPECT_EQ(s.begin(c), 5);
  EXPECT_EQ(s.makespan(), 6);
}

TEST(TaskSimulator, ATaskOfTwoStreamsMeets) {
  // A transfer starts when both sides are there, and holds both.
  TaskSimulator s;
  const int left = s.AddStream(), right = s.AddStream();
  const int a = s.AddTask(4), transfer = s.AddTask(2), b = s.AddTask(1);
  s.Append(left, a);
  s.Append(left, transfer);
  s.Append(right, transfer);
  s.Append(right, b);
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_EQ(s.begin(transfer), 4);
  EXPECT_EQ(s.begin(b), 6);
  EXPECT_EQ(s.makespan(), 7);
}

TEST(TaskSimulator, SharesAResource) {
  // Two transfers of 4 s on one link from time 0, one of 2 s: at half speed until the short one has had its 2 s at
  // time 4, then the long one has 2 s left and goes on alone.
  TaskSimulator s;
  const int link = s.AddResource();
  const int a = Task(s, 4, {link}), b = Task(s, 2, {link});
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_DOUBLE_EQ(s.end(b), 4);
  EXPECT_DOUBLE_EQ(s.end(a), 6);
}

TEST(TaskSimulator, DemandsThatFitDoNotSlow) {
  TaskSimulator s;
  const int link = s.AddResource();
  const int a = Task(s, 4, {link}, 0.5), b = Task(s, 2, {link}, 0.5);
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_DOUBLE_EQ(s.end(b), 2);
  EXPECT_DOUBLE_EQ(s.end(a), 4);
}

TEST(TaskSimulator, TheScarcestResourceSets) {
  // `a` needs both; b takes the first, c and d the second: a runs at 1/3 until c and d are through at time 3, then at
  // 1/2 beside b until b's 3 s are over at time 6 - b always runs at 1/2.
  TaskSimulator s;
  const int first = s.AddResource(), second = s.AddResource();
  const int a = Task(s, 4, {first, second});
  const int b = Task(s, 3, {first});
  const int c = Task(s, 1, {second}), d = Task(s, 1, {second});
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_DOUBLE_EQ(s.end(c), 3);
  EXPECT_DOUBLE_EQ(s.end(d), 3);
  EXPECT_DOUBLE_EQ(s.end(b), 6);
  EXPECT_DOUBLE_EQ(s.end(a), 6 + (4 - 1 - 1.5));
}

TEST(TaskSimulator, TasksWithoutLengthTakeNoTime) {
  TaskSimulator s;
  const int stream = s.AddStream();
  const int a = s.AddTask(0), b = s.AddTask(0), c = s.AddTask(1);
  s.Append(stream, a);
  s.Append(stream, b);
  s.Append(stream, c);
  s.Wait(c, a);
  EXPECT_THAT(s.Run(), IsEmpty());
  EXPECT_EQ(s.end(c), 1);
}

TEST(TaskSimulator, SaysWhatIsStuck) {
  // Two blocking sends that cross: neither side reaches its receive.
  TaskSimulator s;
  const int left = s.AddStream(), right = s.AddStream();
  const int down = s.AddTask(1), up = s.AddTask(1);
  s.Append(left, down);
  s.Append(left, up);
  s.Append(right, up);
  s.Append(right, down);
  EXPECT_THAT(s.Run(), ElementsAre(down, up));
}

TEST(TaskSimulator, ConservesWork) {
  // Whatever the order, a resource is never given away twice, streams never overlap, nothing starts before what it
  // waits for, and no task is faster than alone.
  for (int seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    TaskSimulator s;
    constexpr int kStreams = 4, kResources = 3, kTasks = 200;
    for (int i = 0; i < kStreams; ++i) s.AddStream();
    for (int i = 0; i < kResources; ++i) s.AddResource();
    std::vector<int> stream(kTasks), resource(kTasks), before(kTasks);
    std::vector<double> demand(kTasks);
    for (int task = 0; task < kTasks; ++task) {
      stream[task] = static_cast<int>(random() % kStreams);
      resource[task] = static_cast<int>(random() % kResources);
      demand[task] = 0.1 * static_cast<double>(1 + random() % 10);
      Task(s, 1e-3 * static_cast<double>(1 + random() % 50), {resource[task]}, demand[task]);
      s.Append(stream[task], task);
      before[task] = task == 0 ? -1 : static_cast<int>(random() % task);
      if (before[task] >= 0) s.Wait(task, before[task]);
    }
    ASSERT_THAT(s.Run(), IsEmpty());
    std::vector<double> work(kResources, 0), busy(kStreams, 0), free_at(kStreams, 0);
    for (int task = 0; task < kTasks; ++task) {
      EXPECT_GE(s.end(task) - s.begin(task), s.seconds(task) * (1 - 1e-9));
      EXPECT_GE(s.begin(task), free_at[stream[task]]);
      if (before[task] >= 0) {
        EXPECT_GE(s.begin(task), s.end(before[task]));
      }
      free_at[stream[task]] = s.end(task);
      work[resource[task]] += s.seconds(task) * demand[task];
      busy[stream[task]] += s.end(task) - s.begin(task);
    }
    for (double w : work) EXPECT_LE(w, s.makespan() * (1 + 1e-9));
    for (double b : busy) EXPECT_LE(b, s.makespan() * (1 + 1e-9));
  }
}

TEST(TaskSimulator, AMillionTasksTakeSeconds) {
  // 64 stages of 64 micro-batches, a ring of rendezvous: the size of the largest pipelines.
  constexpr int kStages = 64, kMicroBatches = 256, kTasksPerCall = 60;
  TaskSimulator s;
  std::vector<int> streams, devices;
  for (int i = 0; i < kStages; ++i) {
    streams.push_back(s.AddStream());
    devices.push_back(s.AddResource());
  }
  for (int m = 0; m < kMicroBatches; ++m) {
    for (int stage = 0; stage < kStages; ++stage) {
      for (int i = 0; i < kTasksPerCall; ++i) s.Append(streams[stage], Task(s, 1e-3, {devices[stage]}));
      if (stage + 1 < kStages) {
        const int transfer = s.AddTask(1e-4);
        s.Append(streams[stage], transfer);
        s.Append(streams[stage + 1], transfer);
      }
    }
  }
  ASSERT_THAT(s.Run(), IsEmpty());
  // The middle stages take part in two transfers a micro-batch; the last starts after all before it are through once.
  const double call = kTasksPerCall * 1e-3;
  EXPECT_NEAR(s.makespan(), (kStages + kMicroBatches - 1) * call, 0.02 * s.makespan());
}

}  // namespace
}  // namespace tacc::graph
