#include "sherd/core/comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/logging.h"
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
// Up to here no memory is allocated.
constexpr size_t kInlineVotes = 16;
constexpr size_t kInlineNotes = 4096;

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
                                          absl::string_view own, size_t bytes,
                                          const CollectiveOptions& options) {
  std::string text(bytes, '\0');
  if (group.rank() == rank) text.assign(own.data(), bytes);
  SHERD_RETURN_IF_ERROR(group.Broadcast(
      MutableBytes(reinterpret_cast<std::byte*>(text.data()), text.size()),
      rank, options));
  return text;
}

// An exchange that failed, as a failure of the operation that it was for.
absl::Status InOperation(absl::string_view what, const absl::Status& status) {
  if (status.ok()) return status;
  ErrorInfo info = GetErrorInfo(status);
  info.operation = std::string(what);
  return WithErrorInfo(Annotate(status, what), info);
}

// The lowest rank with the fingerprint that most have.
size_t FindMostCommon(absl::Span<const Vote> votes) {
  absl::flat_hash_map<uint64_t, size_t> counts;
  for (const Vote& vote : votes) ++counts[vote.fingerprint];
  size_t best = 0;
  for (size_t r = 1; r < votes.size(); ++r) {
    if (counts[votes[r].fingerprint] > counts[votes[best].fingerprint]) {
      best = r;
    }
  }
  return best;
}

Vote VoteOf(const ProcessGroup& group, const absl::Status& local,
            uint64_t fingerprint, uint64_t value) {
  return {static_cast<int64_t>(local.code()),
          ErrorRank(local).value_or(group.rank()), fingerprint,
          std::min(local.message().size(), kMaxTextBytes), value};
}

// What all votes together say. `local` is what this rank voted.
absl::Status Judge(ProcessGroup& group, absl::string_view what,
                   const absl::Status& local, absl::Span<const Vote> votes,
                   const CollectiveOptions& options) {
  const auto failed = std::find_if(votes.begin(), votes.end(),
                                   [](const Vote& v) { return v.code != 0; });
  const auto other = std::find_if(
      votes.begin(), votes.end(),
      [&](const Vote& v) { return v.fingerprint != votes[0].fingerprint; });
  if (failed == votes.end() && other == votes.end()) return absl::OkStatus();
  ErrorInfo info;
  info.group = group.name();
  info.operation = std::string(what);
  if (failed == votes.end()) {
    const size_t model = FindMostCommon(votes);
    const auto odd =
        std::find_if(votes.begin(), votes.end(), [&](const Vote& v) {
          return v.fingerprint != votes[model].fingerprint;
        });
    info.rank = static_cast<int>(odd - votes.begin());
    return WithErrorInfo(absl::InvalidArgumentError(absl::StrCat(
                             what, ": rank ", *info.rank,
                             " was called with other arguments than rank ",
                             model, "; every rank must pass the same")),
                         info);
  }
  const int rank = static_cast<int>(failed - votes.begin());
  if (failed->text_bytes > kMaxTextBytes) {
    return WithRank(absl::InternalError(absl::StrCat(what, ": rank ", rank,
                                                     " sent a malformed vote")),
                    rank);
  }
  const absl::StatusOr<std::string> cause =
      BroadcastText(group, rank, local.message(), failed->text_bytes, options);
  if (!cause.ok()) return InOperation(what, cause.status());
  info.rank = static_cast<int>(failed->blamed);
  return WithErrorInfo(
      absl::Status(static_cast<absl::StatusCode>(failed->code),
                   absl::StrCat(what, ": rank ", rank, ": ", *cause)),
      info);
}

}  // namespace

absl::Status Agree(ProcessGroup& group, absl::string_view what,
                   const absl::Status& local, uint64_t fingerprint,
                   const CollectiveOptions& options) {
  return AgreeOnMaximum(group, what, local, fingerprint, 0, options).status();
}

absl::StatusOr<uint64_t> AgreeOnMaximum(ProcessGroup& group,
                                        absl::string_view what,
                                        const absl::Status& local,
                                        uint64_t fingerprint, uint64_t value,
                                        const CollectiveOptions& options) {
  const Vote mine = VoteOf(group, local, fingerprint, value);
  absl::InlinedVector<Vote, kInlineVotes> votes(
      static_cast<size_t>(group.size()));
  SHERD_RETURN_IF_ERROR(InOperation(
      what,
      group.AllGather(BytesOf(mine),
                      MutableBytes(reinterpret_cast<std::byte*>(votes.data()),
                                   votes.size() * sizeof(Vote)),
                      options)));
  SHERD_RETURN_IF_ERROR(Judge(group, what, local, votes, options));
  return std::max_element(
             votes.begin(), votes.end(),
             [](const Vote& a, const Vote& b) { return a.value < b.value; })
      ->value;
}

absl::Status AgreeAndTell(ProcessGroup& group, absl::string_view what,
                          const absl::Status& local, uint64_t fingerprint,
                          ConstBytes note, MutableBytes notes,
                          const CollectiveOptions& options) {
  const size_t ranks = static_cast<size_t>(group.size());
  SHERD_CHECK(notes.size() == ranks * note.size());
  const size_t block = sizeof(Vote) + note.size();
  absl::InlinedVector<std::byte, kInlineNotes> all(ranks * block);
  // In place: this rank's block goes out from where it comes back.
  const size_t own = static_cast<size_t>(group.rank()) * block;
  const Vote mine = VoteOf(group, local, fingerprint, 0);
  std::memcpy(&all[own], &mine, sizeof(mine));
  if (!note.empty()) {
    std::memcpy(&all[own + sizeof(mine)], note.data(), note.size());
  }
  SHERD_RETURN_IF_ERROR(
      InOperation(what, group.AllGather(ConstBytes(&all[own], block),
                                        absl::MakeSpan(all), options)));
  absl::InlinedVector<Vote, kInlineVotes> votes(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    const std::byte* const from = &all[r * block];
    std::memcpy(&votes[r], from, sizeof(Vote));
    if (note.empty()) continue;
    std::memcpy(&notes[r * note.size()], from + sizeof(Vote), note.size());
  }
  return Judge(group, what, local, votes, options);
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
