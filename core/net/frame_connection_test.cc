#include "sherd/core/net/frame_connection.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/net/event_loop.h"
#include "sherd/core/net/frame.h"
#include "sherd/core/net/socket.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::IsOk;
using ::sherd::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Spans = std::vector<absl::Span<std::byte>>;

Deadline Late() { return Deadline::After(absl::Seconds(60)); }

absl::Span<const std::byte> BytesOf(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

absl::Span<std::byte> BytesOf(std::string& text) {
  return {reinterpret_cast<std::byte*>(text.data()), text.size()};
}

// Bytes that differ from place to place.
std::string Pattern(size_t size, uint32_t seed) {
  std::string text(size, '\0');
  uint32_t value = seed * 2654435761u + 1;
  for (char& c : text) {
    value = value * 1664525u + 1013904223u;
    c = static_cast<char>(value >> 24);
  }
  return text;
}

std::string EncodeTailFrame(absl::string_view head, absl::string_view tail) {
  return absl::StrCat(TailFrameHeader(head.size(), tail.size()), head, tail);
}

std::pair<UniqueFd, UniqueFd> SocketPair() {
  int fds[2];
  EXPECT_EQ(
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds),
      0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::string Receive(const UniqueFd& fd, size_t size) {
  std::string data(size, '\0');
  EXPECT_THAT(ReceiveFully(fd.get(), data.data(), size, Late()), IsOk());
  return data;
}

std::unique_ptr<EventLoop> NewLoop() {
  absl::StatusOr<std::unique_ptr<EventLoop>> loop = EventLoop::Start("test");
  EXPECT_THAT(loop, IsOk());
  return *std::move(loop);
}

void RunOn(EventLoop& loop, std::function<void()> task) {
  absl::Notification done;
  loop.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

// What has arrived at the loop's descriptors before is handled afterwards: the
// first task may run in a round that began before, the second cannot.
void Settle(EventLoop& loop) {
  RunOn(loop, [] {});
  RunOn(loop, [] {});
}

// A tail's memory in pieces: of `cut` bytes each and the rest, with an empty
// piece before each. 0: as a whole.
Spans Cut(absl::Span<std::byte> memory, size_t cut) {
  if (cut == 0) return {memory};
  Spans pieces;
  for (; !memory.empty(); memory.remove_prefix(pieces.back().size())) {
    pieces.push_back(memory.subspan(0, 0));
    pieces.push_back(memory.subspan(0, cut));
  }
  return pieces;
}

// A connection on a loop, with a record of its events.
class End {
 public:
  struct Frame {
    std::string head;
    std::string tail;
    bool is_whole = false;

    friend bool operator==(const Frame& a, const Frame& b) {
      return a.head == b.head && a.tail == b.tail && a.is_whole == b.is_whole;
    }
    friend void PrintTo(const Frame& frame, std::ostream* os) {
      *os << '"' << absl::CHexEscape(frame.head) << "\" with "
          << frame.tail.size() << " bytes" << (frame.is_whole ? "" : " (part)");
    }
  };

  End(EventLoop* loop, UniqueFd socket, FrameConnection::Options options,
      size_t cut = 0)
      : loop_(loop), cut_(cut) {
    connection_ = FrameConnection::Create(loop, std::move(socket), options);
    RunOn(*loop_, [this] {
      EXPECT_THAT(connection_->Start(
                      {.on_frame =
                           [this](absl::string_view payload) {
                             AddFrame(payload, 0, true);
                           },
                       .on_head =
                           [this](absl::string_view head, uint64_t bytes) {
                             return OnHead(head, bytes);
                           },
                       .on_tail =
                           [this] {
                             absl::MutexLock lock(&mutex_);
                             ++tails_;
                             if (on_head) return;
                             EXPECT_FALSE(frames_.back().is_whole);
                             frames_.back().is_whole = true;
                           },
                       .on_closed =
                           [this](const absl::Status& why) {
                             absl::MutexLock lock(&mutex_);
                             closed_.push_back(why);
                           }}),
                  IsOk());
    });
  }
  ~End() { Close(absl::CancelledError("the test has ended")); }

  void Close(const absl::Status& why) {
    RunOn(*loop_, [&] { connection_->Close(why); });
  }

  FrameConnection& connection() { return *connection_; }

  // Where a tail goes, instead of memory of this object. On the loop thread.
  std::function<absl::StatusOr<Spans>(absl::string_view head, uint64_t bytes)>
      on_head;

  std::vector<Frame> frames() {
    absl::MutexLock lock(&mutex_);
    return frames_;
  }
  std::vector<Frame> WaitForFrames(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [&] {
      mutex_.AssertHeld();
      return !closed_.empty() || (frames_.size() >= count &&
                                  (count == 0 || frames_[count - 1].is_whole));
    };
    EXPECT_TRUE(
        mutex_.AwaitWithTimeout(absl::Condition(&are_there), absl::Seconds(60)))
        << frames_.size() << " frames of " << count;
    return frames_;
  }

  // How often on_tail was called.
  int tails() {
    absl::MutexLock lock(&mutex_);
    return tails_;
  }

  std::vector<absl::Status> closed() {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  absl::Status WaitForClosed() {
    absl::MutexLock lock(&mutex_);
    const auto is_closed = [&] {
      mutex_.AssertHeld();
      return !closed_.empty();
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_closed),
                                        absl::Seconds(60)));
    return closed_.empty() ? absl::OkStatus() : closed_[0];
  }

 private:
  void AddFrame(absl::string_view head, uint64_t bytes, bool is_whole) {
    absl::MutexLock lock(&mutex_);
    EXPECT_THAT(closed_, IsEmpty());
    EXPECT_TRUE(frames_.empty() || frames_.back().is_whole);
    frames_.push_back({std::string(head), std::string(bytes, '\0'), is_whole});
  }

  absl::StatusOr<Spans> OnHead(absl::string_view head, uint64_t bytes) {
    if (on_head) return on_head(head, bytes);
    AddFrame(head, bytes, bytes == 0);
    absl::MutexLock lock(&mutex_);
    return Cut(BytesOf(frames_.back().tail), cut_);
  }

  EventLoop* const loop_;
  const size_t cut_;
  std::shared_ptr<FrameConnection> connection_;
  absl::Mutex mutex_;
  // Moved when they grow, but no tail is then under way.
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
  int tails_ ABSL_GUARDED_BY(mutex_) = 0;
};

FrameConnection::Options WithTails() { return {.has_tails = true}; }

// How often, and with what, on_sent was called for each frame.
class SentLog {
 public:
  std::function<void(const absl::Status&)> For(int frame) {
    {
      absl::MutexLock lock(&mutex_);
      sent_[frame];
    }
    return [this, frame](const absl::Status& status) {
      absl::MutexLock lock(&mutex_);
      sent_[frame].push_back(status);
    };
  }
  std::map<int, std::vector<absl::Status>> sent() {
    absl::MutexLock lock(&mutex_);
    return sent_;
  }
  void ExpectEach(const ::testing::Matcher<absl::Status>& matcher) {
    for (const auto& [frame, statuses] : sent()) {
      EXPECT_THAT(statuses, ElementsAre(matcher)) << "frame " << frame;
    }
  }

 private:
  absl::Mutex mutex_;
  std::map<int, std::vector<absl::Status>> sent_ ABSL_GUARDED_BY(mutex_);
};

TEST(FrameConnectionTest, AFrameWithATailHasTheDocumentedBytes) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  EXPECT_EQ(
      absl::BytesToHexString(TailFrameHeader(0x01020304, uint64_t{5} << 40)),
      "040302010000000000050000");
  ASSERT_THAT(end.connection().Send(
                  {.head = "head", .tail = {BytesOf("ta"), BytesOf("il!")}}),
              IsOk());
  EXPECT_EQ(absl::BytesToHexString(Receive(other, 21)),
            "0400000005000000000000006865616474"
            "61696c21");
  // One without a tail; its head may be empty too.
  ASSERT_THAT(end.connection().Send("abc"), IsOk());
  ASSERT_THAT(end.connection().Send(OutgoingFrame{}), IsOk());
  EXPECT_EQ(absl::BytesToHexString(Receive(other, 27)),
            "030000000000000000000000616263"
            "000000000000000000000000");
}

TEST(FrameConnectionTest, FramesWithoutTailsKeepTheirFormat) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), {});
  SentLog log;
  EXPECT_THAT(end.connection().Send({.head = "h", .on_sent = log.For(0)}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "no tails"));
  EXPECT_THAT(log.sent()[0], IsEmpty());
  ASSERT_THAT(end.connection().Send("abc"), IsOk());
  EXPECT_EQ(absl::BytesToHexString(Receive(other, 7)), "03000000616263");
  ASSERT_THAT(SendFully(other.get(), EncodeFrame("def"), Late()), IsOk());
  EXPECT_THAT(end.WaitForFrames(1), ElementsAre(End::Frame{"def", "", true}));
}

