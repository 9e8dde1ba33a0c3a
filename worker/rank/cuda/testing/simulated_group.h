// Included by simulated_communication.cc: collectives of a group, as NCCL's.
#ifndef TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GROUP_H_
#define TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GROUP_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/sum_kernels.h"
#include "worker/rank/cuda/testing/simulated_stream.h"

namespace tacc::worker {

// Of a group, by its ranks.
inline uint64_t IdOf(const std::vector<int>& ranks) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211ull;
  return hash;
}

class SimulatedCommunication::SimulatedGroup : public GroupCollectives {
 public:
  SimulatedGroup(Stream* stream, std::vector<int> members, int me)
      : stream_(*stream), members_(std::move(members)), me_(me) {}

  // The members that a split gave.
  absl::Status Connect(const std::vector<int>& members) {
    if (members != members_)
      return absl::InternalError(absl::StrCat("NCCL: a split of ", RanksText(members), " for ", RanksText(members_)));
    is_connected_ = true;
    return absl::OkStatus();
  }

  absl::Status AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) override {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t row = 0; row < rows; ++row) {
      const char* const from = Bytes(send) + row * bytes;
      char* const to = Bytes(receive) + row * n * bytes;
      TACC_RETURN_IF_ERROR(CheckMemory(from, bytes, to, n * bytes, to + me_ * bytes));
      TACC_RETURN_IF_ERROR(Call({Header::kAllGather, bytes, 0}, [=, this](const Stream::Pass& pass) {
        std::memmove(to + me_ * bytes, from, bytes);
        return PassAround(pass, {to, n * bytes}, bytes);
      }));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                             int64_t rows) override {
    const int64_t n = static_cast<int64_t>(members_.size()), bytes = elements * kernels::SizeOf(dtype);
    for (int64_t row = 0; row < rows; ++row) {
      char* const from = Bytes(send) + row * n * bytes;
      char* const to = Bytes(receive) + row * bytes;
      TACC_RETURN_IF_ERROR(CheckMemory(to, bytes, from, n * bytes, from + me_ * bytes));
      TACC_RETURN_IF_ERROR(Call({Header::kReduceScatter, bytes, static_cast<int64_t>(dtype)},
                                [=, this](const Stream::Pass& pass) -> absl::Status {
                                  std::vector<char> sums(from, from + n * bytes);
                                  TACC_RETURN_IF_ERROR(SumAround(pass, {sums.data(), n * bytes}, bytes, dtype));
                                  std::memcpy(to, sums.data() + me_ * bytes, bytes);
                                  return absl::OkStatus();
                                }));
    }
    return absl::OkStatus();
  }

  absl::Status AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) override {
    const int64_t bytes = elements * kernels::SizeOf(dtype);
    TACC_RETURN_IF_ERROR(CheckMemory(send, bytes, receive, bytes, receive));
    return Call({Header::kAllReduce, bytes, static_cast<int64_t>(dtype)},
                [=, this](const Stream::Pass& pass) -> absl::Status {
                  const int64_t n = static_cast<int64_t>(members_.size());
                  const int64_t part = (elements + n - 1) / n * kernels::SizeOf(dtype);
                  std::memmove(receive, send, bytes);
                  TACC_RETURN_IF_ERROR(SumAround(pass, {receive, bytes}, part, dtype));
                  return PassAround(pass, {receive, bytes}, part);
                });
  }

 private:
  // What members must agree on.
  struct Header {
    enum Kind : int64_t { kAllGather, kReduceScatter, kAllReduce };
    int64_t kind = 0, bytes = 0, dtype = 0, number = 0, program_call = 0, node = 0;
    uint64_t group = 0;
    bool operator==(const Header&) const = default;
  };
  static_assert(sizeof(Header) == kHeaderBytes);

  static char* Bytes(const void* data) { return const_cast<char*>(static_cast<const char*>(data)); }

  // `part` lies apart from `whole`, or is the place in it.
  static absl::Status CheckMemory(const void* part, int64_t part_bytes, const void* whole, int64_t whole_bytes,
                                  const void* place) {
    if (part_bytes <= 0) return absl::InternalError("a collective of nothing");
    const bool apart = Bytes(part) + part_bytes <= Bytes(whole) || Bytes(whole) + whole_bytes <= Bytes(part);
    return apart || part == place ? absl::OkStatus() : absl::InternalError("NCCL's memory overlaps, and not in place");
  }

  // Memory cut into a part for each member; the last ones may be shorter or empty.
  struct Whole {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // The part of the member `i` places after this one.
  std::pair<char*, int64_t> PartOf(const Whole& whole, int64_t i, int64_t part) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    const int64_t begin = std::min(((me_ + i) % n + n) % n * part, whole.bytes);
    return {Bytes(whole.data) + begin, std::min(part, whole.bytes - begin)};
  }
  // Passes on a part, which travels as long as any.
  static absl::Status PassPart(const Stream::Pass& pass, int64_t part, std::pair<const char*, int64_t> send,
                               std::pair<char*, int64_t> receive) {
    std::vector<char> out(part), in(part);
    std::memcpy(out.data(), send.first, send.second);
    TACC_RETURN_IF_ERROR(pass(out.data(), in.data(), part));
    std::memcpy(receive.first, in.data(), receive.second);
    return absl::OkStatus();
  }

  // Each member's part, from it to all others.
  absl::Status PassAround(const Stream::Pass& pass, const Whole& whole, int64_t part) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t step = 0; step + 1 < n; ++step) {
      TACC_RETURN_IF_ERROR(PassPart(pass, part, PartOf(whole, -step, part), PartOf(whole, -step - 1, part)));
    }
    return absl::OkStatus();
  }

  // Each member's part, summed from the member after it around to itself; the other parts are partial sums then.
  absl::Status SumAround(const Stream::Pass& pass, const Whole& whole, int64_t part, kernels::DType dtype) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t step = 0; step + 1 < n; ++step) {
      const auto [own, bytes] = PartOf(whole, -step - 2, part);
      const int64_t elements = bytes / kernels::SizeOf(dtype);
      std::vector<char> partial(bytes), wide(elements * kernels::SizeOf(SumType(dtype)));
      TACC_RETURN_IF_ERROR(PassPart(pass, part, PartOf(whole, -step - 1, part), {partial.data(), bytes}));
      CopyElements(dtype, partial.data(), wide.data(), elements);
      AddElements(dtype, own, wide.data(), elements);
      RoundElements(SumType(dtype), wide.data(), dtype, own, elements);
    }
    return absl::OkStatus();
  }

  // Queues `around`, after neighbours have told each other that they make the same call.
  absl::Status Call(Header header, std::function<absl::Status(const Stream::Pass&)> around) {
    if (!is_connected_) return absl::InternalError("NCCL: a collective of a group that no split has made");
    if (stream_.is_recording() && !has_called_)
      return absl::InternalError("NCCL: the first call of a group, in which its members connect, is recorded");
    has_called_ = true;
    const int n = static_cast<int>(members_.size()), before = (me_ + n - 1) % n;
    std::tie(header.program_call, header.node) = stream_.CallAndNode();
    header.group = IdOf(members_);
    return stream_.QueueRing(
        members_[(me_ + 1) % n], members_[before],
        [=, this, around = std::move(around)](const Stream::Pass& pass) -> absl::Status {
          Header mine = header, theirs;
          mine.number = num_calls_++;
          if (members_.size() == 1) return around(pass);  // Which passes on nothing.
          TACC_RETURN_IF_ERROR(pass(&mine, &theirs, sizeof(Header)));
          if (theirs == mine) return around(pass);
          return absl::InternalError(absl::StrCat("NCCL: ranks ", members_[me_], " and ", members_[before],
                                                  " call different collectives of their group"));
        });
  }

  Stream& stream_;
  const std::vector<int> members_;
  const int me_;
  bool is_connected_ = false, has_called_ = false;
  int64_t num_calls_ = 0;  // Of the queue's thread.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GROUP_H_
