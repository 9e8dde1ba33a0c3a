#include "worker/rank/collectives/collectives.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/collective_limits.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/rank/collectives/sum_kernels.h"
#include "worker/rank/collectives/two_levels.h"

namespace tacc::worker {
namespace {

constexpr uint32_t kTag = 1;  // One for all collectives: messages between two ranks keep their order.
constexpr uint32_t kFirstChannelTag = 2;
// The largest that an all-reduce of which everyone is sent all may be.
constexpr int64_t kSmallAllReduceBytes = graph::kMaxWholeAllReduceElements * static_cast<int64_t>(sizeof(double));
// Plain exchanges whose messages are posted together.
constexpr size_t kMaxTogether = 16;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsMessage(const CollectiveCall& call) {
  return call.kind == CollectiveCall::Kind::kSend || call.kind == CollectiveCall::Kind::kReceive;
}

using Messages = std::vector<std::unique_ptr<Message>>;

absl::Status WaitAll(Messages& messages) {
  for (std::unique_ptr<Message>& message : messages) TACC_RETURN_IF_ERROR(message->Wait());
  messages.clear();
  return absl::OkStatus();
}

}  // namespace

// Runs one call on the thread that asks. Every message of a call has at most ChunkBytes, whichever way its two sides
// lie in memory, so that both sides cut alike.
class Collectives::Engine {
 public:
  Engine() : staging_(std::make_unique_for_overwrite<char[]>(kStagingBytes)) {}

  void Connect(Transport* transport) {
    transport_ = transport;
    for (int rank = 1; rank < transport->world(); ++rank)
      has_machines_ = has_machines_ || transport->machine_of(rank) != transport->machine_of(0);
  }

  int machine_of(int rank) const { return transport_ == nullptr ? 0 : transport_->machine_of(rank); }

  absl::Status Execute(const CollectiveCall& call) {
    switch (call.kind) {
      case CollectiveCall::Kind::kExchange:
        return Exchange(call);
      case CollectiveCall::Kind::kAllGather:
        return AllGather(call);
      case CollectiveCall::Kind::kReduceScatter:
        return ReduceScatter(call);
      case CollectiveCall::Kind::kAllReduce:
        return AllReduce(call);
      case CollectiveCall::Kind::kSend:
      case CollectiveCall::Kind::kReceive:
        return absl::InternalError("a message is posted, not executed");
    }
    return absl::InternalError("unknown kind of collective");
  }

  // Starts a message; it has ended when what is returned has.
  absl::StatusOr<std::unique_ptr<Message>> Post(const CollectiveCall& call) {
    const int peer = call.members[0];
    const uint32_t tag = kFirstChannelTag + call.channel;
    if (call.kind == CollectiveCall::Kind::kReceive) {
      return transport_->Receive(peer, tag, call.receive[0].data, call.receive[0].bytes());
    }
    bytes_sent_ += call.send[0].bytes();
    return transport_->Send(peer, tag, call.send[0].data, call.send[0].bytes());
  }

  // True for an exchange that needs no staging: several may be under way at once.
  bool IsPlain(const CollectiveCall& call) const {
    if (call.kind == CollectiveCall::Kind::kAllGather) return !LevelsOf(call).has_value() && IsContiguous(call);
    return call.kind == CollectiveCall::Kind::kExchange && IsContiguous(call);
  }
  // Starts what is plain; it has ended when the messages have.
  absl::Status Begin(const CollectiveCall& call, Messages& messages) {
    if (call.kind == CollectiveCall::Kind::kExchange) return PostContiguous(call, messages);
    return PostContiguous(ExchangeOf(call), messages);
  }

  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  static bool IsContiguous(const CollectiveCall& call) {
    const auto contiguous = [](const Region& region) { return region.IsContiguous(); };
    return std::all_of(call.send.begin(), call.send.end(), contiguous) &&
           std::all_of(call.receive.begin(), call.receive.end(), contiguous);
  }
  std::optional<TwoLevels> LevelsOf(const CollectiveCall& call) const {
    if (!has_machines_) return std::nullopt;
    return FindTwoLevels(call.members, call.me, [this](int rank) { return machine_of(rank); });
  }

