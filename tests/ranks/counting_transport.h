#ifndef TACC_TESTS_RANKS_COUNTING_TRANSPORT_H_
#define TACC_TESTS_RANKS_COUNTING_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/rank/collectives/transport.h"

namespace tacc::worker {

// Counts what a rank gives to its transport to send.
class CountingTransport : public Transport {
 public:
  explicit CountingTransport(std::unique_ptr<Transport> transport)
      : transport_(std::move(transport)), sent_to_(transport_->world()) {}

  int64_t sent_messages() const { return sent_messages_; }
  int64_t sent_bytes() const { return sent_bytes_; }
  // Of these: to that rank; to ranks on other machines.
  int64_t sent_to(int peer) const { return sent_to_[peer]; }
  int64_t crossed_bytes() const { return crossed_bytes_; }

  int rank() const override { return transport_->rank(); }
  int world() const override { return transport_->world(); }
  int machine_of(int rank) const override { return transport_->machine_of(rank); }
  absl::StatusOr<std::unique_ptr<Message>> Send(int peer, uint32_t tag, const void* data, size_t num_bytes) override {
    ++sent_messages_;
    sent_bytes_ += static_cast<int64_t>(num_bytes);
    sent_to_[peer] += static_cast<int64_t>(num_bytes);
    if (machine_of(peer) != machine_of(rank())) crossed_bytes_ += static_cast<int64_t>(num_bytes);
    return transport_->Send(peer, tag, data, num_bytes);
  }
  absl::StatusOr<std::unique_ptr<Message>> Receive(int peer, uint32_t tag, void* data, size_t num_bytes) override {
    return transport_->Receive(peer, tag, data, num_bytes);
  }
  absl::Status WaitForAll() override { return transport_->WaitForAll(); }

 private:
  const std::unique_ptr<Transport> transport_;
  std::vector<std::atomic<int64_t>> sent_to_;
  std::atomic<int64_t> sent_messages_ = 0, sent_bytes_ = 0, crossed_bytes_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_TESTS_RANKS_COUNTING_TRANSPORT_H_
