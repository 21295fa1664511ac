#ifndef SHERD_TESTING_KITS_PUBLICATIONS_H_
#define SHERD_TESTING_KITS_PUBLICATIONS_H_

#include <string>
#include <utility>

#include "sherd/core/comm/remote_access.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd::testing {

// The first publication of `scope`, which consists of `shard`.
inline Publication PublicationOf(std::string scope, Tensor shard) {
  return {.id = {.scope = std::move(scope)}, .shards = {std::move(shard)}};
}

// That shard, whole.
inline FetchRequest FirstOf(std::string scope) {
  return {.publication = {.scope = std::move(scope)}};
}

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_PUBLICATIONS_H_