  // For each member two chunks received and one packed to send; then the own chunk and the sum.
  static int64_t ChunkBytes(size_t num_members) {
    return std::max<int64_t>(kStagingBytes / (3 * static_cast<int64_t>(num_members) + 2) / 64 * 64, 64);
  }

  absl::Status Send(int peer, const char* data, int64_t bytes, Messages& messages) {
    TACC_ASSIGN_OR_RETURN(std::unique_ptr<Message> message, transport_->Send(peer, kTag, data, bytes));
    messages.push_back(std::move(message));
    bytes_sent_ += bytes;
    return absl::OkStatus();
  }

  absl::Status Receive(int peer, char* data, int64_t bytes, Messages& messages) {
    TACC_ASSIGN_OR_RETURN(std::unique_ptr<Message> message, transport_->Receive(peer, kTag, data, bytes));
    messages.push_back(std::move(message));
    return absl::OkStatus();
  }

  // Posts the messages between contiguous memory, all at once, and copies the own part.
  absl::Status PostContiguous(const CollectiveCall& call, Messages& messages) {
    const int n = static_cast<int>(call.members.size());
    const int64_t chunk = ChunkBytes(call.members.size());
    for (int i = 0; i < n; ++i) {
      const Region& to = call.receive[i];
      if (i == call.me || !to.IsContiguous()) continue;
      for (int64_t at = 0; at < to.bytes(); at += chunk) {
        TACC_RETURN_IF_ERROR(Receive(call.members[i], to.data + at, std::min(chunk, to.bytes() - at), messages));
      }
    }
    // Each rank starts with its right neighbour, so that not all send to the same one first.
    for (int k = 1; k < n; ++k) {
      const int i = (call.me + k) % n;
      const Region& from = call.send[i];
      if (!from.IsContiguous()) continue;
      for (int64_t at = 0; at < from.bytes(); at += chunk) {
        TACC_RETURN_IF_ERROR(Send(call.members[i], from.data + at, std::min(chunk, from.bytes() - at), messages));
      }
    }
    if (call.send[call.me].bytes() > 0) CopyRegion(call.send[call.me], call.receive[call.me]);
    return absl::OkStatus();
  }

  absl::Status Exchange(const CollectiveCall& call) {
    const int n = static_cast<int>(call.members.size());
    const int64_t chunk = ChunkBytes(call.members.size());
    Messages whole;
    TACC_RETURN_IF_ERROR(PostContiguous(call, whole));
    int64_t rounds = 0;
    for (int i = 0; i < n; ++i) {
      for (const Region* region : {&call.send[i], &call.receive[i]}) {
        if (i != call.me && !region->IsContiguous()) rounds = std::max(rounds, CeilDiv(region->bytes(), chunk));
      }
    }
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t at = round * chunk;
      Messages messages;
      const auto strided = [&](const Region& region) { return !region.IsContiguous() && region.bytes() > at; };
      for (int i = 0; i < n; ++i) {
        if (i == call.me || !strided(call.receive[i])) continue;
        TACC_RETURN_IF_ERROR(
            Receive(call.members[i], Stage(i, chunk), std::min(chunk, call.receive[i].bytes() - at), messages));
      }
      for (int i = 0; i < n; ++i) {
        if (i == call.me || !strided(call.send[i])) continue;
        const int64_t bytes = std::min(chunk, call.send[i].bytes() - at);
        PackRegion(call.send[i], at, bytes, Stage(n + i, chunk));
        TACC_RETURN_IF_ERROR(Send(call.members[i], Stage(n + i, chunk), bytes, messages));
      }
      TACC_RETURN_IF_ERROR(WaitAll(messages));
      for (int i = 0; i < n; ++i) {
        if (i == call.me || !strided(call.receive[i])) continue;
        UnpackRegion(Stage(i, chunk), at, std::min(chunk, call.receive[i].bytes() - at), call.receive[i]);
      }
    }
    return WaitAll(whole);
  }

