#include "sherd/rpc/call_context.h"

#include <memory>
#include <utility>

namespace sherd {
namespace {

std::shared_ptr<CallContext>& ThreadContext() {
  static thread_local std::shared_ptr<CallContext> context;
  return context;
}

}  // namespace

const std::shared_ptr<CallContext>& CallContext::Current() {
  return ThreadContext();
}

ScopedCallContext::ScopedCallContext(std::shared_ptr<CallContext> context)
    : before_(std::exchange(ThreadContext(), std::move(context))) {}

ScopedCallContext::~ScopedCallContext() {
  ThreadContext() = std::move(before_);
}

}  // namespace sherd
