#include "worker/run_folder/event_file.h"

#include <immintrin.h>

#include <cstring>

namespace tacc::worker {
namespace {

// Fields of the messages, and what a field's key says of its bytes.
constexpr int kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5, kEventSessionLog = 7;
constexpr int kSummaryValue = 1, kValueTag = 1, kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1, kSessionStart = 1;
enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void PutVarint(uint64_t value, std::string* out) {
  constexpr uint64_t kMore = 0x80;
  for (; value >= kMore; value >>= 7) out->push_back(static_cast<char>(value | kMore));
  out->push_back(static_cast<char>(value));
}

void PutKey(int field, WireType type, std::string* out) { PutVarint(static_cast<uint64_t>(field) << 3 | type, out); }

// As the machine holds it: little-endian, as the format wants.
template <typename T>
void PutFixed(T value, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

void PutBytes(int field, absl::string_view bytes, std::string* out) {
  PutKey(field, kBytes, out);
  PutVarint(bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

// An Event without what it carries.
std::string EventAt(double time, int64_t step) {
  std::string event;
  PutKey(kEventWallTime, kFixed64, &event);
  PutFixed(time, &event);
  PutKey(kEventStep, kVarint, &event);
  PutVarint(static_cast<uint64_t>(step), &event);
  return event;
}

uint32_t MaskedCrc32c(absl::string_view bytes) {
  constexpr uint32_t kMask = 0xa282ead8;
  const uint32_t crc = Crc32c(bytes);
  return (crc >> 15 | crc << 17) + kMask;
}

std::string Record(absl::string_view event) {
  std::string record;
  PutFixed(static_cast<uint64_t>(event.size()), &record);
  PutFixed(MaskedCrc32c(record), &record);
  record.append(event.data(), event.size());
  PutFixed(MaskedCrc32c(event), &record);
  return record;
}

}  // namespace

// Each processor that LibTorch runs on has the instruction.
__attribute__((target("sse4.2"))) uint32_t Crc32c(absl::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(byte));
  return ~crc;
}

std::string FileVersionRecord(double time) {
  std::string event = EventAt(time, 0);
  PutBytes(kEventFileVersion, "brain.Event:2", &event);
  return Record(event);
}

std::string SessionStartRecord(double time, int64_t first_step) {
  std::string session_log;
  PutKey(kSessionLogStatus, kVarint, &session_log);
  PutVarint(kSessionStart, &session_log);
  std::string event = EventAt(time, first_step);
  PutBytes(kEventSessionLog, session_log, &event);
  return Record(event);
}

std::string ScalarsRecord(double time, int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    PutBytes(kValueTag, scalar.tag, &value);
    PutKey(kValueSimpleValue, kFixed32, &value);
    PutFixed(static_cast<float>(scalar.value), &value);
    PutBytes(kSummaryValue, value, &summary);
  }
  std::string event = EventAt(time, step);
  PutBytes(kEventSummary, summary, &event);
  return Record(event);
}

}  // namespace tacc::worker
