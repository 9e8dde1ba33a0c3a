#include "worker/rank/cuda/collectives/check_collectives.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/collective_limits.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/sum_kernels.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using Kind = CollectiveCall::Kind;

constexpr int kReplays = 3;
// Between what is sent and what comes, and around each, so that what is written beside shows.
constexpr int64_t kGap = 256;
constexpr char kUntouched = '\x5a';

// A kind of call and how its parts lie.
struct Shape {
  Kind kind = Kind::kAllReduce;
  std::string title;
  DType in = DType::kF32, out = DType::kF32;
  int64_t elements = 0;  // Of a part; of an all-reduce, of all.
  int64_t rows = 1;      // Parts lie side by side in so many, or of an exchange with gaps between them.
  bool is_uneven = false;
  bool is_in_place = false;
  std::vector<int> members;
};

// A rank's memory and the call on it: regions are in `image`.
struct Layout {
  std::vector<char> image;
  CollectiveCall call;
};

bool IsMessage(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }
bool IsSum(Kind kind) { return kind == Kind::kReduceScatter || kind == Kind::kAllReduce; }

// Takes memory of an image that is not there yet: offsets stand for addresses.
class Space {
 public:
  // Where so many bytes begin.
  int64_t Take(int64_t bytes) {
    const int64_t begin = end_ + kGap;
    end_ = (begin + bytes + kGap - 1) / kGap * kGap;
    return begin;
  }
  int64_t bytes() const { return end_ + kGap; }

 private:
  int64_t end_ = 0;
};

// A region at an offset.
struct Place {
  int64_t offset = 0, runs = 1, run_bytes = 0, stride_bytes = 0;
};

Place FlatPlace(int64_t offset, int64_t bytes) { return {offset, bytes > 0 ? 1 : 0, bytes, bytes}; }

// n parts, one for each member: side by side in rows, or one behind the other where they are uneven.
std::vector<Place> Parts(const Shape& shape, DType dtype, Space& space) {
  const int64_t n = static_cast<int64_t>(shape.members.size()), size = kernels::SizeOf(dtype);
  std::vector<Place> parts;
  if (shape.is_uneven) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < n; ++i) {
      parts.push_back(FlatPlace(bytes, (shape.elements - 7 * i) * size));
      bytes += parts.back().run_bytes;
    }
    const int64_t begin = space.Take(bytes);
    for (Place& part : parts) part.offset += begin;
    return parts;
  }
  const int64_t run_bytes = shape.elements / shape.rows * size, stride = n * run_bytes;
  const int64_t begin = space.Take(shape.rows * stride);
  for (int64_t i = 0; i < n; ++i) {
    parts.push_back(shape.rows == 1 ? FlatPlace(begin + i * run_bytes, run_bytes)
                                    : Place{begin + i * run_bytes, shape.rows, run_bytes, stride});
  }
  return parts;
}

// What member `from` sends member `to` of an exchange, in memory of its own.
Place ExchangePart(const Shape& shape, int64_t from, int64_t to, Space& space) {
  const int64_t elements = shape.elements + (shape.is_uneven ? 30 * ((3 * from + to) % 4) : 0);
  const int64_t run_bytes = elements / shape.rows * kernels::SizeOf(shape.in);
  if (shape.rows == 1) return FlatPlace(space.Take(run_bytes), run_bytes);
  const int64_t stride = run_bytes + 3 * kernels::SizeOf(shape.in);
  return {space.Take(shape.rows * stride), shape.rows, run_bytes, stride};
}

// Exact in every dtype, and different on each rank and in each round.
int64_t Number(int rank, int round, size_t part, int64_t index) {
  uint64_t x = static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u +
               static_cast<uint64_t>(rank + 1) * 0xC2B2AE3D27D4EB4Fu +
               static_cast<uint64_t>(round) * 0x165667B19E3779F9u + part * 0x27D4EB2F165667C5u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<int64_t>((x >> 33) % 255) - 127;
}

