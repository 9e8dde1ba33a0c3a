#ifndef TACC_GRAPH_IR_OP_H_
#define TACC_GRAPH_IR_OP_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tacc::graph {

// The op of a node. Ops that make a program's structure are enumerators, which passes compare. An op that computes is
// known by its name alone, and OpTable has its facts. The text form has names for all of them.
class Op {
 public:
  enum Kind : uint8_t {
    kCompute,  // any op that is not below
    // Leaves.
    kInput,
    kParam,
    kRead,
    kConstant,
    // Ends.
    kOutput,
    kStore,
    // Collectives: among the ranks of mesh axes; stage_sum, among stages.
    kAllGather,
    kReduceScatter,
    kAllReduce,
    kAllToAll,
    kRotateBlocks,
    kStageSum,
    // Messages between stages.
    kSend,
    kRecv,
    kFinish,
    // Other ops of partitioned programs only.
    kWait,
    kShardSlice,
    kMaskPadding,
  };

  Op() = default;  // without a name
  // NOLINTNEXTLINE(google-explicit-constructor): an enumerator is an op
  Op(Kind kind) : kind_(kind) {}  // not kCompute
  // NOLINTNEXTLINE(google-explicit-constructor): of the text form, or of a builder
  Op(absl::string_view name);
  // NOLINTNEXTLINE(google-explicit-constructor)
  Op(const char* name) : Op(absl::string_view(name)) {}

  Kind kind() const { return kind_; }
  // The name in the text form. Lives as long as the op.
  absl::string_view name() const;
  // NOLINTNEXTLINE(google-explicit-constructor): for OpTable::Find and comparisons with names
  operator absl::string_view() const { return name(); }

  friend bool operator==(const Op&, const Op&) = default;
  friend bool operator==(const Op& op, Kind kind) { return op.kind_ == kind; }
  // `name` is that of an op that computes.
  friend bool operator==(const Op& op, const char* name) { return op.kind_ == kCompute && op.compute_name_ == name; }

 private:
  Kind kind_ = kCompute;
  std::string compute_name_;  // empty unless kCompute
};

// send, recv or finish.
inline bool IsMessage(const Op& op) { return op == Op::kSend || op == Op::kRecv || op == Op::kFinish; }
// A collective among ranks of mesh axes or among stages; not a message.
inline bool IsCollective(const Op& op) { return op.kind() >= Op::kAllGather && op.kind() <= Op::kStageSum; }
// True for ops whose nodes have a name in quotes: inputs, parameters, outputs, and all that touch a state.
inline bool HasSymbol(const Op& op) {
  return IsMessage(op) || op == Op::kInput || op == Op::kParam || op == Op::kRead || op == Op::kOutput ||
         op == Op::kStore;
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_OP_H_
