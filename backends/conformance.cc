#include "sherd/backends/conformance.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/comm/work.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kSizes[] = {1, 7, 1025, 1'000'003};

// The byte that `sender` puts at `index` of what it sends to `receiver`.
std::byte Pattern(int sender, int receiver, size_t index) {
  return static_cast<std::byte>(
      (sender * 131 + receiver * 17 + index * 7 + index / 251) & 0xff);
}

std::vector<std::byte> Payload(int sender, int receiver, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = Pattern(sender, receiver, i);
  return bytes;
}

void ExpectPayload(ConstBytes bytes, int sender, int receiver) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_EQ(bytes[i], Pattern(sender, receiver, i))
        << "byte " << i << " of " << bytes.size() << " from rank " << sender
        << " to rank " << receiver;
  }
}

}  // namespace

void CheckBarrier(ProcessGroup& group) {
  const std::string counter = "conformance/barrier";
  for (int round = 1; round <= 3; ++round) {
    ASSERT_THAT(group.store().Add(counter, 1), IsOk());
    ASSERT_THAT(group.Barrier(), IsOk());
    const auto count = group.store().Add(counter, 0);
    ASSERT_THAT(count, IsOk());
    EXPECT_GE(*count, round * group.size());
  }
}

void CheckBroadcast(ProcessGroup& group) {
  for (const size_t size : kSizes) {
    for (int root = 0; root < group.size(); ++root) {
      std::vector<std::byte> buffer(size);
      if (group.rank() == root) buffer = Payload(root, 0, size);
      ASSERT_THAT(group.Broadcast(absl::MakeSpan(buffer), root), IsOk());
      ExpectPayload(buffer, root, 0);
    }
  }
}

void CheckAllGather(ProcessGroup& group) {
  for (const size_t size : kSizes) {
    for (const bool in_place : {false, true}) {
      for (const bool asynchronous : {false, true}) {
        const std::vector<std::byte> own = Payload(group.rank(), 0, size);
        std::vector<std::byte> all(size * group.size());
        ConstBytes send = own;
        if (in_place) {
          std::copy(own.begin(), own.end(),
                    all.begin() + static_cast<ptrdiff_t>(group.rank() * size));
          send = absl::MakeConstSpan(all).subspan(group.rank() * size, size);
        }
        const absl::Status status =
            asynchronous
                ? group.AllGatherAsync(send, absl::MakeSpan(all)).Wait()
                : group.AllGather(send, absl::MakeSpan(all));
        ASSERT_THAT(status, IsOk());
        for (int r = 0; r < group.size(); ++r) {
          ExpectPayload(absl::MakeConstSpan(all).subspan(r * size, size), r, 0);
        }
      }
    }
  }
}

void CheckAllToAllV(ProcessGroup& group) {
  // Lengths that both ends know; every third pair has no message.
  const auto length = [](int from, int to) -> size_t {
    const int pair = from * 5 + to * 3;
    return pair % 3 == 1 ? 0 : 1 + pair * 1013;
  };
  std::vector<std::vector<std::byte>> outgoing, incoming;
  std::vector<ConstBytes> sends;
  std::vector<MutableBytes> recvs;
  for (int r = 0; r < group.size(); ++r) {
    outgoing.push_back(Payload(group.rank(), r, length(group.rank(), r)));
    incoming.emplace_back(length(r, group.rank()));
  }
  for (int r = 0; r < group.size(); ++r) {
    sends.emplace_back(outgoing[r]);
    recvs.push_back(absl::MakeSpan(incoming[r]));
  }
  ASSERT_THAT(group.AllToAllV(sends, recvs), IsOk());
  for (int r = 0; r < group.size(); ++r) {
    ExpectPayload(incoming[r], r, group.rank());
  }
}

void CheckOneSidedAllToAllV(ProcessGroup& group) {
  constexpr size_t kSize = 4096;
  for (const bool to_all : {true, false}) {
    const int centre = group.size() - 1;
    std::vector<std::vector<std::byte>> outgoing(group.size());
    std::vector<std::vector<std::byte>> incoming(group.size());
    std::vector<ConstBytes> sends(group.size());
    std::vector<MutableBytes> recvs(group.size());
    for (int r = 0; r < group.size(); ++r) {
      const bool to_r = to_all ? group.rank() == centre : r == centre;
      const bool from_r = to_all ? r == centre : group.rank() == centre;
      if (to_r) outgoing[r] = Payload(group.rank(), r, kSize);
      if (from_r) incoming[r].resize(kSize);
      sends[r] = outgoing[r];
      recvs[r] = absl::MakeSpan(incoming[r]);
    }
    ASSERT_THAT(group.AllToAllV(sends, recvs), IsOk());
    for (int r = 0; r < group.size(); ++r) {
      ExpectPayload(incoming[r], r, group.rank());
    }
  }
}

void CheckManyInFlight(ProcessGroup& group) {
  constexpr int kCalls = 100;
  std::vector<std::vector<std::byte>> own, all;
  std::vector<Work> works;
  for (int call = 0; call < kCalls; ++call) {
    own.push_back(Payload(group.rank(), call, 32));
    all.emplace_back(32 * group.size());
  }
  for (int call = 0; call < kCalls; ++call) {
    works.push_back(group.AllGatherAsync(own[call], absl::MakeSpan(all[call])));
  }
  for (int call = kCalls - 1; call >= 0; --call) {
    ASSERT_THAT(works[call].Wait(), IsOk());
    for (int r = 0; r < group.size(); ++r) {
      ExpectPayload(absl::MakeConstSpan(all[call]).subspan(r * 32, 32), r,
                    call);
    }
  }
}

void CheckDeadline(ProcessGroup& group) {
  const int absent = group.size() - 1;
  const std::string done = "conformance/deadline";
  if (group.rank() == absent) {
    // Stays until all others have their error, so that it is not taken for a
    // rank that left.
    std::vector<std::string> keys;
    for (int r = 0; r < absent; ++r) keys.push_back(absl::StrCat(done, r));
    ASSERT_THAT(group.store().Wait(keys, Deadline::After(absl::Seconds(60))),
                IsOk());
    return;
  }
  const absl::Status status =
      group.Barrier({.timeout = absl::Milliseconds(200)});
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded,
                               HasSubstr(absl::StrCat("rank ", absent, ":"))));
  EXPECT_EQ(BlamedRank(status), absent);
  EXPECT_THAT(group.Barrier(), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_THAT(group.store().Set(absl::StrCat(done, group.rank()), ""), IsOk());
}

}  // namespace sherd
