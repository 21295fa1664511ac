#include "sherd/core/tensor/device_stream.h"

#include "sherd/core/base/logging.h"

namespace sherd {
namespace {

thread_local ScopedStream* innermost = nullptr;

}  // namespace

DeviceStream CurrentStream(const Device& device) {
  for (const ScopedStream* scope = innermost; scope != nullptr;
       scope = scope->outer_) {
    if (scope->stream_.device == device) return scope->stream_;
  }
  return {device, nullptr};
}

ScopedStream::ScopedStream(const DeviceStream& stream)
    : stream_(stream), outer_(innermost) {
  innermost = this;
}

ScopedStream::~ScopedStream() {
  SHERD_CHECK(innermost == this)
      << "a ScopedStream ends on another thread than it began on, or before "
         "one that began later";
  innermost = outer_;
}

}  // namespace sherd
