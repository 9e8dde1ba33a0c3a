#ifndef TACC_GRAPH_PLANNER_SIMULATE_TASK_SIMULATOR_H_
#define TACC_GRAPH_PLANNER_SIMULATE_TASK_SIMULATOR_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace tacc::graph {

// A discrete-event simulation of tasks on streams that share resources. It knows no graph: simulate.h says what the
// tasks of a training step are.
//
// A task starts when it is at the head of each of its streams and all tasks that it waits for have ended; it holds its
// streams to its end. While tasks run together they share resources fairly: where the demands on a resource sum to
// D > 1, each of its tasks goes on at 1/D of its speed (a task with several resources at the least of them).
class TaskSimulator {
 public:
  // Streams, resources and tasks are numbered from 0.
  int AddStream();
  int AddResource();
  // `seconds`: the task's length when it runs alone, at least 0.
  int AddTask(double seconds);
  // While it runs, the task takes this part, in (0, 1] when it runs alone, of the resource. Once a resource.
  void Take(int task, int resource, double demand);
  // The stream runs `task` after those appended before.
  void Append(int stream, int task);
  // `task` starts after the end of `before`.
  void Wait(int task, int before);

  // Runs all tasks from time 0. Returns those that could not start because streams and waits form a circle: {} when all
  // is well. Call it once.
  std::vector<int> Run();

  int num_tasks() const { return static_cast<int>(tasks_.size()); }
  // In seconds, of a task that ran.
  double begin(int task) const { return tasks_[task].begin; }
  double end(int task) const { return tasks_[task].end; }
  // Its length when it runs alone.
  double seconds(int task) const { return tasks_[task].seconds; }
  // The end of the last task.
  double makespan() const { return makespan_; }

 private:
  struct Task {
    double seconds = 0;
    double done = 0;       // seconds of work done when it was last looked at
    double looked_at = 0;  // time
    double rate = 0;       // 0: not running
    double begin = 0;
    double end = -1;
    int32_t blockers = 0;  // streams whose head it is not, and tasks that it waits for
    int32_t version = 0;   // of its event
  };
  struct Event {
    double time;
    int32_t task;
    int32_t version;  // stale when the task's is larger
    bool operator>(const Event& other) const { return time != other.time ? time > other.time : task > other.task; }
  };
  struct Use {
    int32_t resource = 0;
    double demand = 0;
  };
  // A list for each of n keys, each in the order of `pairs`.
  template <typename T>
  struct Lists {
    std::vector<int32_t> first;
    std::vector<T> items;
    Lists() = default;
    Lists(int n, const std::vector<std::pair<int32_t, T>>& pairs);
    absl::Span<const T> of(int key) const {
      return absl::MakeConstSpan(items.data() + first[key], items.data() + first[key + 1]);
    }
  };

  void Unblock(int task);
  void Start(int task);
  void End(int task);
  void Neighbours(int task);
  void UpdateRates();

  int num_resources_ = 0;
  std::vector<Task> tasks_;
  std::vector<std::pair<int32_t, Use>> takes_;        // task, what it takes
  std::vector<std::vector<int32_t>> streams_;         // tasks, in order
  std::vector<std::pair<int32_t, int32_t>> on_;       // task, stream
  std::vector<std::pair<int32_t, int32_t>> waiting_;  // task, the one that waits for it

  // While running.
  double now_ = 0;
  double makespan_ = 0;
  Lists<Use> uses_;
  Lists<int32_t> streams_of_, waiting_for_;
  std::vector<size_t> heads_;  // of each stream
  std::vector<int> startable_;
  std::vector<int> touched_;  // tasks whose rates may have changed
  std::vector<Event> heap_;
  std::vector<std::vector<int>> running_;  // on each resource
  std::vector<double> demand_;             // on each resource
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_TASK_SIMULATOR_H_
