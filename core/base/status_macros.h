#ifndef SHERD_CORE_BASE_STATUS_MACROS_H_
#define SHERD_CORE_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function with the status of `expr` unless it is
// OK. `expr` is evaluated once and has type absl::Status.
#define SHERD_RETURN_IF_ERROR(expr)                                 \
  do {                                                              \
    if (::absl::Status sherd_status = (expr); !sherd_status.ok()) { \
      return sherd_status;                                          \
    }                                                               \
  } while (false)

// Assigns the value of the absl::StatusOr `expr` to `lhs`, which may declare a
// variable, or returns its status from the enclosing function.
#define SHERD_ASSIGN_OR_RETURN(lhs, expr) \
  SHERD_ASSIGN_OR_RETURN_IMPL_(           \
      SHERD_MACRO_CONCAT_(sherd_status_or_, __LINE__), lhs, expr)

#define SHERD_MACRO_CONCAT_INNER_(a, b) a##b
#define SHERD_MACRO_CONCAT_(a, b) SHERD_MACRO_CONCAT_INNER_(a, b)
#define SHERD_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                 \
  if (!var.ok()) return std::move(var).status();     \
  lhs = *std::move(var)

#endif  // SHERD_CORE_BASE_STATUS_MACROS_H_