TEST(FrameConnectionTest, TailsLandInMemoryOfAnyShape) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{7}, size_t{4096}}) {
    SentLog log;
    auto [a, b] = SocketPair();
    End sender(loop.get(), std::move(a), WithTails());
    End receiver(loop.get(), std::move(b), WithTails(), cut);
    std::vector<End::Frame> expected;
    for (const size_t size : {0, 1, 6, 7, 8, 70000, 0, 300000, 5}) {
      expected.push_back(
          {absl::StrCat("head ", size), Pattern(size, expected.size()), true});
    }
    int number = 0;
    for (End::Frame& frame : expected) {
      std::vector<absl::Span<const std::byte>> tail;
      for (const auto& piece : Cut(BytesOf(frame.tail), cut)) {
        tail.push_back(piece);
      }
      ASSERT_THAT(
          sender.connection().Send(
              {.head = frame.head, .tail = tail, .on_sent = log.For(number++)}),
          IsOk());
    }
    EXPECT_EQ(receiver.WaitForFrames(expected.size()), expected)
        << "pieces of " << cut;
    sender.Close(absl::CancelledError("end"));
    log.ExpectEach(absl::OkStatus());
  }
}

TEST(FrameConnectionTest, PiecesEndAnywhereOnTheWayIn) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  const std::vector<End::Frame> expected = {{"first", "0123456789", true},
                                            {"", "x", true},
                                            {"none", "", true},
                                            {"last", "abcdefg", true}};
  std::string stream;
  for (const End::Frame& frame : expected) {
    stream += EncodeTailFrame(frame.head, frame.tail);
  }
  for (const size_t cut : {0, 1, 3}) {
    // In two pieces of every size, then one byte after another.
    for (size_t piece = 0; piece <= stream.size(); ++piece) {
      auto [own, other] = SocketPair();
      End end(loop.get(), std::move(own), WithTails(), cut);
      for (size_t at = 0; at < stream.size();) {
        const size_t size = piece == 0 ? 1 : at == 0 ? piece : stream.size();
        const absl::string_view part =
            absl::string_view(stream).substr(at, size);
        ASSERT_THAT(SendFully(other.get(), part, Late()), IsOk());
        Settle(*loop);
        at += part.size();
      }
      EXPECT_EQ(end.frames(), expected) << piece << ", pieces of " << cut;
    }
  }
}

// A Unix socket takes what is sent to it in portions of a few KiB. With a first
// frame of every size up to that, they end everywhere in the frames after it.
TEST(FrameConnectionTest, PortionsEndAnywhereOnTheWayOut) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  const std::string filler = Pattern(9000, 1), large = Pattern(3000, 2);
  for (size_t size = 4000; size < 6500; ++size) {
    auto [own, other] = SocketPair();
    const int least = 1;
    ASSERT_EQ(
        setsockopt(own.get(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)), 0);
    SentLog log;
    End end(loop.get(), std::move(own), WithTails());
    std::string expected;
    const auto send = [&](absl::string_view head,
                          std::vector<absl::string_view> pieces) {
      OutgoingFrame frame = {.head = std::string(head)};
      std::string tail;
      for (const absl::string_view piece : pieces) {
        frame.tail.push_back(BytesOf(piece));
        absl::StrAppend(&tail, piece);
      }
      frame.on_sent = log.For(static_cast<int>(expected.size()));
      expected += EncodeTailFrame(head, tail);
      ASSERT_THAT(end.connection().Send(std::move(frame)), IsOk());
    };
    send("", {absl::string_view(filler).substr(0, size)});
    send("head", {"a", "", "bc"});
    ASSERT_THAT(end.connection().Send("payload"), IsOk());
    ASSERT_THAT(end.connection().Send(""), IsOk());
    expected += EncodeTailFrame("payload", "") + EncodeTailFrame("", "");
    send("", {"", "d", ""});
    send(large, {large});
    ASSERT_EQ(Receive(other, expected.size()), expected) << size;
    Settle(*loop);
    log.ExpectEach(absl::OkStatus());
  }
}