  absl::Status AllGather(const CollectiveCall& call) {
    const std::optional<TwoLevels> levels = LevelsOf(call);
    if (!levels.has_value()) return Exchange(ExchangeOf(call));
    for (const std::vector<CollectiveCall>& level : LevelsOfAllGather(call, *levels)) {
      // What needs no staging is under way together.
      Messages messages;
      for (const CollectiveCall& step : level) {
        TACC_RETURN_IF_ERROR(IsContiguous(step) ? PostContiguous(step, messages) : Exchange(step));
      }
      TACC_RETURN_IF_ERROR(WaitAll(messages));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const CollectiveCall& call) {
    if (const std::optional<TwoLevels> levels = LevelsOf(call)) return ReduceScatter(call, *levels);
    const int n = static_cast<int>(call.members.size());
    const kernels::DType sum_type = SumType(call.send_dtype);
    const int64_t element = kernels::SizeOf(call.send_dtype);
    const int64_t sum_element = kernels::SizeOf(sum_type);
    const int64_t result_element = kernels::SizeOf(call.receive_dtype);
    const int64_t chunk = ChunkBytes(call.members.size());
    const int64_t chunk_elements = chunk / std::max(sum_element, element);
    const Region& result = call.receive[0];
    const int64_t my_elements = result.bytes() / result_element;
    int64_t rounds = CeilDiv(my_elements, chunk_elements);
    for (int i = 0; i < n; ++i) rounds = std::max(rounds, CeilDiv(call.send[i].bytes() / element, chunk_elements));

    const auto count = [&](int64_t elements, int64_t round) {
      return std::clamp<int64_t>(elements - round * chunk_elements, 0, chunk_elements);
    };
    // Staging: [0, n) and [n, 2n) received in even and odd rounds, [2n, 3n) packed to send, 3n the own part, 3n + 1 the
    // sum.
    Messages receives[2];
    const auto post_receives = [&](int64_t round) -> absl::Status {
      const int64_t elements = count(my_elements, round);
      if (elements == 0) return absl::OkStatus();
      for (int i = 0; i < n; ++i) {
        if (i == call.me) continue;
        TACC_RETURN_IF_ERROR(Receive(call.members[i], Stage(static_cast<int>(round % 2) * n + i, chunk),
                                     elements * element, receives[round % 2]));
      }
      return absl::OkStatus();
    };
    TACC_RETURN_IF_ERROR(post_receives(0));
    for (int64_t round = 0; round < rounds; ++round) {
      if (round + 1 < rounds) TACC_RETURN_IF_ERROR(post_receives(round + 1));
      Messages sends;
      for (int k = 1; k < n; ++k) {
        const int i = (call.me + k) % n;
        const Region& from = call.send[i];
        const int64_t bytes = count(from.bytes() / element, round) * element;
        if (bytes == 0) continue;
        const int64_t at = round * chunk_elements * element;
        const char* data = from.data + at;
        if (!from.IsContiguous()) {
          PackRegion(from, at, bytes, Stage(2 * n + i, chunk));
          data = Stage(2 * n + i, chunk);
        }
        TACC_RETURN_IF_ERROR(Send(call.members[i], data, bytes, sends));
      }
      TACC_RETURN_IF_ERROR(WaitAll(receives[round % 2]));
      // A result over the operand (small all-reduces) must not overtake its own sends.
      TACC_RETURN_IF_ERROR(WaitAll(sends));
      const int64_t elements = count(my_elements, round);
      if (elements == 0) continue;
      const int64_t first = round * chunk_elements;
      const Region& own = call.send[call.me];
      const char* own_data = own.data + first * element;
      if (!own.IsContiguous()) {
        PackRegion(own, first * element, elements * element, Stage(3 * n, chunk));
        own_data = Stage(3 * n, chunk);
      }
      // The accumulator may be the result itself, but not while the own part that it covers is still to be added.
      const bool direct = result.IsContiguous() && call.receive_dtype == sum_type &&
                          (call.me == 0 || own_data != result.data + first * element);
      char* sum = direct ? result.data + first * sum_element : Stage(3 * n + 1, chunk);
      for (int i = 0; i < n; ++i) {
        const char* x = i == call.me ? own_data : Stage(static_cast<int>(round % 2) * n + i, chunk);
        if (i > 0) {
          AddElements(call.send_dtype, x, sum, elements);
        } else if (x != sum) {
          CopyElements(call.send_dtype, x, sum, elements);
        }
      }
      if (direct) continue;
      const char* rounded = sum;
      if (call.receive_dtype != sum_type) {
        RoundElements(sum_type, sum, call.receive_dtype, Stage(3 * n, chunk),
                      elements);  // The own part has been added.
        rounded = Stage(3 * n, chunk);
      }
      UnpackRegion(rounded, first * result_element, elements * result_element, result);
    }
    return absl::OkStatus();
  }

  // In rounds of a chunk of each part. Within the machine: what this rank's place on each machine is sent, from mates;
  // between machines: their sums, from peers.
  absl::Status ReduceScatter(const CollectiveCall& call, const TwoLevels& levels) {
    const int machines = levels.num_machines(), mates = levels.num_mates();
    const int64_t element = kernels::SizeOf(call.send_dtype);
    const int64_t chunk = ChunkBytes(call.members.size());
    const int64_t result_element = kernels::SizeOf(call.receive_dtype);
    const int64_t chunk_elements =
        chunk / std::max({static_cast<int64_t>(kernels::SizeOf(SumType(call.send_dtype))), element, result_element});
    int64_t rounds = 0;
    for (const Region& region : call.send) rounds = std::max(rounds, CeilDiv(region.bytes() / element, chunk_elements));
    // Staging, in chunks: from mate j for machine k at k * mates + j, own parts among them; packed to send behind, then
    // what comes from machines, the own sum among them, and a sum.
    const int packed = machines * mates, partial = 2 * packed, sum_slot = partial + machines;
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t first = round * chunk_elements;
      const auto count = [&](int machine, int place) {
        const int64_t elements = call.send[levels.Member(machine, place)].bytes() / element;
        return std::clamp<int64_t>(elements - first, 0, chunk_elements);
      };
      // The part of machine k's place j, packed where it is not contiguous.
      const auto own = [&](int k, int j) -> const char* {
        const Region& region = call.send[levels.Member(k, j)];
        if (region.IsContiguous()) return region.data + first * element;
        char* const at = Stage(packed + k * mates + j, chunk);
        PackRegion(region, first * element, count(k, j) * element, at);
        return at;
      };
      Messages messages;
      std::vector<const char*> mine(machines);
      for (int k = 0; k < machines; ++k) {
        for (int j = 0; j < mates; ++j) {
          if (j == levels.place || count(k, levels.place) == 0) continue;
          TACC_RETURN_IF_ERROR(Receive(call.members[levels.Member(levels.machine, j)], Stage(k * mates + j, chunk),
                                       count(k, levels.place) * element, messages));
        }
      }
      for (int k = 0; k < machines; ++k) {
        if (count(k, levels.place) > 0) mine[k] = own(k, levels.place);
        for (int i = 1; i < mates; ++i) {
          const int j = (levels.place + i) % mates;
          if (count(k, j) == 0) continue;
          TACC_RETURN_IF_ERROR(
              Send(call.members[levels.Member(levels.machine, j)], own(k, j), count(k, j) * element, messages));
        }
      }
      TACC_RETURN_IF_ERROR(WaitAll(messages));
      const int64_t elements = count(levels.machine, levels.place);
      for (int k = 0; k < machines; ++k) {
        if (k == levels.machine || elements == 0) continue;
        TACC_RETURN_IF_ERROR(Receive(call.members[levels.Member(k, levels.place)], Stage(partial + k, chunk),
                                     elements * element, messages));
      }
      for (int i = 0; i < machines; ++i) {
        const int k = (levels.machine + i) % machines;  // The own sum first, which nobody waits for.
        std::vector<const char*> parts;
        for (int j = 0; j < mates; ++j) parts.push_back(j == levels.place ? mine[k] : Stage(k * mates + j, chunk));
        // A sum that is sent has a place of its own until all are: the first mate's part, which has been added.
        char* const to = k == levels.machine ? Stage(partial + k, chunk) : Stage(packed + k * mates, chunk);
        SumInOrder(call.send_dtype, parts, count(k, levels.place), Stage(sum_slot, chunk), call.send_dtype, to);
        if (k == levels.machine || count(k, levels.place) == 0) continue;
        TACC_RETURN_IF_ERROR(
            Send(call.members[levels.Member(k, levels.place)], to, count(k, levels.place) * element, messages));
      }
      TACC_RETURN_IF_ERROR(WaitAll(messages));
      if (elements == 0) continue;
      std::vector<const char*> sums;
      for (int k = 0; k < machines; ++k) sums.push_back(Stage(partial + k, chunk));
      // All that was received has been added.
      SumInOrder(call.send_dtype, sums, elements, Stage(sum_slot, chunk), call.receive_dtype, Stage(0, chunk));
      UnpackRegion(Stage(0, chunk), first * result_element, elements * result_element, call.receive[0]);
    }
    return absl::OkStatus();
  }