// Elements of a dtype; floats in sixteenths.
std::vector<char> Numbers(DType dtype, int64_t n, int rank, int round, size_t part) {
  std::vector<char> bytes(n * kernels::SizeOf(dtype));
  std::vector<double> wide(n);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t number = Number(rank, round, part, i);
    wide[i] = static_cast<double>(number) / 16;
    const int32_t narrow = static_cast<int32_t>(number);
    if (dtype == DType::kI32) std::memcpy(bytes.data() + i * sizeof(narrow), &narrow, sizeof(narrow));
    if (dtype == DType::kI64) std::memcpy(bytes.data() + i * sizeof(number), &number, sizeof(number));
  }
  if (kernels::IsFloat(dtype)) RoundElements(DType::kF64, wide.data(), dtype, bytes.data(), n);
  return bytes;
}

template <typename T>
double NumberAt(const char* at) {
  T number;
  std::memcpy(&number, at, sizeof(number));
  return static_cast<double>(number);
}

std::vector<double> Wide(DType dtype, const std::vector<char>& bytes) {
  const int64_t n = static_cast<int64_t>(bytes.size()) / kernels::SizeOf(dtype);
  const DType sum_type = SumType(dtype);
  std::vector<char> sums(n * kernels::SizeOf(sum_type));
  CopyElements(dtype, bytes.data(), sums.data(), n);
  std::vector<double> wide(n);
  for (int64_t i = 0; i < n; ++i) {
    const char* const at = sums.data() + i * kernels::SizeOf(sum_type);
    if (sum_type == DType::kI32) wide[i] = NumberAt<int32_t>(at);
    if (sum_type == DType::kI64) wide[i] = NumberAt<int64_t>(at);
    if (sum_type == DType::kF32) wide[i] = NumberAt<float>(at);
    if (sum_type == DType::kF64) wide[i] = NumberAt<double>(at);
  }
  return wide;
}

std::vector<char> Packed(const Region& region) {
  std::vector<char> bytes(region.bytes());
  PackRegion(region, 0, region.bytes(), bytes.data());
  return bytes;
}

// What the member that is `rank` has in the round, before the call.
Layout Lay(const Shape& shape, int rank, int round) {
  Layout layout;
  CollectiveCall& call = layout.call;
  call.kind = shape.kind;
  call.members = shape.members;
  call.me = static_cast<int>(std::find(shape.members.begin(), shape.members.end(), rank) - shape.members.begin());
  call.send_dtype = shape.in;
  call.receive_dtype = shape.out;
  const int64_t n = static_cast<int64_t>(shape.members.size());
  Space space;
  std::vector<Place> send, receive;
  const auto flat = [&](int64_t elements, DType dtype) {
    const int64_t bytes = elements * kernels::SizeOf(dtype);
    return FlatPlace(space.Take(bytes), bytes);
  };
  const int64_t mine = shape.elements / shape.rows * shape.rows - (shape.is_uneven ? 7 * call.me : 0);
  switch (shape.kind) {
    case Kind::kAllGather:
      receive = Parts(shape, shape.in, space);
      send = {shape.is_in_place ? receive[call.me] : flat(mine, shape.in)};
      break;
    case Kind::kReduceScatter:
      send = Parts(shape, shape.in, space);
      receive = {flat(mine, shape.out)};
      break;
    case Kind::kAllReduce:
      send = {flat(shape.elements, shape.in)};
      receive = shape.is_in_place ? send : std::vector<Place>{flat(shape.elements, shape.out)};
      break;
    case Kind::kExchange:
      for (int64_t i = 0; i < n; ++i) send.push_back(ExchangePart(shape, call.me, i, space));
      for (int64_t i = 0; i < n; ++i) receive.push_back(ExchangePart(shape, i, call.me, space));
      break;
    case Kind::kSend:  // To the next in the ring, from the one before: the layout of both calls.
    case Kind::kReceive:
      send = {flat(shape.elements, shape.in)};
      receive = {flat(shape.elements, shape.in)};
      break;
  }
  layout.image.assign(space.bytes(), kUntouched);
  const auto regions = [&](const std::vector<Place>& places) {
    std::vector<Region> found;
    for (const Place& place : places)
      found.push_back({layout.image.data() + place.offset, place.runs, place.run_bytes, place.stride_bytes});
    return found;
  };
  call.send = regions(send);
  call.receive = regions(receive);
  for (size_t part = 0; part < call.send.size(); ++part) {
    const Region& region = call.send[part];
    const std::vector<char> numbers = Numbers(shape.in, region.bytes() / kernels::SizeOf(shape.in), rank, round, part);
    UnpackRegion(numbers.data(), 0, region.bytes(), region);
  }
  return layout;
}