TEST(FrameConnectionTest, WhatAFrameOwnsGoesOnceItIsSent) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const int least = 1;
  ASSERT_EQ(setsockopt(own.get(), SOL_SOCKET, SO_SNDBUF, &least, sizeof(least)),
            0);
  End end(loop.get(), std::move(own), WithTails());
  const auto owned = std::make_shared<int>();
  // Later rounds use what earlier ones have left.
  for (uint32_t round = 0; round < 4; ++round) {
    std::string expected;
    for (uint32_t i = 0; i < 100; ++i) {
      const std::string head = Pattern(i * 37 % 2000, 100 * round + i);
      expected += EncodeTailFrame(head, "");
      ASSERT_THAT(
          end.connection().Send(
              {.head = head, .on_sent = [owned](const absl::Status&) {}}),
          IsOk());
    }
    EXPECT_GT(owned.use_count(), 32) << "few frames waited";
    ASSERT_EQ(Receive(other, expected.size()), expected);
    Settle(*loop);
    EXPECT_EQ(owned.use_count(), 1);
  }
}

TEST(FrameConnectionTest, ATailMayHaveMorePiecesThanTheSystemTakesAtOnce) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [a, b] = SocketPair();
  End sender(loop.get(), std::move(a), WithTails());
  End receiver(loop.get(), std::move(b), WithTails(), 3);
  std::string tail = Pattern(3 * 5000, 5);
  OutgoingFrame frame = {.head = "many"};
  for (const auto& piece : Cut(BytesOf(tail), 5)) frame.tail.push_back(piece);
  ASSERT_GT(frame.tail.size(), 2 * 1024u);
  SentLog log;
  frame.on_sent = log.For(0);
  ASSERT_THAT(sender.connection().Send(std::move(frame)), IsOk());
  // There is room for all: it leaves before Send returns.
  EXPECT_THAT(log.sent()[0], ElementsAre(absl::OkStatus()));
  EXPECT_THAT(receiver.WaitForFrames(1),
              ElementsAre(End::Frame{"many", tail, true}));
}

TEST(FrameConnectionTest, LengthsOverTheMaximumAreRefusedBeforeMemoryIsTaken) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  struct Case {
    std::string bytes;
    std::string text;
  };
  for (const Case& c :
       {Case{TailFrameHeader(4, uint64_t{1} << 60),
             "announces 1152921504606846976 bytes of its tail, expected at "
             "most 1000"},
        Case{TailFrameHeader(4, 1001), "announces 1001 bytes of its tail"},
        Case{TailFrameHeader(11, 0),
             "announces 11 bytes of its head, expected at most 10"}}) {
    auto [own, other] = SocketPair();
    End end(loop.get(), std::move(own),
            {.max_frame_bytes = 10, .has_tails = true, .max_tail_bytes = 1000});
    ASSERT_THAT(SendFully(other.get(), c.bytes, Late()), IsOk());
    EXPECT_THAT(end.WaitForClosed(),
                StatusIs(absl::StatusCode::kInvalidArgument, c.text));
    EXPECT_THAT(end.frames(), IsEmpty());
  }
}

TEST(FrameConnectionTest, TheReceiverOfAHeadMayRefuseItsTail) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.has_tails = true, .max_tail_bytes = ~uint64_t{0}});
  RunOn(*loop, [&] {
    end.on_head = [](absl::string_view, uint64_t bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(bytes, " are many"));
    };
  });
  ASSERT_THAT(SendFully(other.get(),
                        TailFrameHeader(1, uint64_t{1} << 60) + "h", Late()),
              IsOk());
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       "1152921504606846976 are many"));
}

TEST(FrameConnectionTest, MemoryMustBeAsLargeAsTheTail) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  for (const size_t size : {0, 4, 6}) {
    auto [own, other] = SocketPair();
    std::string memory(size, '?');
    End end(loop.get(), std::move(own), WithTails());
    RunOn(*loop, [&] {
      end.on_head = [&](absl::string_view, uint64_t) {
        return Spans{BytesOf(memory)};
      };
    });
    ASSERT_THAT(SendFully(other.get(), EncodeTailFrame("h", "12345"), Late()),
                IsOk());
    EXPECT_THAT(
        end.WaitForClosed(),
        StatusIs(absl::StatusCode::kInternal,
                 absl::StrCat("expected 5 bytes of memory, got ", size)));
    EXPECT_EQ(memory, std::string(size, '?'));
  }
}

TEST(FrameConnectionTest, ATailWithoutMemoryIsDropped) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [a, b] = SocketPair();
  End sender(loop.get(), std::move(a), WithTails());
  std::vector<std::string> heads;
  std::string kept;
  {
    End receiver(loop.get(), std::move(b), WithTails());
    absl::Notification done;
    RunOn(*loop, [&] {
      receiver.on_head = [&](absl::string_view head,
                             uint64_t bytes) -> absl::StatusOr<Spans> {
        heads.emplace_back(head);
        if (head == "end") done.Notify();
        if (head != "keep") return Spans();
        kept.resize(bytes);
        return Spans{BytesOf(kept)};
      };
    });
    const std::string tail = Pattern(200000, 3);
    for (const size_t size : {1, 100, 200000}) {
      for (const char* head : {"drop", "keep"}) {
        ASSERT_THAT(
            sender.connection().Send(
                {.head = head,
                 .tail = {BytesOf(absl::string_view(tail).substr(0, size))}}),
            IsOk());
      }
    }
    ASSERT_THAT(sender.connection().Send("end"), IsOk());
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
    EXPECT_EQ(kept, tail);
    EXPECT_EQ(receiver.tails(), 6);
  }
  EXPECT_THAT(heads, ElementsAre("drop", "keep", "drop", "keep", "drop", "keep",
                                 "end"));
}

