#ifndef SHERD_CORE_COMM_STORE_STORE_PROTOCOL_H_
#define SHERD_CORE_COMM_STORE_STORE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sherd/core/comm/store/store_entries.h"

namespace sherd::internal {

// The protocol between TcpStore and TcpStoreServer, version 1, in frames
// (core/net/frame.h) after the handshake (core/net/handshake.h) for the
// protocol "sherd store 1". Numbers are little-endian, signed ones in two's
// complement; a list of strings is u32 count, and for each u32 length, bytes.
//
//   request    u64 id, u8 operation, i64 number, strings
//   response   u64 id, u8 absl::StatusCode, i64 number, strings
//
// Every request but kCancel gets one response with its id, in any order: a
// waiting request does not block others. No two open requests of a client have
// the same id.
//
//   operation         number         strings              response's
//    1 kSet                          key, value
//    2 kGet           nanoseconds    keys                 strings: values
//    3 kAdd           amount         key                  number: sum
//    4 kCompareSet                   key, expected,       strings: value
//                                    desired
//    5 kDelete                       key                  number: 1 if there
//    6 kDeletePrefix                 prefix               number: how many
//    7 kRetire        members        prefix
//    8 kWait          nanoseconds    keys
//    9 kContains                     key                  number: 1 if there
//   10 kCancel                                            none
//
// Nanoseconds from the arrival of the request until the server answers
// kDeadlineExceeded with the missing keys as strings; negative: never. kCancel
// makes the server forget the open kGet or kWait with its id. Other failures
// come with one string, the message. A frame that is not a request ends the
// connection; a request that is well-formed but invalid does not.

inline constexpr absl::string_view kStoreProtocol = "sherd store 1";

enum class StoreOperation : uint8_t {
  kSet = 1,
  kGet = 2,
  kAdd = 3,
  kCompareSet = 4,
  kDelete = 5,
  kDeletePrefix = 6,
  kRetire = 7,
  kWait = 8,
  kContains = 9,
  kCancel = 10,
};

// Values for a whole MultiGet, and its lengths.
inline constexpr size_t kMaxStoreFrameBytes =
    kMaxMultiGetBytes + (size_t{8} << 20);

struct StoreRequest {
  uint64_t id = 0;
  StoreOperation operation = StoreOperation::kSet;
  int64_t number = 0;
  std::vector<std::string> strings;
};

struct StoreResponse {
  uint64_t id = 0;
  absl::StatusCode code = absl::StatusCode::kOk;
  int64_t number = 0;
  std::vector<std::string> strings;
};

std::string EncodeStoreRequest(const StoreRequest& request);
std::string EncodeStoreResponse(const StoreResponse& response);

//   kDataLoss  The bytes are malformed, e.g. an unknown operation, a wrong
//              number of strings for it, a length beyond the end, bytes left
//              over.
absl::StatusOr<StoreRequest> ParseStoreRequest(absl::string_view bytes);
absl::StatusOr<StoreResponse> ParseStoreResponse(absl::string_view bytes);

// "Set", "Get" … for messages.
absl::string_view StoreOperationName(StoreOperation operation);

}  // namespace sherd::internal

#endif  // SHERD_CORE_COMM_STORE_STORE_PROTOCOL_H_
