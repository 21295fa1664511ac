#include "sherd/core/base/logging.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "sherd/core/base/knobs.h"
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

}  // namespace

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
  Logger().log(ToSpdlog(severity_), "{}{}:{}] {}", RankPrefix(),
               BaseName(file_), line_, stream_.str());
}

FatalMessage::FatalMessage(const char* file, int line, const char* condition)
    : file_(file), line_(line) {
  stream_ << "check failed: " << condition << " ";
}

FatalMessage::~FatalMessage() {
  Logger().critical("{}{}:{}] {}", RankPrefix(), BaseName(file_), line_,
                    stream_.str());
  Logger().flush();
  std::abort();
}

}  // namespace internal
}  // namespace sherd