double Epsilon(DType dtype) {
  return dtype == DType::kBF16 ? std::ldexp(1.0, -8) : dtype == DType::kF16 ? std::ldexp(1.0, -11) : 0;
}

// Holds a result to the sum of all members' numbers: exactly, but where the library rounds to 16 bits on its way around
// all members. Empty, or what is wrong.
std::string CheckSum(const Shape& shape, const Layout& mine, const std::vector<char>& result, int round) {
  std::vector<double> sum, size;
  for (const int member : shape.members) {
    const Layout theirs = Lay(shape, member, round);
    const Region& part = theirs.call.send[shape.kind == Kind::kAllReduce ? 0 : mine.call.me];
    const std::vector<double> numbers = Wide(shape.in, Packed(part));
    sum.resize(numbers.size());
    size.resize(numbers.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      sum[i] += numbers[i];
      size[i] += std::abs(numbers[i]);
    }
  }
  const std::vector<double> got = Wide(shape.out, result);
  const double n = static_cast<double>(shape.members.size());
  const double epsilon = n > 1 ? n * std::max(Epsilon(shape.in), Epsilon(shape.out)) : 0;
  for (size_t i = 0; i < sum.size(); ++i) {
    if (!(std::abs(got[i] - sum[i]) <= epsilon * size[i])) {
      return absl::StrCat("element ", i, " of ", sum.size(), " is ", got[i], ", not ", sum[i],
                          ", from which it may be ", epsilon * size[i]);
    }
  }
  return "";
}

// What a sum's call has left in memory that is laid out so.
std::vector<char> ResultIn(const std::vector<char>& memory, const Layout& layout) {
  Region result = layout.call.receive[0];
  result.data = const_cast<char*>(memory.data()) + (result.data - layout.image.data());
  return Packed(result);
}

// What the memory must be after the call; of a sum, with what has come of it (`got`) where it may be.
absl::StatusOr<std::vector<char>> Wanted(const Shape& shape, int rank, int round, const std::vector<char>& got) {
  Layout mine = Lay(shape, rank, round);
  const int n = static_cast<int>(shape.members.size()), me = mine.call.me;
  if (IsSum(shape.kind)) {
    const Region& result = mine.call.receive[0];
    const std::vector<char> sum = ResultIn(got, mine);
    if (std::string wrong = CheckSum(shape, mine, sum, round); !wrong.empty()) return absl::DataLossError(wrong);
    UnpackRegion(sum.data(), 0, result.bytes(), result);
    return std::move(mine.image);
  }
  const auto take = [&](int member, size_t part, const Region& to) {
    const std::vector<char> bytes = Packed(Lay(shape, shape.members[member], round).call.send[part]);
    UnpackRegion(bytes.data(), 0, to.bytes(), to);
  };
  if (IsMessage(shape.kind)) {
    take((me + n - 1) % n, 0, mine.call.receive[0]);
    return std::move(mine.image);
  }
  for (int i = 0; i < n; ++i) take(i, shape.kind == Kind::kExchange ? me : 0, mine.call.receive[i]);
  return std::move(mine.image);
}

