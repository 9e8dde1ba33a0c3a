#include "graph/planner/simulate/task_simulator.h"

#include <algorithm>
#include <functional>

namespace tacc::graph {

int TaskSimulator::AddStream() {
  streams_.emplace_back();
  return static_cast<int>(streams_.size()) - 1;
}

int TaskSimulator::AddResource() { return num_resources_++; }

int TaskSimulator::AddTask(double seconds) {
  tasks_.emplace_back();
  tasks_.back().seconds = seconds;
  return num_tasks() - 1;
}

void TaskSimulator::Take(int task, int resource, double demand) { takes_.push_back({task, {resource, demand}}); }

void TaskSimulator::Append(int stream, int task) {
  ++tasks_[task].blockers;
  streams_[stream].push_back(task);
  on_.emplace_back(task, stream);
}

void TaskSimulator::Wait(int task, int before) {
  ++tasks_[task].blockers;
  waiting_.emplace_back(before, task);
}

template <typename T>
TaskSimulator::Lists<T>::Lists(int n, const std::vector<std::pair<int32_t, T>>& pairs) {
  first.assign(n + 1, 0);
  for (const auto& [key, item] : pairs) ++first[key + 1];
  for (int i = 0; i < n; ++i) first[i + 1] += first[i];
  items.resize(pairs.size());
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  for (const auto& [key, item] : pairs) items[next[key]++] = item;
}

std::vector<int> TaskSimulator::Run() {
  uses_ = Lists<Use>(num_tasks(), takes_);
  streams_of_ = Lists<int32_t>(num_tasks(), on_);
  waiting_for_ = Lists<int32_t>(num_tasks(), waiting_);
  heads_.assign(streams_.size(), 0);
  running_.resize(num_resources_);
  demand_.assign(num_resources_, 0);
  for (int task = 0; task < num_tasks(); ++task) {
    if (tasks_[task].blockers == 0) startable_.push_back(task);
  }
  for (const std::vector<int32_t>& tasks : streams_) {
    if (!tasks.empty()) Unblock(tasks[0]);
  }
  for (;;) {
    while (!startable_.empty()) {
      const int task = startable_.back();
      startable_.pop_back();
      Start(task);
    }
    UpdateRates();
    if (heap_.empty()) break;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Event event = heap_.back();
    heap_.pop_back();
    if (tasks_[event.task].version != event.version) continue;
    now_ = event.time;
    End(event.task);
  }
  makespan_ = now_;
  std::vector<int> stuck;
  for (int task = 0; task < num_tasks(); ++task) {
    if (tasks_[task].end < 0) stuck.push_back(task);
  }
  return stuck;
}

void TaskSimulator::Unblock(int task) {
  if (--tasks_[task].blockers == 0) startable_.push_back(task);
}

void TaskSimulator::Start(int task) {
  tasks_[task].begin = tasks_[task].looked_at = now_;
  if (tasks_[task].seconds <= 0) return End(task);
  for (const Use& use : uses_.of(task)) {
    running_[use.resource].push_back(task);
    demand_[use.resource] += use.demand;
  }
  touched_.push_back(task);
  Neighbours(task);
}

void TaskSimulator::End(int task) {
  tasks_[task].end = now_;
  ++tasks_[task].version;
  if (tasks_[task].seconds > 0) {
    for (const Use& use : uses_.of(task)) {
      std::vector<int>& running = running_[use.resource];
      running.erase(std::find(running.begin(), running.end(), task));
      // Zero again when the resource is idle, so that rounding does not pile up.
      demand_[use.resource] = running.empty() ? 0 : demand_[use.resource] - use.demand;
    }
    Neighbours(task);
  }
  for (int stream : streams_of_.of(task)) {
    if (++heads_[stream] < streams_[stream].size()) Unblock(streams_[stream][heads_[stream]]);
  }
  for (int other : waiting_for_.of(task)) Unblock(other);
}

// Those that share a resource with the task.
void TaskSimulator::Neighbours(int task) {
  for (const Use& use : uses_.of(task))
    touched_.insert(touched_.end(), running_[use.resource].begin(), running_[use.resource].end());
}

void TaskSimulator::UpdateRates() {
  for (int t : touched_) {
    Task& task = tasks_[t];
    if (task.end >= 0) continue;
    double demand = 1;
    for (const Use& use : uses_.of(t)) demand = std::max(demand, demand_[use.resource]);
    if (task.rate == 1 / demand) continue;
    task.done += (now_ - task.looked_at) * task.rate;
    task.looked_at = now_;
    task.rate = 1 / demand;
    heap_.push_back({now_ + std::max(0.0, task.seconds - task.done) * demand, t, ++task.version});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  touched_.clear();
}

}  // namespace tacc::graph