TEST(FrameConnectionTest, AConnectionThatIsClosedWritesNoMore) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  std::string memory(10, '?');
  End end(loop.get(), std::move(own), WithTails());
  RunOn(*loop, [&] {
    end.on_head = [&](absl::string_view, uint64_t) {
      end.connection().Close(absl::AbortedError("enough"));
      return Spans{BytesOf(memory)};
    };
  });
  ASSERT_THAT(
      SendFully(other.get(), EncodeTailFrame("h", "0123456789"), Late()),
      IsOk());
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kAborted, "enough"));
  Settle(*loop);
  EXPECT_EQ(memory, "??????????");
  EXPECT_EQ(end.tails(), 0);
  EXPECT_EQ(end.closed().size(), 1u);
}

TEST(FrameConnectionTest, AGracefulCloseWithinATailWritesNoMore) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  ASSERT_THAT(SendFully(other.get(), TailFrameHeader(1, 10) + "h01234", Late()),
              IsOk());
  Settle(*loop);
  RunOn(*loop,
        [&] { end.connection().CloseGently(absl::AbortedError("enough")); });
  ASSERT_THAT(SendFully(other.get(), "56789", Late()), IsOk());
  Settle(*loop);
  EXPECT_THAT(end.frames(),
              ElementsAre(End::Frame{
                  "h", absl::StrCat("01234", std::string(5, '\0')), false}));
  shutdown(other.get(), SHUT_WR);
  EXPECT_THAT(end.WaitForClosed(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(end.tails(), 0);
}

TEST(FrameConnectionTest, TheEndOfTheOtherInATailIsReportedOnce) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  ASSERT_THAT(SendFully(other.get(), TailFrameHeader(1, 10) + "h01234", Late()),
              IsOk());
  other.Reset();
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  end.Close(absl::AbortedError("again"));
  EXPECT_EQ(end.closed().size(), 1u);
  EXPECT_EQ(end.tails(), 0);
  SentLog log;
  EXPECT_THAT(end.connection().Send({.head = "h", .on_sent = log.For(0)}),
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  EXPECT_THAT(log.sent()[0], IsEmpty());
}

TEST(FrameConnectionTest, UnsentFramesGetTheReasonBeforeTheEndIsReported) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const std::string tail(1 << 20, 'x');
  SentLog log;
  End end(loop.get(), std::move(own), WithTails());
  for (int i = 0; i < 4; ++i) {
    auto on_sent = [&, record = log.For(i)](const absl::Status& status) {
      EXPECT_THAT(end.closed(), IsEmpty());
      record(status);
      // Not under a lock.
      EXPECT_THAT(end.connection().Send("more"),
                  StatusIs(absl::StatusCode::kUnavailable));
    };
    ASSERT_THAT(end.connection().Send(
                    {.head = "h", .tail = {BytesOf(tail)}, .on_sent = on_sent}),
                IsOk());
  }
  for (const auto& [frame, statuses] : log.sent()) {
    EXPECT_THAT(statuses, IsEmpty());
  }
  end.Close(absl::AbortedError("enough"));
  EXPECT_THAT(end.closed(), ElementsAre(absl::AbortedError("enough")));
  log.ExpectEach(absl::AbortedError("enough"));
}

TEST(FrameConnectionTest, AConnectionThatWasNeverStartedFailsItsFrames) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const std::string tail(1 << 20, 'x');
  SentLog log;
  {
    const auto connection =
        FrameConnection::Create(loop.get(), std::move(own), WithTails());
    ASSERT_THAT(
        connection->Send({.tail = {BytesOf(tail)}, .on_sent = log.For(0)}),
        IsOk());
  }
  log.ExpectEach(StatusIs(absl::StatusCode::kCancelled));
}

TEST(FrameConnectionTest, WithAnEmptyQueueAFrameIsSentOnTheCallersThread) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  std::vector<std::thread::id> threads;
  const std::string tail = "tail";
  ASSERT_THAT(end.connection().Send(
                  {.head = "one",
                   .tail = {BytesOf(tail)},
                   .on_sent =
                       [&](const absl::Status&) {
                         threads.push_back(std::this_thread::get_id());
                         ASSERT_THAT(end.connection().Send("two"), IsOk());
                       }}),
              IsOk());
  EXPECT_THAT(threads, ElementsAre(std::this_thread::get_id()));
  const std::string expected =
      EncodeTailFrame("one", "tail") + EncodeTailFrame("two", "");
  EXPECT_EQ(Receive(other, expected.size()), expected);
}

TEST(FrameConnectionTest, ATailThatStopsIsCutOff) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.frame_timeout = absl::Milliseconds(50), .has_tails = true});
  ASSERT_THAT(SendFully(other.get(), TailFrameHeader(1, 10) + "h01234", Late()),
              IsOk());
  EXPECT_THAT(end.WaitForClosed(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                            "5 bytes of its tail"));
}

TEST(FrameConnectionTest, WhileItsAnswersAreNotReadItReadsNoMore) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  // No more than the socket holds unread.
  constexpr int kRequests = 200;
  const std::string answer(100000, 'a');
  int handled = 0;
  End end(loop.get(), std::move(own), WithTails());
  RunOn(*loop, [&] {
    end.on_head = [&](absl::string_view, uint64_t) {
      ++handled;
      EXPECT_THAT(end.connection().Send({.tail = {BytesOf(answer)}}), IsOk());
      return Spans();
    };
  });
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_THAT(SendFully(other.get(), EncodeTailFrame("?", ""), Late()),
                IsOk());
  }
  Settle(*loop);
  RunOn(*loop, [&] { EXPECT_LT(handled, 30); });
  const std::string one = EncodeTailFrame("", answer);
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(Receive(other, one.size()), one);
  }
  RunOn(*loop, [&] { EXPECT_EQ(handled, kRequests); });
}

TEST(FrameConnectionTest, APeerThatReadsNothingIsDisconnected) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.max_queued_bytes = 1 << 20, .has_tails = true});
  // Tails are not held here.
  const std::string tail(4 << 20, 'x');
  ASSERT_THAT(end.connection().Send({.tail = {BytesOf(tail)}}), IsOk());
  Settle(*loop);
  EXPECT_THAT(end.closed(), IsEmpty());
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = end.connection().Send(std::string(10000, 'y'));
  }
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kUnavailable, "does not read"));
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kResourceExhausted, "does not read"));
}

