#ifndef SHERD_CORE_BASE_LOGGING_H_
#define SHERD_CORE_BASE_LOGGING_H_

#include <functional>
#include <sstream>
#include <string>

#include "absl/strings/string_view.h"

// SHERD_LOG(kWarning) << "plugin " << path << " was not loaded";
//
// Writes one line to standard error, or to the program's own SetLogSink:
//     W 14:03:07.512345 [rank 2] loader.cc:81] plugin … was not loaded
// The operands are not evaluated when SHERD_LOG_LEVEL hides the line.
// Thread-safe; lines of different threads do not mix.
#define SHERD_LOG(severity)                                                 \
  if (!::sherd::LogEnabled(::sherd::LogSeverity::severity)) {               \
  } else /* NOLINT(readability-misleading-indentation) */                   \
    ::sherd::internal::LogMessage(::sherd::LogSeverity::severity, __FILE__, \
                                  __LINE__)                                 \
        .stream()

// Ends the process with the location and `condition` when it is false: for
// broken invariants of this code only, never for input, peers or files.
#define SHERD_CHECK(condition)                            \
  if (condition) [[likely]] {                             \
  } else /* NOLINT(readability-misleading-indentation) */ \
    ::sherd::internal::FatalMessage(__FILE__, __LINE__, #condition).stream()

namespace sherd {

enum class LogSeverity : int {
  kDebug = 0,
  kInfo = 1,
  kWarning = 2,
  kError = 3
};

bool LogEnabled(LogSeverity severity);

// One line of the log, valid during the call of the sink.
struct LogEntry {
  LogSeverity severity;
  const char* file;  // Without folders.
  int line;
  int rank;  // -1: none.
  absl::string_view message;
};

// Sends the lines that SHERD_LOG_LEVEL lets pass to `sink` instead of standard
// error; an empty sink restores standard error. The message of a failed
// SHERD_CHECK goes to both.
//
// Threads. May be called any time, and returns once no thread is within the
// former sink; not from a sink. The sink is called by any thread, by one at a
// time; lines that the sink itself logs go to standard error.
void SetLogSink(std::function<void(const LogEntry&)> sink);

// The rank that the log lines of this process carry; -1 (the start value)
// prints none. Init sets it.
void SetLogRank(int rank);

// The same for the calling thread only, where ranks are threads.
void SetThreadLogRank(int rank);

// The rank that log lines of the calling thread carry, or -1.
int LogRank();

namespace internal {

class LogMessage {
 public:
  LogMessage(LogSeverity severity, const char* file, int line)
      : severity_(severity), file_(file), line_(line) {}
  LogMessage(const LogMessage&) = delete;
  LogMessage& operator=(const LogMessage&) = delete;
  ~LogMessage();
  std::ostream& stream() { return stream_; }

 private:
  const LogSeverity severity_;
  const char* const file_;
  const int line_;
  std::ostringstream stream_;
};

class FatalMessage {
 public:
  FatalMessage(const char* file, int line, const char* condition);
  FatalMessage(const FatalMessage&) = delete;
  FatalMessage& operator=(const FatalMessage&) = delete;
  [[noreturn]] ~FatalMessage();
  std::ostream& stream() { return stream_; }

 private:
  const char* const file_;
  const int line_;
  std::ostringstream stream_;
};

}  // namespace internal
}  // namespace sherd

#endif  // SHERD_CORE_BASE_LOGGING_H_