// Empty, or what is wrong with memory.
std::string Differs(const Shape& shape, int rank, int round, const std::vector<char>& got) {
  const absl::StatusOr<std::vector<char>> want = Wanted(shape, rank, round, got);
  if (!want.ok()) return std::string(want.status().message());
  const auto [byte, wanted] = std::mismatch(got.begin(), got.end(), want->begin());
  if (byte == got.end()) return "";
  const Layout mine = Lay(shape, rank, round);
  const int64_t at = byte - got.begin();
  for (size_t part = 0; part < mine.call.receive.size(); ++part) {
    Region region = mine.call.receive[part];
    if (region.IsContiguous()) region = Flat(region.data, region.bytes());
    const int64_t from = at - (region.data - mine.image.data());
    if (from >= 0 && region.runs > 0 && from / region.stride_bytes < region.runs &&
        from % region.stride_bytes < region.run_bytes)
      return absl::StrCat("byte ", from, " of part ", part, " is ", int{*byte}, ", not ", int{*wanted});
  }
  return absl::StrCat("byte ", at, " of its memory, which is no part of the result, is ", int{*byte}, ", not ",
                      int{*wanted});
}

std::string Title(const Shape& shape) {
  const std::string types =
      shape.in == shape.out ? Name(shape.in) : absl::StrCat(Name(shape.in), " to ", Name(shape.out));
  return absl::StrCat(shape.title, " ", types, ", ", shape.elements, " elements",
                      shape.rows > 1 ? absl::StrCat(", ", shape.rows, " rows") : "",
                      shape.is_uneven ? ", unequal parts" : "", shape.is_in_place ? ", in place" : "", ", among ",
                      absl::StrJoin(shape.members, " "));
}

// Every kind among these ranks.
std::vector<Shape> ShapesAmongAll(const std::vector<int>& members, int64_t elements) {
  constexpr int64_t kSmall = 77, kPackedRows = graph::kMaxRowsInPlace + 1;
  std::vector<Shape> shapes = {
      {Kind::kAllGather, "all_gather", DType::kBF16, DType::kBF16, elements},
      {Kind::kAllGather, "all_gather", DType::kF32, DType::kF32, elements, 1, false, true},
      {Kind::kAllGather, "all_gather", DType::kBF16, DType::kBF16, elements, 3},
      {Kind::kAllGather, "all_gather", DType::kBF16, DType::kBF16, elements, kPackedRows},
      {Kind::kAllGather, "all_gather", DType::kF32, DType::kF32, elements, 1, true},
      {Kind::kReduceScatter, "reduce_scatter", DType::kF32, DType::kF32, elements, 3},
      {Kind::kReduceScatter, "reduce_scatter", DType::kF32, DType::kF32, elements, kPackedRows},
      {Kind::kReduceScatter, "reduce_scatter", DType::kF32, DType::kF32, elements, 1, true},
      {Kind::kReduceScatter, "reduce_scatter", DType::kBF16, DType::kF32, elements},
      {Kind::kReduceScatter, "reduce_scatter", DType::kF32, DType::kBF16, elements, 3},
      {Kind::kAllReduce, "all_reduce", DType::kF32, DType::kF32, kSmall},
      {Kind::kAllReduce, "all_reduce", DType::kF32, DType::kF32, elements, 1, false, true},
      {Kind::kAllReduce, "all_reduce", DType::kBF16, DType::kF32, elements},
      {Kind::kExchange, "exchange", DType::kF32, DType::kF32, elements},
      {Kind::kExchange, "exchange", DType::kBF16, DType::kBF16, elements, 5, true}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64}) {
    shapes.push_back({Kind::kReduceScatter, "reduce_scatter", dtype, dtype, elements});
    shapes.push_back({Kind::kAllReduce, "all_reduce", dtype, dtype, elements});
  }
  if (members.size() > 1) shapes.push_back({Kind::kSend, "messages around", DType::kBF16, DType::kBF16, elements});
  for (Shape& shape : shapes) shape.members = members;
  return shapes;
}

