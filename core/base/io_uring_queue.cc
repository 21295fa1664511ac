#include <linux/io_uring.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/io_queue.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

absl::Status UringError(const char* call, int error) {
  const std::string text = absl::StrCat(call, ": ", std::strerror(error));
  switch (error) {
    case ENOSYS:
    case EPERM:
    case EACCES:
    case EINVAL:
      return absl::UnimplementedError(text);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::InternalError(text);
  }
}

// Memory that the kernel shares.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int fd, size_t bytes, off_t what) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_POPULATE, fd, what);
    // A child would move the kernel's counters.
    if (is_mapped()) madvise(data_, bytes_, MADV_DONTFORK);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (is_mapped()) munmap(data_, bytes_);
  }

  bool is_mapped() const { return data_ != MAP_FAILED; }
  template <typename T>
  T* At(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t bytes_ = 0;
};

// The kernel and this process each move one end of both rings: requests are
// published by the tail of `sq`, results are taken at the head of `cq`.
class UringQueue final : public IoQueue {
 public:
  UringQueue(UniqueFd fd, const io_uring_params& params, int depth)
      : fd_(std::move(fd)),
        depth_(depth),
        ring_(
            fd_.get(),
            std::max<size_t>(
                params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe)),
            IORING_OFF_SQ_RING),
        requests_(fd_.get(), params.sq_entries * sizeof(io_uring_sqe),
                  IORING_OFF_SQES),
        params_(params) {}

  ~UringQueue() override {
    while (in_flight_ > 0) Wait();
  }

  bool is_mapped() const { return ring_.is_mapped() && requests_.is_mapped(); }

  int depth() const override { return depth_; }

  absl::Status Start(const Request& request) override {
    const uint32_t mask = *ring_.At<uint32_t>(params_.sq_off.ring_mask);
    std::atomic_ref<uint32_t> tail(*ring_.At<uint32_t>(params_.sq_off.tail));
    const uint32_t at = tail.load(std::memory_order_relaxed);
    const uint32_t slot = at & mask;
    io_uring_sqe& entry =
        *requests_.At<io_uring_sqe>(slot * sizeof(io_uring_sqe));
    entry = {};
    entry.opcode = request.write ? IORING_OP_WRITE : IORING_OP_READ;
    entry.fd = request.fd;
    entry.off = static_cast<uint64_t>(request.offset);
    entry.addr = reinterpret_cast<uint64_t>(request.buffer.data());
    entry.len = static_cast<uint32_t>(request.buffer.size());
    entry.user_data = request.tag;
    *ring_.At<uint32_t>(params_.sq_off.array + slot * sizeof(uint32_t)) = slot;
    tail.store(at + 1, std::memory_order_release);
    int taken;
    do {
      taken = Enter(/*submit=*/1, /*wait=*/0);
    } while (taken < 0 && errno == EINTR);
    if (taken < 1) {
      const int error = taken < 0 ? errno : EAGAIN;
      // The kernel reads the ring in that call alone.
      tail.store(at, std::memory_order_release);
      return UringError("io_uring_enter", error);
    }
    ++in_flight_;
    return absl::OkStatus();
  }

  Ended Wait() override {
    std::atomic_ref<uint32_t> head(*ring_.At<uint32_t>(params_.cq_off.head));
    std::atomic_ref<uint32_t> tail(*ring_.At<uint32_t>(params_.cq_off.tail));
    const uint32_t mask = *ring_.At<uint32_t>(params_.cq_off.ring_mask);
    const uint32_t at = head.load(std::memory_order_relaxed);
    while (at == tail.load(std::memory_order_acquire)) {
      // Results come without this call too, which can only sleep until then:
      // nothing may return while the kernel writes into a buffer.
      if (Enter(/*submit=*/0, /*wait=*/1) < 0) sched_yield();
    }
    const io_uring_cqe result = *ring_.At<io_uring_cqe>(
        params_.cq_off.cqes + (at & mask) * sizeof(io_uring_cqe));
    head.store(at + 1, std::memory_order_release);
    --in_flight_;
    return Ended{.tag = result.user_data, .result = result.res};
  }

 private:
  int Enter(unsigned submit, unsigned wait) {
    return static_cast<int>(syscall(__NR_io_uring_enter, fd_.get(), submit,
                                    wait, wait > 0 ? IORING_ENTER_GETEVENTS : 0,
                                    nullptr, 0));
  }

  const UniqueFd fd_;
  const int depth_;
  const Mapping ring_;
  const Mapping requests_;
  const io_uring_params params_;
  int in_flight_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> CreateIoUring(int depth) {
  io_uring_params params = {};
  UniqueFd fd(static_cast<int>(
      syscall(__NR_io_uring_setup, static_cast<unsigned>(depth), &params)));
  if (!fd.is_open()) return UringError("io_uring_setup", errno);
  // Of Linux 5.4 and 5.6: one mapping for both rings, requests without
  // iovec.
  constexpr uint32_t kNeeds = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_RW_CUR_POS;
  if ((params.features & kNeeds) != kNeeds) {
    return absl::UnimplementedError(
        "io_uring_setup: expected that of Linux 5.6 or later");
  }
  auto queue = std::make_unique<UringQueue>(std::move(fd), params, depth);
  if (!queue->is_mapped()) return UringError("mapping an io_uring", ENOMEM);
  return queue;
}

}  // namespace sherd
