#ifndef SHERD_CORE_BASE_SCOPED_BLOCKED_H_
#define SHERD_CORE_BASE_SCOPED_BLOCKED_H_

namespace sherd::internal {

// The kind of a wait.
enum class WaitFor {
  // For something that other calls may have to do first.
  kCalls,
  // For something that ends without others: a large copy, a device.
  kWork,
};

// Is notified when a thread waits: the pool to which the thread belongs.
class BlockingObserver {
 public:
  virtual void BeginBlocked(WaitFor what) = 0;
  virtual void EndBlocked() = 0;

  // The observer of the calling thread, or null.
  static BlockingObserver*& OfThread() {
    static thread_local BlockingObserver* observer = nullptr;
    return observer;
  }

 protected:
  ~BlockingObserver() = default;
};

// Put around a wait for something that other calls may have to do first
// (Future::Wait): in a handler, the pool starts another thread meanwhile, so
// that handlers which wait for one another never use up the threads. Also put
// around work on large memory, so that small calls need not wait for it.
//
// Cost. A load on a thread that no pool observes; on a pool's, two locks.
class ScopedBlocked {
 public:
  explicit ScopedBlocked(WaitFor what = WaitFor::kCalls)
      : observer_(BlockingObserver::OfThread()) {
    // Nested scopes do not count again.
    BlockingObserver::OfThread() = nullptr;
    if (observer_ != nullptr) observer_->BeginBlocked(what);
  }
  ~ScopedBlocked() {
    if (observer_ != nullptr) observer_->EndBlocked();
    BlockingObserver::OfThread() = observer_;
  }
  ScopedBlocked(const ScopedBlocked&) = delete;
  ScopedBlocked& operator=(const ScopedBlocked&) = delete;

 private:
  BlockingObserver* const observer_;
};

}  // namespace sherd::internal

#endif  // SHERD_CORE_BASE_SCOPED_BLOCKED_H_