std::vector<Shape> AllShapes(int rank, int world, int64_t elements) {
  std::vector<int> everyone, half, every_second;
  for (int i = 0; i < world; ++i) {
    everyone.push_back(i);
    if (i / (world / 2 + world % 2) == rank / (world / 2 + world % 2)) half.push_back(i);
    if (i % 2 == rank % 2) every_second.push_back(i);
  }
  std::vector<Shape> shapes = ShapesAmongAll(everyone, elements);
  if (world < 4 || world % 2 != 0) return shapes;
  for (const std::vector<int>& members : {half, every_second}) {
    shapes.push_back({Kind::kAllGather, "all_gather", DType::kBF16, DType::kBF16, elements});
    shapes.back().members = members;
    shapes.push_back({Kind::kReduceScatter, "reduce_scatter", DType::kF32, DType::kF32, elements});
    shapes.back().members = members;
    shapes.push_back({Kind::kAllReduce, "all_reduce", DType::kF32, DType::kF32, elements});
    shapes.back().members = members;
  }
  return shapes;
}

// A shape's calls on memory of the device.
class Bound {
 public:
  static absl::StatusOr<std::unique_ptr<Bound>> Create(const CollectiveCheckOptions& options, const Shape& shape) {
    std::unique_ptr<Bound> bound(new Bound(options, shape));
    TACC_RETURN_IF_ERROR(bound->Prepare());
    return bound;
  }

  // Queued.
  void Upload(int round) {
    image_ = Lay(shape_, options_.rank, round).image;
    options_.device->Upload(image_.data(), Flat(memory_->data(), static_cast<int64_t>(image_.size())));
  }
  // Queued, or recorded.
  absl::Status Run() {
    CollectiveQueue& queue = *options_.queue;
    if (!IsMessage(shape_.kind)) return queue.Run(calls_[0]);
    TACC_ASSIGN_OR_RETURN(const CollectiveQueue::Ticket sent, queue.Start(&calls_[0]));
    TACC_ASSIGN_OR_RETURN(const CollectiveQueue::Ticket received, queue.Start(&calls_[1]));
    TACC_RETURN_IF_ERROR(queue.Finish(calls_[1], received));
    return queue.Finish(calls_[0], sent);
  }
  // Waits for the device, and adds to the outcome what is wrong. `what`: was run.
  absl::Status Check(int round, const std::string& what) {
    TACC_RETURN_IF_ERROR(options_.device->Synchronize());
    TACC_RETURN_IF_ERROR(options_.queue->Check());
    std::vector<char> got(image_.size());
    options_.device->Download(Flat(memory_->data(), static_cast<int64_t>(got.size())), got.data());
    TACC_RETURN_IF_ERROR(options_.device->Synchronize());
    if (const std::string wrong = Differs(shape_, options_.rank, round, got); !wrong.empty() && outcome_.error.empty())
      outcome_.error = absl::StrCat("rank ", options_.rank, ", ", what, ": ", wrong);
    if (shape_.kind == Kind::kAllReduce && static_cast<int>(shape_.members.size()) == options_.world) {
      outcome_.digest = 14695981039346656037ull;  // FNV-1a
      for (const char byte : ResultIn(got, Lay(shape_, options_.rank, round)))
        outcome_.digest = (outcome_.digest ^ static_cast<unsigned char>(byte)) * 1099511628211ull;
    }
    return absl::OkStatus();
  }

  bool is_message() const { return IsMessage(shape_.kind); }
  const CollectiveOutcome& outcome() const { return outcome_; }

 private:
  Bound(const CollectiveCheckOptions& options, const Shape& shape) : options_(options), shape_(shape) {
    outcome_.name = Title(shape);
  }

  absl::Status Prepare() {
    Layout layout = Lay(shape_, options_.rank, 0);
    TACC_ASSIGN_OR_RETURN(memory_, options_.device->AllocateDevice(static_cast<int64_t>(layout.image.size())));
    for (std::vector<Region>* regions : {&layout.call.send, &layout.call.receive}) {
      for (Region& region : *regions) region.data = memory_->data() + (region.data - layout.image.data());
    }
    calls_ = {layout.call};
    if (is_message()) {
      const int n = static_cast<int>(shape_.members.size()), me = layout.call.me;
      calls_.push_back(layout.call);
      calls_[0].members = {shape_.members[(me + 1) % n]};
      calls_[0].receive.clear();
      calls_[1].kind = Kind::kReceive;
      calls_[1].members = {shape_.members[(me + n - 1) % n]};
      calls_[1].send.clear();
    }
    for (const CollectiveCall& call : calls_) TACC_RETURN_IF_ERROR(options_.queue->Prepare(&call));
    return absl::OkStatus();
  }

