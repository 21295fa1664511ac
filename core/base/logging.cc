#include "sherd/core/base/logging.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "sherd/core/base/knobs.h"
#include "sherd/core/base/named_thread.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace sherd {
namespace {

std::atomic<int> process_rank{-1};
thread_local int thread_rank = -1;

struct LevelName {
  const char* name;
  spdlog::level::level_enum level;
};
constexpr LevelName kLevels[] = {{"debug", spdlog::level::debug},
                                 {"info", spdlog::level::info},
                                 {"warning", spdlog::level::warn},
                                 {"error", spdlog::level::err}};

spdlog::level::level_enum ToSpdlog(LogSeverity severity) {
  return kLevels[static_cast<int>(severity)].level;
}

spdlog::logger& Logger() {
  // Leaked: other threads may log while static objects are destroyed.
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger(
        "sherd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%L %H:%M:%S.%f %v");
    made->set_level(spdlog::level::warn);
    const std::string wanted = GetKnobOr(Knob::kLogLevel, "warning");
    bool known = false;
    for (const LevelName& level : kLevels) {
      if (wanted != level.name) continue;
      made->set_level(level.level);
      known = true;
    }
    if (!known) {
      made->error(
          "SHERD_LOG_LEVEL is \"{}\", expected debug, info, warning or "
          "error; warning is used",
          wanted);
    }
    return made;
  }();
  return *logger;
}

const char* BaseName(const char* file) {
  const char* base = file;
  for (const char* c = file; *c != '\0'; ++c) {
    if (*c == '/') base = c + 1;
  }
  return base;
}

std::string RankPrefix() {
  const int rank = LogRank();
  return rank < 0 ? std::string() : "[rank " + std::to_string(rank) + "] ";
}

// The program's sink. Leaked like the logger, and for the same reason.
struct Sink {
  std::atomic<bool> is_set{false};
  std::mutex mutex;
  std::function<void(const LogEntry&)> call;
};

Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

thread_local bool in_sink = false;

// Returns false if the program has no sink, or this thread is within it.
bool CallSink(const LogEntry& entry) {
  Sink& sink = TheSink();
  if (in_sink || !sink.is_set.load(std::memory_order_acquire)) return false;
  const std::lock_guard<std::mutex> lock(sink.mutex);
  if (!sink.call) return false;
  in_sink = true;
  // Other threads wait for it in order to log.
  const internal::ScopedLibraryThread scope;
  sink.call(entry);
  in_sink = false;
  return true;
}

}  // namespace

void SetLogSink(std::function<void(const LogEntry&)> sink) {
  Sink& current = TheSink();
  const std::lock_guard<std::mutex> lock(current.mutex);
  current.is_set.store(static_cast<bool>(sink), std::memory_order_release);
  current.call = std::move(sink);
}

bool LogEnabled(LogSeverity severity) {
  return Logger().should_log(ToSpdlog(severity));
}

void SetLogRank(int rank) {
  process_rank.store(rank, std::memory_order_relaxed);
}

void SetThreadLogRank(int rank) { thread_rank = rank; }

int LogRank() {
  return thread_rank >= 0 ? thread_rank
                          : process_rank.load(std::memory_order_relaxed);
}

namespace internal {

LogMessage::~LogMessage() {
  const std::string message = stream_.str();
  if (CallSink({severity_, BaseName(file_), line_, LogRank(), message})) return;
  Logger().log(ToSpdlog(severity_), "{}{}:{}] {}", RankPrefix(),
               BaseName(file_), line_, message);
}

FatalMessage::FatalMessage(const char* file, int line, const char* condition)
    : file_(file), line_(line) {
  stream_ << "check failed: " << condition << " ";
}

FatalMessage::~FatalMessage() {
  const std::string message = stream_.str();
  CallSink({LogSeverity::kError, BaseName(file_), line_, LogRank(), message});
  Logger().critical("{}{}:{}] {}", RankPrefix(), BaseName(file_), line_,
                    message);
  Logger().flush();
  std::abort();
}

}  // namespace internal
}  // namespace sherd