  // `to` = the sum of `parts` in their order, by way of `sum`, which is another place than all of them; of `elements`.
  static void SumInOrder(kernels::DType dtype, const std::vector<const char*>& parts, int64_t elements, char* sum,
                         kernels::DType to_dtype, char* to) {
    if (elements == 0) return;
    CopyElements(dtype, parts[0], sum, elements);
    for (size_t i = 1; i < parts.size(); ++i) AddElements(dtype, parts[i], sum, elements);
    RoundElements(SumType(dtype), sum, to_dtype, to, elements);
  }

  // Of few elements: all have all of a level.
  absl::Status SmallAllReduce(const CollectiveCall& call, const TwoLevels& levels) {
    CollectiveCall inside = call, across = call;
    inside.members.clear();
    across.members.clear();
    for (int index : levels.machines[levels.machine]) inside.members.push_back(call.members[index]);
    for (int k = 0; k < levels.num_machines(); ++k)
      across.members.push_back(call.members[levels.Member(k, levels.place)]);
    inside.me = levels.place;
    across.me = levels.machine;
    inside.kind = across.kind = CollectiveCall::Kind::kReduceScatter;
    const Region sum = Flat(small_sum_, call.send[0].bytes());
    inside.receive_dtype = call.send_dtype;
    inside.receive = {sum};
    inside.send.assign(inside.members.size(), call.send[0]);
    across.send.assign(across.members.size(), sum);
    TACC_RETURN_IF_ERROR(ReduceScatter(inside));
    return ReduceScatter(across);
  }

