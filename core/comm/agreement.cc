#include "sherd/core/comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/status_macros.h"

namespace sherd {
namespace {

// What a rank says in the first round; all ranks run the same build, so the
// struct travels as it lies in memory.
struct Vote {
  int64_t code;
  int64_t blamed;
  uint64_t fingerprint;
  uint64_t text_bytes;
  uint64_t value;
};
static_assert(sizeof(Vote) == 40);

constexpr size_t kMaxTextBytes = 4096;

template <typename T>
ConstBytes BytesOf(const T& value) {
  return ConstBytes(reinterpret_cast<const std::byte*>(&value), sizeof(T));
}

template <typename T>
MutableBytes BytesOf(std::vector<T>& values) {
  return MutableBytes(reinterpret_cast<std::byte*>(values.data()),
                      values.size() * sizeof(T));
}

// The text of `rank`, from that rank to all.
absl::StatusOr<std::string> BroadcastText(ProcessGroup& group, int rank,
                                          absl::string_view own, size_t bytes) {
  std::string text(bytes, '\0');
  if (group.rank() == rank) text.assign(own.data(), bytes);
  SHERD_RETURN_IF_ERROR(group.Broadcast(
      MutableBytes(reinterpret_cast<std::byte*>(text.data()), text.size()),
      rank));
  return text;
}

}  // namespace

absl::Status Agree(ProcessGroup& group, absl::string_view what,
                   const absl::Status& local, uint64_t fingerprint) {
  return AgreeOnMaximum(group, what, local, fingerprint, 0).status();
}

absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        absl::string_view what,
                                        const absl::Status& local,
                                        uint64_t fingerprint, uint64_t value) {
  const absl::string_view text = local.message().substr(0, kMaxTextBytes);
  const Vote mine = {static_cast<int64_t>(local.code()),
                     BlamedRank(local).value_or(group.rank()), fingerprint,
                     text.size(), value};
  std::vector<Vote> votes(group.size());
  SHERD_RETURN_IF_ERROR(group.AllGather(BytesOf(mine), BytesOf(votes)));

  const auto failed = std::find_if(votes.begin(), votes.end(),
                                   [](const Vote& v) { return v.code != 0; });
  ErrorInfo info;
  info.group = group.name();
  info.operation = std::string(what);
  if (failed != votes.end()) {
    const int rank = static_cast<int>(failed - votes.begin());
    if (failed->text_bytes > kMaxTextBytes) {
      return WithRank(absl::InternalError(absl::StrCat(
                          what, ": rank ", rank, " sent a malformed vote")),
                      rank);
    }
    SHERD_ASSIGN_OR_RETURN(
        const std::string cause,
        BroadcastText(group, rank, text, failed->text_bytes));
    info.rank = static_cast<int>(failed->blamed);
    return WithErrorInfo(
        absl::Status(static_cast<absl::StatusCode>(failed->code),
                     absl::StrCat(what, ": rank ", rank, ": ", cause)),
        info);
  }
  for (int rank = 1; rank < group.size(); ++rank) {
    if (votes[rank].fingerprint == votes[0].fingerprint) continue;
    info.rank = rank;
    return WithErrorInfo(
        absl::InvalidArgumentError(absl::StrCat(
            what, ": rank ", rank,
            " was called with other arguments than rank 0; every rank must "
            "pass the same")),
        info);
  }
  return std::max_element(
             votes.begin(), votes.end(),
             [](const Vote& a, const Vote& b) { return a.value < b.value; })
      ->value;
}

absl::StatusOr<std::vector<std::string>> AllGatherStrings(
    ProcessGroup& group, absl::string_view local, int64_t max_total_bytes) {
  const uint64_t own_size = local.size();
  std::vector<uint64_t> sizes(group.size());
  SHERD_RETURN_IF_ERROR(group.AllGather(BytesOf(own_size), BytesOf(sizes)));
  uint64_t total = 0;
  for (const uint64_t size : sizes) {
    total = CheckedAdd(total, size).value_or(UINT64_MAX);
  }
  if (total > static_cast<uint64_t>(max_total_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the ranks want to gather ", total,
                     " bytes, expected at most ", max_total_bytes));
  }
  std::vector<std::string> strings;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  strings.reserve(sizes.size());
  for (const uint64_t size : sizes) {
    strings.emplace_back(size, '\0');
    sends.emplace_back(reinterpret_cast<const std::byte*>(local.data()),
                       local.size());
    recvs.emplace_back(reinterpret_cast<std::byte*>(strings.back().data()),
                       size);
  }
  SHERD_RETURN_IF_ERROR(group.AllToAllV(sends, recvs));
  return strings;
}

Fingerprint& Fingerprint::Add(absl::string_view bytes) {
  constexpr uint64_t kPrime = 0x100000001b3;
  // The length keeps "ab","c" apart from "a","bc".
  Add(static_cast<int64_t>(bytes.size()));
  for (const char c : bytes) {
    value_ = (value_ ^ static_cast<unsigned char>(c)) * kPrime;
  }
  return *this;
}

Fingerprint& Fingerprint::Add(int64_t number) {
  constexpr uint64_t kPrime = 0x100000001b3;
  for (int shift = 0; shift < 64; shift += 8) {
    value_ = (value_ ^ ((number >> shift) & 0xff)) * kPrime;
  }
  return *this;
}

}  // namespace sherd
