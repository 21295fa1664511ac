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
// variable, or returns its status from the enclosing function. `lhs` may hold
// commas, `expr` only within parentheses:
//   SHERD_ASSIGN_OR_RETURN(std::map<A, B> m, ReadMap(path, kAll));
#define SHERD_ASSIGN_OR_RETURN(...)                                     \
  SHERD_ASSIGN_PICK_(__VA_ARGS__, SHERD_ASSIGN_8_, SHERD_ASSIGN_7_,     \
                     SHERD_ASSIGN_6_, SHERD_ASSIGN_5_, SHERD_ASSIGN_4_, \
                     SHERD_ASSIGN_3_, SHERD_ASSIGN_2_, )                \
  (SHERD_MACRO_CONCAT_(sherd_status_or_, __LINE__), __VA_ARGS__)

// The last of up to eight arguments is the expression.
#define SHERD_ASSIGN_PICK_(a, b, c, d, e, f, g, h, chosen, ...) chosen
#define SHERD_ASSIGN_2_(v, a, expr) SHERD_ASSIGN_(v, expr, a)
#define SHERD_ASSIGN_3_(v, a, b, expr) SHERD_ASSIGN_(v, expr, a, b)
#define SHERD_ASSIGN_4_(v, a, b, c, expr) SHERD_ASSIGN_(v, expr, a, b, c)
#define SHERD_ASSIGN_5_(v, a, b, c, d, expr) SHERD_ASSIGN_(v, expr, a, b, c, d)
#define SHERD_ASSIGN_6_(v, a, b, c, d, e, expr) \
  SHERD_ASSIGN_(v, expr, a, b, c, d, e)
#define SHERD_ASSIGN_7_(v, a, b, c, d, e, f, expr) \
  SHERD_ASSIGN_(v, expr, a, b, c, d, e, f)
#define SHERD_ASSIGN_8_(v, a, b, c, d, e, f, g, expr) \
  SHERD_ASSIGN_(v, expr, a, b, c, d, e, f, g)

#define SHERD_MACRO_CONCAT_INNER_(a, b) a##b
#define SHERD_MACRO_CONCAT_(a, b) SHERD_MACRO_CONCAT_INNER_(a, b)
#define SHERD_ASSIGN_(var, expr, ...)            \
  auto var = (expr);                             \
  if (!var.ok()) return std::move(var).status(); \
  __VA_ARGS__ = *std::move(var)

#endif  // SHERD_CORE_BASE_STATUS_MACROS_H_