  absl::Status AllReduce(const CollectiveCall& call) {
    const int n = static_cast<int>(call.members.size());
    const int64_t element = kernels::SizeOf(call.send_dtype);
    const int64_t result_element = kernels::SizeOf(call.receive_dtype);
    const int64_t elements = call.send[0].bytes() / element;
    const int num_machines =
        has_machines_ ? NumMachines(call.members, [this](int rank) { return machine_of(rank); }) : 1;
    // All of it is one chunk then: 3 n + 2 of them, of at most 8 bytes an element, are within the staging.
    const bool is_small = elements <= graph::WholeAllReduceElements(n, num_machines);
    if (const std::optional<TwoLevels> levels = LevelsOf(call); levels.has_value()) {
      if (is_small) return SmallAllReduce(call, *levels);
      if (call.send_dtype == call.receive_dtype) {
        for (const CollectiveCall& step : LevelsOfAllReduce(call, *levels)) TACC_RETURN_IF_ERROR(Execute(step));
        return absl::OkStatus();
      }
    }
    CollectiveCall sum = call;
    sum.kind = CollectiveCall::Kind::kReduceScatter;
    if (n == 1 || is_small) {
      sum.send.assign(n, call.send[0]);
      return ReduceScatter(sum);
    }
    const int64_t piece = graph::AllReducePiece(elements, n);
    const auto part = [&](const Region& whole, int i, int64_t size) {
      const int64_t begin = std::min(elements, i * piece), end = std::min(elements, begin + piece);
      return Flat(whole.data + begin * size, (end - begin) * size);
    };
    CollectiveCall gather = call;
    gather.kind = CollectiveCall::Kind::kAllGather;
    sum.send.clear();
    gather.receive.clear();
    for (int i = 0; i < n; ++i) {
      sum.send.push_back(part(call.send[0], i, element));
      gather.receive.push_back(part(call.receive[0], i, result_element));
    }
    sum.receive = {gather.receive[call.me]};
    gather.send = sum.receive;
    TACC_RETURN_IF_ERROR(ReduceScatter(sum));
    return AllGather(gather);
  }