// Data that the other end sent before it closed is received, though it cannot
// be answered any more.
TEST(FrameConnectionTest, DataSentBeforeTheEndIsReceived) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.has_tails = true, .pauses_reading = false});
  const std::string tail(4 << 20, 'x');
  ASSERT_THAT(end.connection().Send({.tail = {BytesOf(tail)}}), IsOk());
  // The loop finds the data and the end at once.
  RunOn(*loop, [&, &other = other] {
    ASSERT_THAT(SendFully(other.get(), EncodeTailFrame("bye", ""), Late()),
                IsOk());
    other.Reset();
  });
  EXPECT_THAT(end.WaitForClosed(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(end.frames(), ElementsAre(End::Frame{"bye", "", true}));
}

TEST(FrameConnectionTest, BothEndsMaySendMoreThanASocketHoldsAtOnce) {
  SentLog log;
  const std::string tails[] = {Pattern(64 << 20, 1), Pattern(64 << 20, 2)};
  const std::unique_ptr<EventLoop> loops[] = {NewLoop(), NewLoop()};
  auto [a, b] = SocketPair();
  const FrameConnection::Options options = {.has_tails = true,
                                            .pauses_reading = false};
  End one(loops[0].get(), std::move(a), options);
  End other(loops[1].get(), std::move(b), options);
  ASSERT_THAT(
      one.connection().Send(
          {.head = "one", .tail = {BytesOf(tails[0])}, .on_sent = log.For(0)}),
      IsOk());
  ASSERT_THAT(other.connection().Send({.head = "other",
                                       .tail = {BytesOf(tails[1])},
                                       .on_sent = log.For(1)}),
              IsOk());
  // Not by a matcher, which would print them.
  const std::vector<End::Frame> at_other = other.WaitForFrames(1);
  ASSERT_EQ(at_other.size(), 1u);
  EXPECT_TRUE(at_other[0] == (End::Frame{"one", tails[0], true}));
  const std::vector<End::Frame> at_one = one.WaitForFrames(1);
  ASSERT_EQ(at_one.size(), 1u);
  EXPECT_TRUE(at_one[0] == (End::Frame{"other", tails[1], true}));
  for (const auto& loop : loops) Settle(*loop);
  log.ExpectEach(absl::OkStatus());
}

// A buffer of so many bytes, more than a program may request unless it is
// root's.
bool HasRoomFor(const UniqueFd& fd, int bytes) {
  return setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUFFORCE, &bytes,
                    sizeof(bytes)) == 0;
}

size_t BytesToRead(int fd) {
  int bytes = -1;
  EXPECT_EQ(ioctl(fd, FIONREAD, &bytes), 0);
  return static_cast<size_t>(bytes);
}

TEST(FrameConnectionTest, ALargeFrameLetsOthersTakeTheirTurn) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::unique_ptr<EventLoop> loop = NewLoop();
  const std::string large = Pattern(8 * kMiB, 1);
  for (const bool is_payload : {false, true}) {
    SCOPED_TRACE(is_payload);
    auto [own, other] = SocketPair();
    if (!HasRoomFor(own, 64 << 20)) GTEST_SKIP() << "only for root";
    End end(loop.get(), std::move(own), WithTails());
    SentLog log;
    RunOn(*loop, [&, &other = other] {
      ASSERT_THAT(is_payload ? end.connection().Send(large)
                             : end.connection().Send({.tail = {BytesOf(large)},
                                                      .on_sent = log.For(0)}),
                  IsOk());
      // One call, though the socket has room for all, and the loop the rest.
      EXPECT_THAT(log.sent()[0], IsEmpty());
      EXPECT_LE(BytesToRead(other.get()), 2 * kMiB);
    });
    const std::string expected =
        is_payload ? EncodeTailFrame(large, "") : EncodeTailFrame("", large);
    EXPECT_TRUE(Receive(other, expected.size()) == expected);
  }
}

TEST(FrameConnectionTest, ALargeTailIsReceivedInTurns) {
  constexpr size_t kMiB = size_t{1} << 20;
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  if (!HasRoomFor(other, 128 << 20)) GTEST_SKIP() << "only for root";
  const int fd = own.get();
  End end(loop.get(), std::move(own), WithTails(), 3 * kMiB);
  const std::string tail = Pattern(16 * kMiB, 1);
  const std::string after = EncodeTailFrame("after", "x");
  absl::Notification looked;
  RunOn(*loop, [&, &other = other] {
    ASSERT_THAT(
        SendFully(other.get(), EncodeTailFrame("h", tail) + after, Late()),
        IsOk());
    // After a round of the loop with the head, and one with more of the tail.
    loop->Post([&] {
      loop->Post([&] {
        EXPECT_GE(BytesToRead(fd), 12 * kMiB);
        looked.Notify();
      });
    });
  });
  looked.WaitForNotification();
  EXPECT_EQ(end.WaitForFrames(2),
            (std::vector<End::Frame>{{"h", tail, true}, {"after", "x", true}}));
}

TEST(FrameConnectionTest, AFrameThatDidNotLeaveIsNotReportedAsSent) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  const std::string tail(1 << 20, 'x');
  for (const bool gently : {false, true}) {
    SCOPED_TRACE(gently);
    auto [own, other] = SocketPair();
    End end(loop.get(), std::move(own), WithTails());
    SentLog log;
    ASSERT_THAT(
        end.connection().Send({.tail = {BytesOf(tail)}, .on_sent = log.For(0)}),
        IsOk());
    if (gently) {
      RunOn(*loop, [&] { end.connection().CloseGently(absl::OkStatus()); });
      EXPECT_THAT(log.sent()[0], IsEmpty());
    }
    end.Close(absl::OkStatus());
    EXPECT_THAT(end.closed(), ElementsAre(IsOk()));
    log.ExpectEach(
        StatusIs(absl::StatusCode::kCancelled, "closed before the frame left"));
  }
}

