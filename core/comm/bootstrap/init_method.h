#ifndef SHERD_CORE_COMM_BOOTSTRAP_INIT_METHOD_H_
#define SHERD_CORE_COMM_BOOTSTRAP_INIT_METHOD_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sherd {

// Where ranks meet, as given by a URL.
struct InitMethod {
  enum class Kind { kFile, kTcp, kEnvironment };

  Kind kind = Kind::kEnvironment;
  // kFile: absolute.
  std::string path;
  // kTcp: name or address, IPv6 without brackets.
  std::string host;
  int port = 0;
  // From "?rank=R&world_size=N", in any order, each optional.
  std::optional<int> rank;
  std::optional<int> world_size;

  // Reads "file:///PATH", "tcp://HOST:PORT", "tcp://[ADDRESS]:PORT", "env://",
  // each optionally followed by "?rank=R&world_size=N".
  //   kInvalidArgument  "No rendezvous handler for …", "path missing", "port
  //                     number missing", an unknown or malformed parameter.
  static absl::StatusOr<InitMethod> Parse(absl::string_view url);
};

}  // namespace sherd

#endif  // SHERD_CORE_COMM_BOOTSTRAP_INIT_METHOD_H_
