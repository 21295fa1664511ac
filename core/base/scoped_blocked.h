#ifndef SHERD_CORE_BASE_SCOPED_BLOCKED_H_
#define SHERD_CORE_BASE_SCOPED_BLOCKED_H_

namespace sherd::internal {

// What a thread waits for.
enum class WaitFor {
  // Something that other calls may have to do first.
  kCalls,
  // Something that ends whatever others do: a large copy, a device.
  kWork,
};

// Who wants to know that a thread waits: the pool whose thread it is.
class BlockingObserver {
 public:
  virtual void BeginBlocked(WaitFor what) = 0;
  virtual void EndBlocked() = 0;

  // Of the calling thread; null: nobody.
  static BlockingObserver*& OfThread() {
    static thread_local BlockingObserver* observer = nullptr;
    return observer;
  }

 protected:
  ~BlockingObserver() = default;
};

// Put around a wait for something that other calls may have to do first
// (Future::Wait): in a handler, the pool starts another thread meanwhile, so
// that handlers which wait for one another never use up the threads. And around
// work on large memory: then small calls need not wait for it.
//
// Cost. A load on a thread that no pool observes; on a pool's, two locks.
class ScopedBlocked {
 public:
  explicit ScopedBlocked(WaitFor what = WaitFor::kCalls)
      : observer_(BlockingObserver::OfThread()) {
    // Within the scope, another one does not count again.
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
