#ifndef SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
#define SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_

#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/backends/gloo/peer_sockets.h"

namespace sherd::internal {

// Connects `pair`, which `device` has just made, over `connection`, which stays
// close-on-exec. A pair can only listen, for whoever comes first: this process
// comes, at once, and what Gloo has accepted then becomes the connection under
// the same descriptor. False if somebody else was faster, or Gloo cannot
// accept: another pair may succeed.
bool ConnectPairOver(const GlooSocket& connection,
                     gloo::transport::tcp::Device& device,
                     gloo::transport::Pair& pair);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
