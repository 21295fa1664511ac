#include "sherd/rpc/call/handler_registry.h"

#include <algorithm>
#include <map>
#include <typeindex>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/printable_text.h"

namespace sherd::internal {
namespace {

// Of names in an error.
constexpr size_t kNamesShown = 8;

using HandlerPtr = std::shared_ptr<const RawHandler>;

class Registry {
 public:
  void Store(std::type_index method, HandlerPtr handler) {
    absl::MutexLock lock(&mutex_);
    Entry& entry = handlers_.try_emplace(handler->name, method).first->second;
    SHERD_CHECK(entry.method == method)
        << "RegisterHandler: two methods are named " << Quoted(handler->name)
        << ": give one of them another kName";
    // The replaced handler is released without the lock.
    entry.handler.swap(handler);
  }

  HandlerPtr Find(absl::string_view name) const {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = handlers_.find(name);
    return found == handlers_.end() ? nullptr : found->second.handler;
  }

  bool Remove(std::type_index method, absl::string_view name) {
    // Released without the lock.
    HandlerPtr removed;
    absl::MutexLock lock(&mutex_);
    const auto found = handlers_.find(name);
    if (found == handlers_.end() || found->second.method != method) {
      return false;
    }
    removed = std::move(found->second.handler);
    handlers_.erase(found);
    return true;
  }

  // "ping, scale and 3 more".
  std::string Names() const {
    absl::ReaderMutexLock lock(&mutex_);
    if (handlers_.empty()) return "none";
    std::vector<absl::string_view> names;
    for (const auto& [name, entry] : handlers_) {
      if (names.size() == kNamesShown) break;
      names.push_back(name);
    }
    const size_t more = handlers_.size() - names.size();
    return absl::StrCat(absl::StrJoin(names, ", "),
                        more > 0 ? absl::StrCat(" and ", more, " more") : "");
  }

 private:
  struct Entry {
    explicit Entry(std::type_index m) : method(m) {}
    std::type_index method;
    HandlerPtr handler;
  };

  mutable absl::Mutex mutex_;
  std::map<std::string, Entry, std::less<>> handlers_ ABSL_GUARDED_BY(mutex_);
};

// Lives forever: handlers are registered and called while the program starts
// and ends.
Registry& TheRegistry() {
  static Registry& registry = *new Registry();
  return registry;
}

}  // namespace

void StoreHandler(
    const std::type_info& method, absl::string_view name,
    const MethodSignatureText& signature,
    std::function<void(Payload request, ReplyFunction reply)> run) {
  TheRegistry().Store(
      method, std::make_shared<const RawHandler>(
                  RawHandler{std::string(name), signature, std::move(run)}));
}

std::shared_ptr<const RawHandler> FindHandler(absl::string_view name) {
  return TheRegistry().Find(name);
}

absl::StatusOr<std::shared_ptr<const RawHandler>> FindHandlerFor(
    absl::string_view name, uint64_t signature, absl::string_view worker) {
  HandlerPtr handler = FindHandler(name);
  if (handler == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        Quoted(name), ": expected a handler on ", worker,
        ", found none of that name; call RegisterHandler there (it has: ",
        TheRegistry().Names(), ")"));
  }
  if (handler->signature.hash != signature) {
    return absl::FailedPreconditionError(absl::StrCat(
        Quoted(name), ": expected the signature ", handler->signature.text,
        " (", absl::Hex(handler->signature.hash, absl::kZeroPad16),
        "), which the handler on ", worker,
        " has, found another one from the caller (",
        absl::Hex(signature, absl::kZeroPad16),
        "); build both from the same declaration"));
  }
  return handler;
}

bool RemoveHandler(const std::type_info& method, absl::string_view name) {
  return TheRegistry().Remove(method, name);
}

}  // namespace sherd::internal
