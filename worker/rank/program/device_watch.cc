#include "worker/rank/program/device_watch.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {
namespace {

constexpr absl::Duration kLongestInterval = absl::Milliseconds(100);
constexpr int kLooksWithinPatience = 5;
constexpr size_t kStepsForMedian = 16;

// The clock of the wall may be set.
absl::Time SteadyNow() { return absl::UnixEpoch() + absl::Seconds(SteadySeconds()); }

std::string NodeText(const graph::Node& node) {
  return absl::StrCat(node.op.name(), node.module.empty() ? "" : " @", node.module);
}

// The first node with a module from `from` on towards `to`; `from` where there is none.
const graph::Node& NodeWithModule(const graph::Graph& graph, int from, int to) {
  for (int i = from; i != to; i += from < to ? 1 : -1) {
    if (!graph.nodes[i].module.empty()) return graph.nodes[i];
  }
  return graph.nodes[graph.nodes[to].module.empty() ? from : to];
}

std::string PlaceText(int64_t step, const DeviceWatch::Piece& piece) {
  const graph::Graph& graph = *piece.graph;
  const std::string call = absl::StrCat(step == 0 ? "the warm-up" : absl::StrCat("step ", step, ", call ", piece.call),
                                        ", graph ", graph.name);
  const int first = piece.first_node, last = piece.last_node;
  if (first == last) return absl::StrCat(call, ", node ", first, " (", NodeText(graph.nodes[first]), ")");
  return absl::StrCat(call, ", nodes ", first, " to ", last, ", replayed as one (",
                      NodeText(NodeWithModule(graph, first, last)), " to ",
                      NodeText(NodeWithModule(graph, last, first)), ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWatch>> DeviceWatch::Create(Device* device, Options options) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Arena> memory, device->AllocateHost(sizeof(uint32_t)));
  std::unique_ptr<DeviceWatch> watch(new DeviceWatch(device, std::move(options), std::move(memory)));
  watch->thread_ = std::thread([watch = watch.get()] { watch->Loop(); });
  return watch;
}

DeviceWatch::DeviceWatch(Device* device, Options options, std::unique_ptr<Arena> memory)
    : device_(*device),
      options_(std::move(options)),
      memory_(std::move(memory)),
      word_(reinterpret_cast<uint32_t*>(memory_->data())),
      still_since_(SteadyNow()) {}

DeviceWatch::~DeviceWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void DeviceWatch::EnterStep(int64_t step) {
  const absl::Time now = SteadyNow();
  absl::MutexLock lock(&mutex_);
  if (step_ > 0) steps_.push_back(now - step_since_);
  if (steps_.size() > kStepsForMedian) steps_.pop_front();
  step_ = step;
  step_since_ = now;
}

void DeviceWatch::Queued(const Piece& piece) {
  // It may have to wait for the device, which the thread must not.
  device_.Publish(++num_queued_, word_);
  absl::MutexLock lock(&mutex_);
  if (under_way_.empty()) still_since_ = SteadyNow();
  under_way_.push_back({num_queued_, step_, piece});
}

void DeviceWatch::Loop() {
  const absl::Duration interval = std::min(kLongestInterval, options_.patience / kLooksWithinPatience);
  while (true) {
    if (const absl::Status status = Look(SteadyNow()); !status.ok()) return options_.on_stop(status);
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), interval)) return;
  }
}

absl::Duration DeviceWatch::Patience() const {
  std::vector<absl::Duration> steps(steps_.begin(), steps_.end());
  if (steps.empty()) return options_.patience;
  const auto median = steps.begin() + static_cast<ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), median, steps.end());
  return std::max(options_.patience, kStepsOfPatience * *median);
}

absl::Status DeviceWatch::Look(absl::Time now) {
  const CollectiveProgress collectives = options_.collectives ? options_.collectives() : CollectiveProgress();
  const bool collectives_go_on =
      collectives.is_under_way || collectives.num_moves != std::exchange(num_collective_moves_, collectives.num_moves);
  const uint32_t ended = std::atomic_ref<uint32_t>(*word_).load();
  absl::MutexLock lock(&mutex_);
  bool goes_on = collectives_go_on;
  while (!under_way_.empty() && static_cast<int32_t>(ended - under_way_.front().number) >= 0) {
    ended_last_ = under_way_.front();
    under_way_.pop_front();
    goes_on = true;
  }
  if (goes_on || under_way_.empty() || under_way_.front().piece.waits) still_since_ = now;
  const absl::Duration patience = Patience();
  if (now - still_since_ <= patience) return absl::OkStatus();
  const Numbered& current = under_way_.front();
  return absl::DeadlineExceededError(absl::StrCat(
      "the device has stopped: nothing has ended on it for ", absl::FormatDuration(patience), "; it is in ",
      PlaceText(current.step, current.piece),
      ended_last_.has_value() ? absl::StrCat("; what ended last is ", PlaceText(ended_last_->step, ended_last_->piece))
                              : ""));
}

}  // namespace tacc::worker
