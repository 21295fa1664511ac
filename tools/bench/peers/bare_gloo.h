#ifndef SHERD_TOOLS_BENCH_PEERS_BARE_GLOO_H_
#define SHERD_TOOLS_BENCH_PEERS_BARE_GLOO_H_

#include <exception>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sherd {

// Runs `body`, which calls Gloo, and converts Gloo's exceptions to a status.
template <typename Body>
absl::Status CallGloo(Body body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("Gloo: ", e.what()));
  }
}

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_PEERS_BARE_GLOO_H_
