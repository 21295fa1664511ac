#include "sherd/core/base/logging.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace sherd {
namespace {

class LogSinkTest : public ::testing::Test {
 protected:
  LogSinkTest() {
    SetLogSink([this](const LogEntry& entry) {
      entries_.push_back(std::string(entry.file) + " " +
                         std::to_string(entry.rank) + " " +
                         std::string(entry.message));
    });
  }
  ~LogSinkTest() override { SetLogSink(nullptr); }

  std::vector<std::string> entries_;
};

TEST_F(LogSinkTest, GetsTheLinesInPlaceOfStandardError) {
  ::testing::internal::CaptureStderr();
  std::thread([] {
    SetThreadLogRank(3);
    SHERD_LOG(kError) << "disk " << 7 << " is full";
  }).join();
  SHERD_LOG(kDebug) << "hidden by the level";
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(entries_,
            (std::vector<std::string>{"logging_test.cc 3 disk 7 is full"}));
}

TEST_F(LogSinkTest, WithoutItLinesGoToStandardErrorAgain) {
  SetLogSink(nullptr);
  ::testing::internal::CaptureStderr();
  SHERD_LOG(kError) << "over here";
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("over here"),
            std::string::npos);
  EXPECT_TRUE(entries_.empty());
}

TEST_F(LogSinkTest, MayLogItself) {
  SetLogSink([](const LogEntry&) { SHERD_LOG(kError) << "from the sink"; });
  ::testing::internal::CaptureStderr();
  SHERD_LOG(kError) << "to the sink";
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("from the sink"), std::string::npos);
  EXPECT_EQ(text.find("to the sink"), std::string::npos);
}

}  // namespace
}  // namespace sherd
