#include "sherd/tools/bench/cases/direct_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/io_engine.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"

namespace sherd {
namespace {

constexpr int kDepth = 16;
constexpr int64_t kAlignment = 4096;
constexpr int64_t kRequestBytes = int64_t{1} << 20;

int64_t RoundDown(int64_t n) { return n / kAlignment * kAlignment; }
int64_t RoundUp(int64_t n) { return RoundDown(n + kAlignment - 1); }

bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kAlignment == 0;
}

// The memory of [offset, offset + bytes) of the parts, if it lies in one of
// them; otherwise null.
const std::byte* FindRun(absl::Span<const absl::Span<const std::byte>> parts,
                         int64_t offset, int64_t bytes) {
  for (const auto& part : parts) {
    const auto size = static_cast<int64_t>(part.size());
    if (offset < size) {
      return offset + bytes <= size ? part.data() + offset : nullptr;
    }
    offset -= size;
  }
  return nullptr;
}

// Copies [offset, offset + bytes) of the parts.
void Gather(absl::Span<const absl::Span<const std::byte>> parts, int64_t offset,
            int64_t bytes, std::byte* to) {
  for (const auto& part : parts) {
    const auto size = static_cast<int64_t>(part.size());
    if (offset < size && bytes > 0) {
      const int64_t n = std::min(bytes, size - offset);
      std::memcpy(to, part.data() + offset, static_cast<size_t>(n));
      to += n;
      bytes -= n;
      offset = 0;
    } else {
      offset -= std::min(offset, size);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<DirectIo>> DirectIo::Create() {
  SHERD_ASSIGN_OR_RETURN(auto queue, CreateIoUring(kDepth));
  SHERD_ASSIGN_OR_RETURN(
      auto memory, Storage::Allocate(kDepth * kRequestBytes + kAlignment));
  std::memset(memory->data(), 0, kDepth * kRequestBytes + kAlignment);
  return std::unique_ptr<DirectIo>(
      new DirectIo(std::move(queue), std::move(memory)));
}

DirectIo::DirectIo(std::unique_ptr<IoQueue> queue,
                   std::shared_ptr<Storage> memory)
    : queue_(std::move(queue)), memory_(std::move(memory)), slots_(kDepth) {
  auto* own = static_cast<std::byte*>(memory_->data());
  while (!IsAligned(own)) ++own;
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].own = own + static_cast<int64_t>(i) * kRequestBytes;
    free_.push_back(i);
  }
}

absl::Status DirectIo::Check(const std::string& directory) {
  SHERD_RETURN_IF_ERROR(CreateIoUring(1).status());
  const std::string direct = DescribeDirectReads(directory);
  if (direct == "direct") return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(directory, ": ", direct));
}

absl::Status DirectIo::Read(const std::string& path, int64_t offset,
                            absl::Span<std::byte> to) {
  SHERD_ASSIGN_OR_RETURN(
      const UniqueFd fd,
      OpenRegularFile(path, O_RDONLY | O_DIRECT, 0, "opening"));
  const int64_t end = offset + static_cast<int64_t>(to.size());
  // Nothing is in flight when this returns.
  absl::Status status;
  for (int64_t at = RoundDown(offset); at < end && status.ok();) {
    const int64_t bytes =
        std::min(kRequestBytes - at % kRequestBytes, RoundUp(end - at));
    SHERD_ASSIGN_OR_RETURN(Slot * slot, FreeSlot());
    slot->offset = at;
    slot->end = std::min(at + bytes, end);
    const bool straight = at >= offset && at + bytes <= end &&
                          IsAligned(to.data() + (at - offset));
    slot->buffer =
        absl::MakeSpan(straight ? to.data() + (at - offset) : slot->own, bytes);
    slot->to_offset = std::max(at, offset);
    slot->to = straight ? absl::Span<std::byte>()
                        : to.subspan(slot->to_offset - offset,
                                     slot->end - slot->to_offset);
    status = Start(fd.get(), *slot, /*write=*/false);
    at += bytes;
  }
  const absl::Status reaped = ReapAll();
  return status.ok() ? reaped : status;
}

absl::Status DirectIo::Write(
    const std::string& path,
    absl::Span<const absl::Span<const std::byte>> parts) {
  int64_t size = 0;
  for (const auto& part : parts) size += static_cast<int64_t>(part.size());
  SHERD_ASSIGN_OR_RETURN(
      const UniqueFd fd,
      OpenRegularFile(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT, 0666,
                      "creating"));
  if (size > 0 && fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, size) != 0) {
    return ErrnoStatus(errno, "reserving space for", path);
  }
  absl::Status status;
  for (int64_t at = 0; at < size && status.ok(); at += kRequestBytes) {
    const int64_t bytes = std::min(kRequestBytes, size - at);
    const int64_t padded = RoundUp(bytes);
    SHERD_ASSIGN_OR_RETURN(Slot * slot, FreeSlot());
    const std::byte* run = FindRun(parts, at, padded);
    if (run == nullptr || !IsAligned(run)) {
      Gather(parts, at, bytes, slot->own);
      std::memset(slot->own + bytes, 0, static_cast<size_t>(padded - bytes));
      run = slot->own;
    }
    slot->offset = at;
    slot->end = at + padded;
    slot->to = {};
    slot->buffer = absl::MakeSpan(const_cast<std::byte*>(run), padded);
    status = Start(fd.get(), *slot, /*write=*/true);
  }
  const absl::Status reaped = ReapAll();
  SHERD_RETURN_IF_ERROR(status);
  SHERD_RETURN_IF_ERROR(reaped);
  if (ftruncate(fd.get(), size) != 0) {
    return ErrnoStatus(errno, "truncating", path);
  }
  return fsync(fd.get()) == 0 ? absl::OkStatus()
                              : ErrnoStatus(errno, "syncing", path);
}

absl::StatusOr<DirectIo::Slot*> DirectIo::FreeSlot() {
  if (free_.empty()) {
    if (absl::Status status = Reap(); !status.ok()) {
      ReapAll().IgnoreError();
      return status;
    }
  }
  return &slots_[free_.back()];
}

absl::Status DirectIo::Start(int fd, const Slot& slot, bool write) {
  const size_t number = free_.back();
  SHERD_RETURN_IF_ERROR(queue_->Start({.fd = fd,
                                       .offset = slot.offset,
                                       .buffer = slot.buffer,
                                       .tag = number,
                                       .write = write}));
  free_.pop_back();
  return absl::OkStatus();
}

absl::Status DirectIo::Reap() {
  const IoQueue::Ended ended = queue_->Wait();
  const Slot& slot = slots_[ended.tag];
  free_.push_back(ended.tag);
  if (ended.result < 0 || slot.offset + ended.result < slot.end) {
    return absl::UnavailableError(absl::StrCat(
        "a direct request of ", slot.buffer.size(), " bytes at offset ",
        slot.offset, " ended with ", ended.result));
  }
  if (!slot.to.empty()) {
    std::memcpy(slot.to.data(),
                slot.buffer.data() + (slot.to_offset - slot.offset),
                slot.to.size());
  }
  return absl::OkStatus();
}

absl::Status DirectIo::ReapAll() {
  absl::Status status;
  while (free_.size() < slots_.size()) status.Update(Reap());
  return status;
}

}  // namespace sherd
