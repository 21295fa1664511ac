#ifndef SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
#define SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_

#include <memory>

#include "gloo/transport/context.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/backends/gloo/peer_sockets.h"

namespace sherd::internal {

// What depends on how a Gloo connects: in that of 2022 each pair listens, in
// later ones the device, for all of its pairs. Both take anybody for the peer,
// so neither is left to connect by itself.

// A device of Gloo's TCP transport, whose descriptors are close-on-exec. Where
// devices listen, nobody can reach this one. Throws Gloo's exceptions, and
// std::runtime_error where its listener cannot be replaced.
std::shared_ptr<gloo::transport::tcp::Device> MakeGlooDevice(
    const gloo::transport::tcp::attr& attributes);

// Makes the pair of `context`, which is of `device`, with `peer` and connects
// it over `connection`, which stays close-on-exec. Returns false if Gloo takes
// no connection. Throws Gloo's exceptions.
bool ConnectPairOver(const GlooSocket& connection,
                     gloo::transport::tcp::Device& device,
                     gloo::transport::Context& context, int peer);

}  // namespace sherd::internal

#endif  // SHERD_BACKENDS_GLOO_PAIR_CONNECTION_H_
