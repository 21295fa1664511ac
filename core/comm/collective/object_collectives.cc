#include "sherd/core/comm/object_collectives.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/comm/channel/backend.h"
#include "sherd/core/comm/collective/operation_label.h"

namespace sherd {
namespace {

// The remaining time of a call, for each of its steps.
class TimeBudget {
 public:
  TimeBudget(const ProcessGroup& group, const StringOptions& options)
      : deadline_(Deadline::After(options.timeout.value_or(group.timeout()))) {}

  CollectiveOptions Left() const { return {.timeout = deadline_.Remaining()}; }

 private:
  const Deadline deadline_;
};

ConstBytes BytesOf(absl::string_view text) {
  return ConstBytes(reinterpret_cast<const std::byte*>(text.data()),
                    text.size());
}

MutableBytes BytesOf(std::string& text) {
  return MutableBytes(reinterpret_cast<std::byte*>(text.data()), text.size());
}

MutableBytes BytesOf(uint64_t& number) {
  return MutableBytes(reinterpret_cast<std::byte*>(&number), sizeof(number));
}

MutableBytes BytesOf(std::vector<uint64_t>& numbers) {
  return MutableBytes(reinterpret_cast<std::byte*>(numbers.data()),
                      numbers.size() * sizeof(uint64_t));
}

// An error of this call with the information of every collective's errors.
absl::Status Describe(const ProcessGroup& group, absl::string_view operation,
                      absl::Status status) {
  ErrorInfo info;
  info.group = group.name();
  info.operation = std::string(operation);
  return WithErrorInfo(
      Annotate(std::move(status),
               absl::StrCat("group \"", group.name(), "\", rank ", group.rank(),
                            ", ", operation)),
      info);
}

absl::Status CheckTotal(uint64_t total, const StringOptions& options) {
  const int64_t limit = std::max<int64_t>(0, options.max_bytes);
  if (total <= static_cast<uint64_t>(limit)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the strings have ", total, " bytes, expected at most ",
                   limit, "; raise max_bytes on all ranks"));
}

absl::Status CheckLengths(const ProcessGroup& group,
                          absl::string_view operation,
                          absl::Span<const uint64_t> lengths,
                          const StringOptions& options) {
  uint64_t total = 0;
  for (const uint64_t length : lengths) {
    total = CheckedAdd(total, length).value_or(UINT64_MAX);
  }
  return Describe(group, operation, CheckTotal(total, options));
}

// Root's strings have one entry per rank, others' none. The collective below
// reports a root that is not a rank.
absl::Status CheckStrings(const ProcessGroup& group, size_t count, int root) {
  const size_t expected =
      group.rank() == root ? static_cast<size_t>(group.size()) : 0;
  if (!group.is_member() || count == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      group.rank() == root
          ? absl::StrCat("there are ", count, " strings, expected ", expected,
                         ", one per rank")
          : absl::StrCat("only rank ", root,
                         ", the root, passes strings, expected none here, not ",
                         count));
}

}  // namespace

absl::StatusOr<std::string> BroadcastString(ProcessGroup& group,
                                            absl::string_view local, int root,
                                            const StringOptions& options) {
  const TimeBudget time(group, options);
  uint64_t length = group.rank() == root ? local.size() : 0;
  SHERD_RETURN_IF_ERROR(InOperation(
      "broadcast_string", group.Broadcast(BytesOf(length), root, time.Left())));
  SHERD_RETURN_IF_ERROR(
      CheckLengths(group, "broadcast_string", {length}, options));
  std::string text =
      group.rank() == root ? std::string(local) : std::string(length, '\0');
  SHERD_RETURN_IF_ERROR(InOperation(
      "broadcast_string", group.Broadcast(BytesOf(text), root, time.Left())));
  return text;
}

absl::StatusOr<std::vector<std::string>> GatherStrings(
    ProcessGroup& group, absl::string_view local, int root,
    const StringOptions& options) {
  const TimeBudget time(group, options);
  uint64_t length = local.size();
  std::vector<uint64_t> lengths(static_cast<size_t>(group.size()));
  // All ranks learn the lengths, and so return the same result.
  SHERD_RETURN_IF_ERROR(InOperation(
      "gather_strings",
      group.AllGather(BytesOf(length), BytesOf(lengths), time.Left())));
  SHERD_RETURN_IF_ERROR(
      CheckLengths(group, "gather_strings", lengths, options));
  std::vector<std::string> strings;
  std::vector<MutableBytes> recvs;
  if (group.rank() == root) {
    strings.reserve(lengths.size());
    for (const uint64_t each : lengths) {
      recvs.push_back(BytesOf(strings.emplace_back(each, '\0')));
    }
  }
  SHERD_RETURN_IF_ERROR(
      InOperation("gather_strings",
                  group.GatherV(BytesOf(local), recvs, root, time.Left())));
  return strings;
}

absl::StatusOr<std::string> ScatterStrings(
    ProcessGroup& group, absl::Span<const std::string> strings, int root,
    const StringOptions& options) {
  const TimeBudget time(group, options);
  SHERD_RETURN_IF_ERROR(Describe(group, "scatter_strings",
                                 CheckStrings(group, strings.size(), root)));
  std::vector<uint64_t> lengths(static_cast<size_t>(group.size()));
  for (size_t r = 0; r < strings.size(); ++r) lengths[r] = strings[r].size();
  SHERD_RETURN_IF_ERROR(InOperation(
      "scatter_strings", group.Broadcast(BytesOf(lengths), root, time.Left())));
  SHERD_RETURN_IF_ERROR(
      CheckLengths(group, "scatter_strings", lengths, options));
  std::string own(lengths[static_cast<size_t>(group.rank())], '\0');
  std::vector<ConstBytes> sends;
  for (const std::string& text : strings) sends.push_back(BytesOf(text));
  SHERD_RETURN_IF_ERROR(
      InOperation("scatter_strings",
                  group.ScatterV(sends, BytesOf(own), root, time.Left())));
  return own;
}

absl::Status SendString(ProcessGroup& group, absl::string_view text,
                        int destination, int64_t tag,
                        const StringOptions& options) {
  const TimeBudget time(group, options);
  uint64_t length = text.size();
  SHERD_RETURN_IF_ERROR(CheckLengths(group, "send_string", {length}, options));
  SHERD_RETURN_IF_ERROR(
      InOperation("send_string",
                  group.Send(BytesOf(length), destination, tag, time.Left())));
  return InOperation("send_string",
                     group.Send(BytesOf(text), destination, tag, time.Left()));
}

absl::StatusOr<std::string> RecvString(ProcessGroup& group, int source,
                                       int64_t tag,
                                       const StringOptions& options) {
  const TimeBudget time(group, options);
  uint64_t length = 0;
  SHERD_RETURN_IF_ERROR(InOperation(
      "recv_string", group.Recv(BytesOf(length), source, tag, time.Left())));
  absl::Status status = CheckLengths(group, "recv_string", {length}, options);
  if (!status.ok()) {
    status = WithRank(std::move(status), source);
    group.Abort(status);
    return status;
  }
  std::string text(length, '\0');
  SHERD_RETURN_IF_ERROR(InOperation(
      "recv_string", group.Recv(BytesOf(text), source, tag, time.Left())));
  return text;
}

}  // namespace sherd
