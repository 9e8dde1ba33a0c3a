// How a field of a struct that crosses a process border is declared.
#ifndef TACC_PROTOCOL_FIELD_H_
#define TACC_PROTOCOL_FIELD_H_

#include <cstdint>
#include <tuple>
#include <utility>

namespace tacc::protocol {

// Who sets a field of the start file.
enum class Source {
  kJob,          // The job has an option of this name, by whose value the coordinator sets it.
  kCoordinator,  // By code of its own.
  kDaemon,       // Of the worker; the coordinator leaves it out.
};

// Whether a field is there. A section ("train" of "train.max_steps") is there where one of its fields is.
enum class Presence {
  kRequired,     // Always written; its absence is an error.
  kWithSection,  // Written, and required, where a field of its section is set.
  kDefaulted,    // Always written; absent, it is the member's default.
  kSparse,       // Written where it is not the member's default.
};

// Which numbers are taken. kPositive of whole numbers: at least 1.
enum class Range { kAny, kNotNegative, kPositive };

// A field of a struct that becomes a JSON object.
template <typename Struct, typename T>
struct Field {
  const char* name;  // "train.max_steps": in an object within the object.
  T Struct::*member;
  Source source = Source::kCoordinator;
  Presence presence = Presence::kRequired;
  Range range = Range::kAny;
  const char* meaning = "";  // For docs/contracts.md.
  int64_t most = 0;          // Of a whole number; 0: what its type holds.
};

template <typename Struct, typename T>
Field(const char*, T Struct::*) -> Field<Struct, T>;
template <typename Struct, typename T>
Field(const char*, T Struct::*, Source, Presence, Range, const char*) -> Field<Struct, T>;
template <typename Struct, typename T>
Field(const char*, T Struct::*, Source, Presence, Range, const char*, int64_t) -> Field<Struct, T>;

// Calls `body` with each field of a list, in its order.
template <typename Fields, typename Body>
constexpr void ForEachField(const Fields& fields, Body&& body) {
  std::apply([&body](const auto&... field) { (body(field), ...); }, fields);
}

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_FIELD_H_