TEST(FrameConnectionTest, AGracefulCloseSendsQueuedTails) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  const std::string tail = Pattern(1 << 20, 1);
  SentLog log;
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(
        end.connection().Send(
            {.head = "h", .tail = {BytesOf(tail)}, .on_sent = log.For(i)}),
        IsOk());
  }
  RunOn(*loop,
        [&] { end.connection().CloseGently(absl::AbortedError("enough")); });
  EXPECT_THAT(end.connection().Send("late"),
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  const std::string one = EncodeTailFrame("h", tail);
  EXPECT_TRUE(Receive(other, 2 * one.size()) == one + one);
  char byte;
  EXPECT_THAT(ReceiveFully(other.get(), &byte, 1, Late()),
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
  other.Reset();
  EXPECT_THAT(end.WaitForClosed(), StatusIs(absl::StatusCode::kAborted));
  log.ExpectEach(absl::OkStatus());
}

TEST(FrameConnectionTest, SendingToAClosedPeerIsAnErrorAndNotASignal) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  SentLog log;
  const auto connection =
      FrameConnection::Create(loop.get(), std::move(own), WithTails());
  other.Reset();
  EXPECT_THAT(connection->Send({.head = "h", .on_sent = log.For(0)}),
              StatusIs(absl::StatusCode::kUnavailable, "broke"));
  EXPECT_THAT(connection->Send("more"),
              StatusIs(absl::StatusCode::kUnavailable, "broke"));
  EXPECT_THAT(log.sent()[0], IsEmpty());
  RunOn(*loop, [&] { connection->Close(absl::OkStatus()); });
}

// The loop is not notified when the other end stops reading.
TEST(FrameConnectionTest, AConnectionThatCannotSendCloses) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  ASSERT_EQ(shutdown(other.get(), SHUT_RD), 0);
  EXPECT_THAT(end.connection().Send("payload"),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kUnavailable, "broke"));
}

TEST(FrameConnectionTest, ABrokenConnectionFailsSendsWhileItStillReceives) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.has_tails = true, .pauses_reading = false});
  SentLog log;
  const std::string tail(4 << 20, 'x');
  ASSERT_THAT(
      end.connection().Send({.tail = {BytesOf(tail)}, .on_sent = log.For(0)}),
      IsOk());
  std::vector<std::string> words;
  RunOn(*loop, [&, &other = other] {
    end.on_head = [&](absl::string_view head, uint64_t) {
      words.emplace_back(head);
      log.ExpectEach(StatusIs(absl::StatusCode::kUnavailable, "broke"));
      EXPECT_THAT(end.connection().Send("answer"),
                  StatusIs(absl::StatusCode::kUnavailable, "broke"));
      return Spans();
    };
    ASSERT_THAT(SendFully(other.get(), EncodeTailFrame("bye", ""), Late()),
                IsOk());
    ASSERT_EQ(shutdown(other.get(), SHUT_RD), 0);
    // So that the socket has room to send.
    std::string rest(1 << 20, '\0');
    while (recv(other.get(), rest.data(), rest.size(), 0) > 0) {
    }
  });
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kUnavailable, "broke"));
  RunOn(*loop, [&] { EXPECT_THAT(words, ElementsAre("bye")); });
}

TEST(FrameConnectionTest, OnSentOfOneThatWaitedMaySendAndClose) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  const std::string tail(1 << 20, 'x');
  absl::Notification done;
  ASSERT_THAT(end.connection().Send(
                  {.tail = {BytesOf(tail)},
                   .on_sent =
                       [&](const absl::Status& status) {
                         EXPECT_THAT(status, IsOk());
                         EXPECT_THAT(end.connection().Send("last"), IsOk());
                         end.connection().Close(absl::AbortedError("enough"));
                         done.Notify();
                       }}),
              IsOk());
  EXPECT_FALSE(done.HasBeenNotified());
  const std::string expected =
      EncodeTailFrame("", tail) + EncodeTailFrame("last", "");
  EXPECT_TRUE(Receive(other, expected.size()) == expected);
  EXPECT_THAT(end.WaitForClosed(), StatusIs(absl::StatusCode::kAborted));
  done.WaitForNotification();
}

TEST(FrameConnectionTest, SentFramesNoLongerCount) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.max_queued_bytes = 1 << 20, .has_tails = true});
  const std::string tail = Pattern(400000, 1), payload = Pattern(100000, 2);
  const std::string round =
      EncodeTailFrame("h", tail) + EncodeTailFrame(payload, "") +
      EncodeTailFrame(payload, "") + EncodeTailFrame("", "");
  for (int i = 0; i < 50; ++i) {
    ASSERT_THAT(end.connection().Send({.head = "h", .tail = {BytesOf(tail)}}),
                IsOk());
    ASSERT_THAT(end.connection().Send(payload), IsOk());
    ASSERT_THAT(end.connection().Send(OutgoingFrame{.head = payload}), IsOk());
    ASSERT_THAT(end.connection().Send(OutgoingFrame{}), IsOk());
    ASSERT_TRUE(Receive(other, round.size()) == round);
    // A request is read: nothing that waits keeps the connection from it.
    ASSERT_THAT(SendFully(other.get(), EncodeTailFrame("?", ""), Late()),
                IsOk());
    ASSERT_EQ(end.WaitForFrames(static_cast<size_t>(i) + 1).size(),
              static_cast<size_t>(i) + 1);
  }
  EXPECT_THAT(end.closed(), IsEmpty());
}

TEST(FrameConnectionTest, TinyQueuedFramesCountWithTheirOverhead) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own),
          {.max_queued_bytes = 1 << 20, .has_tails = true});
  const std::string tail(1 << 20, 'x');
  ASSERT_THAT(end.connection().Send({.tail = {BytesOf(tail)}}), IsOk());
  // Of 12 bytes each.
  absl::Status status;
  for (int i = 0; i < 20000 && status.ok(); ++i) {
    status = end.connection().Send(OutgoingFrame{});
  }
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kResourceExhausted, "does not read"));
}

// Between any two checks of its timer, a byte of the tail arrives.
TEST(FrameConnectionTest, ASlowTailThatMakesProgressIsNotCutOff) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const absl::Duration timeout = absl::Milliseconds(30);
  End end(loop.get(), std::move(own),
          {.frame_timeout = timeout, .has_tails = true});
  absl::Notification done;
  const Deadline until = Deadline::After(4 * timeout);
  std::function<void()> send_byte = [&, &other = other] {
    EXPECT_THAT(end.closed(), IsEmpty());
    if (!end.closed().empty() || until.HasPassed()) return done.Notify();
    EXPECT_THAT(SendFully(other.get(), "x", Late()), IsOk());
    loop->Post(send_byte);
  };
  loop->Post([&, &other = other] {
    end.on_head = [](absl::string_view, uint64_t) { return Spans(); };
    EXPECT_THAT(
        SendFully(other.get(), TailFrameHeader(1, 1 << 30) + "h", Late()),
        IsOk());
    loop->Post(send_byte);
  });
  done.WaitForNotification();
  EXPECT_THAT(end.WaitForClosed(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "of its tail"));
}