  char* Stage(int slot, int64_t chunk) const { return staging_.get() + slot * chunk; }

  Transport* transport_ = nullptr;
  bool has_machines_ = false;  // More than one.
  std::unique_ptr<char[]> staging_;
  alignas(64) char small_sum_[kSmallAllReduceBytes];  // Of a machine's ranks.
  int64_t bytes_sent_ = 0;
};

Collectives::Collectives(int rank, int world) : rank_(rank), world_(world), engine_(std::make_unique<Engine>()) {}

void Collectives::Connect(Transport* transport) { engine_->Connect(transport); }

int Collectives::machine_of(int rank) const { return engine_->machine_of(rank); }

Collectives::~Collectives() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Collectives::Loop() {
  while (true) {
    // One call, or several plain exchanges in a row: their messages travel together, which saves a wake-up each.
    std::vector<const CollectiveCall*> calls;
    const CollectiveCall* message = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Collectives::HasWork));
      if (stop_) return;
      if (IsMessage(*queue_.front())) {
        message = queue_.front();
        queue_.pop_front();
      }
      for (const CollectiveCall* call : queue_) {
        if (message != nullptr) break;
        if (!calls.empty() &&
            (!engine_->IsPlain(*call) || !engine_->IsPlain(*calls.front()) || calls.size() == kMaxTogether))
          break;
        calls.push_back(call);
      }
    }
    if (message != nullptr) {
      Post(message);
      continue;
    }
    double begin = SteadySeconds();
    std::vector<Messages> messages(calls.size());
    std::vector<int64_t> sent_before = {engine_->bytes_sent()};
    absl::Status status;
    if (calls.size() > 1) {
      for (size_t i = 0; i < calls.size(); ++i) {
        status.Update(engine_->Begin(*calls[i], messages[i]));
        sent_before.push_back(engine_->bytes_sent());
      }
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (status.ok()) status = calls.size() > 1 ? WaitAll(messages[i]) : engine_->Execute(*calls[i]);
      const double end = SteadySeconds();
      const int64_t sent = (calls.size() > 1 ? sent_before[i + 1] : engine_->bytes_sent()) - sent_before[i];
      absl::MutexLock lock(&mutex_);
      queue_.pop_front();
      ++num_done_;
      status_.Update(status);
      stats_.busy_seconds += end - begin;
      stats_.bytes_sent = engine_->bytes_sent();
      if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, end, sent};
      begin = end;
      if (status_.ok()) continue;
      // What was to follow cannot be trusted to meet its counterpart.
      num_done_ = num_started_;
      queue_.clear();
      break;
    }
  }
}

void Collectives::Post(const CollectiveCall* call) {
  const double begin = SteadySeconds();
  const int64_t sent_before = engine_->bytes_sent();
  absl::StatusOr<std::unique_ptr<Message>> message = engine_->Post(*call);
  const int64_t sent = engine_->bytes_sent() - sent_before;
  absl::MutexLock lock(&mutex_);
  status_.Update(message.status());
  if (message.ok()) posted_[call] = *std::move(message);
  stats_.bytes_sent = engine_->bytes_sent();
  ++num_done_;
  if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, begin, sent};
  if (status_.ok()) return;
  num_done_ = num_started_;
  queue_.clear();
}

