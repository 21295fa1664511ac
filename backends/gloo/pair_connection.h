#ifndef SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
#define SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_

#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/backends/gloo/peer_sockets.h"

namespace sherd::internal {

// Connects `pair`, which `device` has just made, over `connection`, which stays
// close-on-exec. A pair can only listen and takes the first connection that
// arrives: this process connects to it at once, and then puts `connection`
// under the accepted descriptor. Returns false if another process connected
// first, or Gloo cannot accept; another pair may succeed.
bool ConnectPairOver(const GlooSocket& connection,
                     gloo::transport::tcp::Device& device,
                     gloo::transport::Pair& pair);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