TEST(FrameConnectionTest, TheEndOfTheLoopDropsAConnectionThatWasNotClosed) {
  std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const std::string tail(1 << 20, 'x');
  SentLog log;
  auto connection =
      FrameConnection::Create(loop.get(), std::move(own), WithTails());
  RunOn(*loop, [&] {
    EXPECT_THAT(
        connection->Start(
            {.on_head = [](absl::string_view, uint64_t) { return Spans(); },
             .on_tail = [] {},
             .on_closed = [](const absl::Status&) { ADD_FAILURE(); }}),
        IsOk());
  });
  FrameConnection* const raw = connection.get();
  for (int i = 0; i < 2; ++i) {
    ASSERT_THAT(
        connection->Send(
            {.tail = {BytesOf(tail)},
             .on_sent =
                 [raw, record = log.For(i)](const absl::Status& status) {
                   record(status);
                   EXPECT_THAT(raw->Send("more"),
                               StatusIs(absl::StatusCode::kUnavailable));
                 }}),
        IsOk());
  }
  connection.reset();
  EXPECT_THAT(log.sent()[0], IsEmpty());
  loop.reset();
  log.ExpectEach(StatusIs(absl::StatusCode::kCancelled));
  std::string rest(2 << 20, '\0');
  EXPECT_THAT(ReceiveFully(other.get(), rest.data(), rest.size(), Late()),
              StatusIs(absl::StatusCode::kUnavailable, "closed"));
}

TEST(FrameConnectionTest, AConnectionWithTailsNeedsTheirCallbacks) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  const auto connection =
      FrameConnection::Create(loop.get(), std::move(own), WithTails());
  RunOn(*loop, [&] {
    EXPECT_THAT(
        connection->Start(
            {.on_head = [](absl::string_view, uint64_t) { return Spans(); },
             .on_closed = [](const absl::Status&) { ADD_FAILURE(); }}),
        StatusIs(absl::StatusCode::kInvalidArgument, "on_tail"));
  });
}

// Sends frames of a burst, which may wait, until one of them did.
class Bursts {
 public:
  explicit Bursts(End& end) : end_(end) {}

  // Whether the second of two waited; `*frame` is that one's number.
  bool Send(int* frame) {
    SendOne(false);
    *frame = next_;
    SendOne(true);
    return log.sent()[*frame].empty();
  }
  int num_frames() const { return next_; }

  SentLog log;

 private:
  void SendOne(bool logged) {
    const int number = next_++;
    ASSERT_THAT(
        end_.connection().Send({.head = absl::StrCat(number),
                                .on_sent = logged ? log.For(number) : nullptr,
                                .may_wait = true}),
        IsOk());
  }

  End& end_;
  int next_ = 0;
};

// A thread that the system lets wait between two frames sends no burst.
constexpr int kAttempts = 10000;

TEST(FrameConnectionTest, AFrameThatWaitedIsSentThoughNoneFollows) {
  const std::unique_ptr<EventLoop> loops[] = {NewLoop(), NewLoop()};
  auto [a, b] = SocketPair();
  End sender(loops[0].get(), std::move(a), WithTails());
  End receiver(loops[1].get(), std::move(b), WithTails());
  Bursts bursts(sender);
  int waited = 0;
  for (int i = 0, frame = 0; i < kAttempts && waited < 20; ++i) {
    waited += bursts.Send(&frame) ? 1 : 0;
    receiver.WaitForFrames(static_cast<size_t>(bursts.num_frames()));
  }
  EXPECT_EQ(waited, 20);
  const std::vector<End::Frame> frames = receiver.frames();
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(frames[i].head, absl::StrCat(i));
  }
  Settle(*loops[0]);
  bursts.log.ExpectEach(absl::OkStatus());
}

TEST(FrameConnectionTest, AFrameThatDoesNotWaitTakesThoseAlongThatDid) {
  const std::unique_ptr<EventLoop> loops[] = {NewLoop(), NewLoop()};
  auto [a, b] = SocketPair();
  End sender(loops[0].get(), std::move(a), WithTails());
  End receiver(loops[1].get(), std::move(b), WithTails());
  Bursts bursts(sender);
  const std::string tail(5000, 'x');
  // The two kinds of frames that do not wait: not allowed to, or too large.
  const std::function<void()> kinds[] = {
      [&] { ASSERT_THAT(sender.connection().Send({.head = "last"}), IsOk()); },
      [&] {
        ASSERT_THAT(
            sender.connection().Send(
                {.head = "last", .tail = {BytesOf(tail)}, .may_wait = true}),
            IsOk());
      }};
  size_t sent = 0;
  for (const auto& send_last : kinds) {
    bool waited = false;
    for (int i = 0; i < kAttempts && !waited; ++i) {
      absl::Notification go, blocked;
      loops[0]->Post([&] {
        blocked.Notify();
        go.WaitForNotification();
      });
      blocked.WaitForNotification();
      int frame = 0;
      waited = bursts.Send(&frame);
      send_last();
      // The sender's loop stands still.
      sent += 3;
      receiver.WaitForFrames(sent);
      EXPECT_EQ(receiver.frames().back().head, "last");
      go.Notify();
      Settle(*loops[0]);
      bursts.log.ExpectEach(absl::OkStatus());
    }
    EXPECT_TRUE(waited);
  }
}

TEST(FrameConnectionTest, FewFramesWaitAtATime) {
  const std::unique_ptr<EventLoop> loops[] = {NewLoop(), NewLoop()};
  auto [a, b] = SocketPair();
  End sender(loops[0].get(), std::move(a), WithTails());
  End receiver(loops[1].get(), std::move(b), WithTails());
  absl::Notification go;
  loops[0]->Post([&] { go.WaitForNotification(); });
  for (int i = 0; i < 100; ++i) {
    ASSERT_THAT(sender.connection().Send({.head = "h", .may_wait = true}),
                IsOk());
  }
  EXPECT_GE(receiver.WaitForFrames(85).size(), 85u);
  go.Notify();
  Settle(*loops[0]);
  EXPECT_EQ(receiver.WaitForFrames(100).size(), 100u);
}