  const CollectiveCheckOptions options_;
  const Shape shape_;
  CollectiveOutcome outcome_;
  std::unique_ptr<Arena> memory_;
  std::vector<CollectiveCall> calls_;
  std::vector<char> image_;  // Of the last round.
};

// What `queue` queues, recorded and replayed with other numbers each time, for all of `calls`.
absl::Status Replay(Device& device, const std::vector<Bound*>& calls, const std::string& what) {
  TACC_ASSIGN_OR_RETURN(const std::unique_ptr<Device::Recording> recording, device.Record([&]() -> absl::Status {
    for (Bound* call : calls) TACC_RETURN_IF_ERROR(call->Run());
    return absl::OkStatus();
  }));
  for (int round = 1; round <= kReplays; ++round) {
    for (Bound* call : calls) call->Upload(round);
    TACC_RETURN_IF_ERROR(recording->Replay());
    for (Bound* call : calls) TACC_RETURN_IF_ERROR(call->Check(round, absl::StrCat(what, " ", round)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CollectiveOutcome>> CheckCollectives(const CollectiveCheckOptions& options) {
  CollectiveQueue& queue = *options.queue;
  std::vector<std::unique_ptr<Bound>> bound;
  for (const Shape& shape : AllShapes(options.rank, options.world, options.elements)) {
    TACC_ASSIGN_OR_RETURN(bound.emplace_back(), Bound::Create(options, shape));
  }
  TACC_RETURN_IF_ERROR(queue.Open());
  std::vector<Bound*> recorded;
  for (size_t i = 0; i < bound.size(); ++i) {
    Bound& call = *bound[i];
    const absl::Status status = [&]() -> absl::Status {
      TACC_RETURN_IF_ERROR(queue.EnterCall(static_cast<uint32_t>(i)));
      for (int run = 0; run < (call.is_message() ? kReplays : 1); ++run) {
        call.Upload(run);
        TACC_RETURN_IF_ERROR(call.Run());
        TACC_RETURN_IF_ERROR(call.Check(run, "as it is"));
      }
      // Messages outlast what posts them, and are not recorded.
      if (call.is_message() || !queue.is_on_device()) return absl::OkStatus();
      recorded.push_back(&call);
      return Replay(*options.device, {&call}, "replay");
    }();
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(call.outcome().name, ": ", status.message()));
  }
  if (!recorded.empty()) TACC_RETURN_IF_ERROR(Replay(*options.device, recorded, "replay of all in one recording"));
  std::vector<CollectiveOutcome> outcomes;
  for (const std::unique_ptr<Bound>& call : bound) outcomes.push_back(call->outcome());
  return outcomes;
}

absl::StatusOr<std::vector<CollectiveOutcome>> AgreeOnOutcomes(Collectives& host, std::vector<CollectiveOutcome> mine) {
  std::vector<uint64_t> words;
  for (const CollectiveOutcome& outcome : mine) {
    words.push_back(outcome.error.empty() ? 0 : 1);
    words.push_back(outcome.digest);
  }
  TACC_ASSIGN_OR_RETURN(const auto all, host.GatherHost(words));
  for (size_t i = 0; i < mine.size(); ++i) {
    for (size_t rank = 0; rank < all.size() && mine[i].error.empty(); ++rank) {
      if (all[rank][2 * i] != 0) {
        mine[i].error = absl::StrCat("wrong on rank ", rank);
      } else if (all[rank][2 * i + 1] != mine[i].digest) {
        mine[i].error = absl::StrCat("rank ", rank, " has other bits than rank ", host.rank());
      }
    }
  }
  return mine;
}

}  // namespace tacc::worker