absl::Status Collectives::Finish(const CollectiveCall& call, Ticket ticket) {
  TACC_RETURN_IF_ERROR(Wait(ticket));
  std::unique_ptr<Message> message;
  {
    absl::MutexLock lock(&mutex_);
    message = std::move(posted_[&call]);
    posted_.erase(&call);
  }
  if (message == nullptr) return absl::InternalError("the message has not been started");
  const double begin = SteadySeconds();
  const absl::Status status = message->Wait();
  const double end = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  if (CollectiveTime* time = TimeOf(ticket); time != nullptr) time->end = end;
  stats_.wait_seconds += end - begin;
  status_.Update(status);
  return status_;
}

absl::StatusOr<Collectives::Ticket> Collectives::Start(const CollectiveCall* call) {
  if (IsMessage(*call)) {
    bool is_idle = false;
    Ticket ticket = 0;
    {
      absl::MutexLock lock(&mutex_);
      is_idle = num_done_ == num_started_ && status_.ok();
      if (is_idle) {
        ++stats_.num_calls;
        ticket = ++num_started_;
      }
    }
    if (is_idle) {
      Post(call);
      return ticket;
    }
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  absl::MutexLock lock(&mutex_);
  ++stats_.num_calls;
  ++num_started_;
  if (status_.ok()) {
    queue_.push_back(call);
  } else {
    num_done_ = num_started_;
  }
  return num_started_;
}

absl::Status Collectives::Wait(Ticket ticket) {
  const double begin = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  const auto done = [this, ticket]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_done_ >= ticket; };
  mutex_.Await(absl::Condition(&done));
  stats_.wait_seconds += SteadySeconds() - begin;
  return status_;
}

absl::Status Collectives::Run(const CollectiveCall& call) {
  bool is_idle = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    is_idle = num_done_ == num_started_;
    if (is_idle) {
      ++stats_.num_calls;
      ++num_started_;
    }
  }
  if (!is_idle) {
    TACC_ASSIGN_OR_RETURN(const Ticket ticket, Start(&call));
    return Wait(ticket);
  }
  const double begin = SteadySeconds();
  const int64_t sent_before = engine_->bytes_sent();
  const absl::Status status = engine_->Execute(call);
  const double end = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  ++num_done_;
  status_.Update(status);
  stats_.busy_seconds += end - begin;
  stats_.wait_seconds += end - begin;
  stats_.bytes_sent = engine_->bytes_sent();
  if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, end, stats_.bytes_sent - sent_before};
  return status_;
}

absl::Status Collectives::StartTiming() {
  absl::MutexLock lock(&mutex_);
  is_timing_ = true;
  first_timed_ = num_started_ + 1;
  times_.clear();
  return absl::OkStatus();
}

CollectiveTime* Collectives::TimeOf(Ticket ticket) {
  if (!is_timing_ || ticket < first_timed_) return nullptr;
  const size_t index = static_cast<size_t>(ticket - first_timed_);
  if (index >= times_.size()) times_.resize(index + 1);
  return &times_[index];
}

absl::StatusOr<std::vector<CollectiveTime>> Collectives::TakeTimes(const DeviceClock&) {
  absl::MutexLock lock(&mutex_);
  is_timing_ = false;
  return std::exchange(times_, {});
}

absl::StatusOr<std::vector<std::vector<uint64_t>>> Collectives::GatherHost(const std::vector<uint64_t>& values) {
  std::vector<std::vector<uint64_t>> all(world_, std::vector<uint64_t>(values.size()));
  all[rank_] = values;
  if (world_ == 1) return all;
  CollectiveCall call;
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(uint64_t));
  call.kind = CollectiveCall::Kind::kAllGather;
  call.send = {Flat(all[rank_].data(), bytes)};
  for (int r = 0; r < world_; ++r) {
    call.members.push_back(r);
    call.receive.push_back(Flat(all[r].data(), bytes));
  }
  call.me = rank_;
  TACC_RETURN_IF_ERROR(Run(call));
  return all;
}

absl::Status Collectives::Barrier() { return GatherHost({0}).status(); }

CollectiveStats Collectives::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tacc::worker