// Runs `attempt` with a new connection on `loop` until a frame waited in it.
void UntilOneWaits(
    EventLoop& loop,
    const std::function<bool(End&, Bursts&, const UniqueFd& other)>& attempt) {
  bool waited = false;
  for (int i = 0; i < kAttempts && !waited; ++i) {
    auto [own, other] = SocketPair();
    End end(&loop, std::move(own), WithTails());
    Bursts bursts(end);
    waited = attempt(end, bursts, other);
  }
  EXPECT_TRUE(waited);
}

TEST(FrameConnectionTest, FramesThatWaitGetTheReasonOfAClose) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  UntilOneWaits(*loop, [&](End& end, Bursts& bursts, const UniqueFd&) {
    bool waited = false;
    int frame = 0;
    RunOn(*loop, [&] {
      waited = bursts.Send(&frame);
      end.connection().Close(absl::AbortedError("enough"));
    });
    Settle(*loop);
    bursts.log.ExpectEach(waited ? absl::AbortedError("enough")
                                 : absl::OkStatus());
    return waited;
  });
}

TEST(FrameConnectionTest, FramesThatWaitedAndWereSentAreReportedBeforeAClose) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  UntilOneWaits(*loop, [&](End& end, Bursts& bursts, const UniqueFd&) {
    bool waited = false;
    int frame = 0;
    RunOn(*loop, [&] {
      waited = bursts.Send(&frame);
      ASSERT_THAT(end.connection().Send({.head = "last"}), IsOk());
      end.connection().Close(absl::AbortedError("enough"));
      bursts.log.ExpectEach(absl::OkStatus());
    });
    return waited;
  });
}

TEST(FrameConnectionTest, FramesThatWaitGetTheErrorOfTheFrameThatTookThem) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  UntilOneWaits(*loop, [&](End& end, Bursts& bursts, const UniqueFd& other) {
    SentLog last;
    bool waited = false;
    int frame = 0;
    RunOn(*loop, [&] {
      waited = bursts.Send(&frame);
      ASSERT_EQ(shutdown(other.get(), SHUT_RD), 0);
      const absl::Status status =
          end.connection().Send({.head = "last", .on_sent = last.For(0)});
      // It is queued behind those that wait.
      EXPECT_EQ(status.ok(), waited);
    });
    EXPECT_THAT(end.WaitForClosed(),
                StatusIs(absl::StatusCode::kUnavailable, "broke"));
    Settle(*loop);
    if (!waited) return false;
    bursts.log.ExpectEach(StatusIs(absl::StatusCode::kUnavailable, "broke"));
    last.ExpectEach(StatusIs(absl::StatusCode::kUnavailable, "broke"));
    return true;
  });
}

// It may have stopped reading long ago.
TEST(FrameConnectionTest, AFrameThatWaitedIsNoSignOfLifeOfTheOtherEnd) {
  const std::unique_ptr<EventLoop> loop = NewLoop();
  auto [own, other] = SocketPair();
  End end(loop.get(), std::move(own), WithTails());
  Bursts bursts(end);
  bool waited = false;
  for (int i = 0, frame = 0; i < kAttempts && !waited; ++i) {
    waited = bursts.Send(&frame);
    std::string frames;
    for (int f = frame - 1; f <= frame; ++f) {
      absl::StrAppend(&frames, EncodeTailFrame(absl::StrCat(f), ""));
    }
    EXPECT_EQ(Receive(other, frames.size()), frames);
  }
  EXPECT_TRUE(waited);
  RunOn(*loop, [&] { EXPECT_EQ(end.connection().progress(), 0u); });
}

TEST(FrameConnectionTest, ManyThreadsSendWholeFramesEachInItsOrder) {
  constexpr int kThreads = 8, kFrames = 200;
  const std::unique_ptr<EventLoop> loops[] = {NewLoop(), NewLoop()};
  auto [a, b] = SocketPair();
  End sender(loops[0].get(), std::move(a), WithTails());
  End receiver(loops[1].get(), std::move(b), WithTails(), 1000);
  const auto seed = static_cast<uint32_t>(std::random_device()());
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  const std::string source = Pattern(150000, seed);
  SentLog log;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + static_cast<uint32_t>(t));
      for (int i = 0; i < kFrames; ++i) {
        // Most are small, some are more than the socket holds.
        const size_t size = random() % (i % 40 == 0 ? 150000 : 300);
        const absl::string_view tail =
            absl::string_view(source).substr(0, size);
        const std::string head = absl::StrCat(t, " ", i, " ", size);
        if (size % 3 == 0) {
          EXPECT_THAT(sender.connection().Send(absl::StrCat(t, " ", i, " 0")),
                      IsOk());
          continue;
        }
        EXPECT_THAT(sender.connection().Send(
                        {.head = head,
                         .tail = {BytesOf(tail.substr(0, size / 2)),
                                  BytesOf(tail.substr(size / 2))},
                         .on_sent = log.For(t * kFrames + i),
                         .may_wait = random() % 4 != 0}),
                    IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<End::Frame> frames =
      receiver.WaitForFrames(kThreads * kFrames);
  ASSERT_EQ(frames.size(), size_t{kThreads * kFrames});
  std::vector<int> next(kThreads, 0);
  for (const End::Frame& frame : frames) {
    const std::vector<std::string> words = absl::StrSplit(frame.head, ' ');
    ASSERT_EQ(words.size(), 3u) << frame.head;
    int thread = 0, number = 0, size = 0;
    ASSERT_TRUE(absl::SimpleAtoi(words[0], &thread) &&
                absl::SimpleAtoi(words[1], &number) &&
                absl::SimpleAtoi(words[2], &size));
    ASSERT_EQ(number, next.at(static_cast<size_t>(thread))++);
    ASSERT_TRUE(frame.tail == source.substr(0, static_cast<size_t>(size)));
  }
  Settle(*loops[0]);
  log.ExpectEach(absl::OkStatus());
}

}  // namespace
}  // namespace sherd
