#ifndef TACC_GRAPH_IR_STATUS_MACROS_H_
#define TACC_GRAPH_IR_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the function when `expr` (an absl::Status) is an error.
#define TACC_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                               \
    if (absl::Status tacc_status_ = (expr); !tacc_status_.ok()) return tacc_status_; \
  } while (false)

#define TACC_CONCAT_INNER_(a, b) a##b
#define TACC_CONCAT_(a, b) TACC_CONCAT_INNER_(a, b)

// TACC_ASSIGN_OR_RETURN(auto x, F()): x is F's value, or the function returns F's status.
#define TACC_ASSIGN_OR_RETURN(lhs, expr) TACC_ASSIGN_OR_RETURN_(TACC_CONCAT_(tacc_statusor_, __LINE__), lhs, expr)
#define TACC_ASSIGN_OR_RETURN_(statusor, lhs, expr) \
  auto statusor = (expr);                           \
  if (!statusor.ok()) return statusor.status();     \
  lhs = std::move(statusor).value()

#endif  // TACC_GRAPH_IR_STATUS_MACROS_H_
