#include "sherd/testing/harness/verdict_report.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sherd/core/base/printable_text.h"

namespace sherd::testing::internal {

void KeepIfFailed(RunOutcome& run, const RunFiles& files) {
  const ::testing::TestInfo* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr || Judge(run).kind != Verdict::Kind::kFailed) return;
  run.kept_in = KeepOutputs(
      absl::StrCat(test->test_suite_name(), ".", test->name()), files);
}

void ReportVerdict(const RunOutcome& run, const Verdict& verdict,
                   const char* file, int line) {
  switch (verdict.kind) {
    case Verdict::Kind::kPassed:
      return;
    case Verdict::Kind::kSkipped:
      GTEST_SKIP() << verdict.text;
    case Verdict::Kind::kFailed:
      break;
  }
  ADD_FAILURE_AT(file, line) << verdict.text;
  for (const Verdict::Failure& failure : verdict.failures) {
    if (failure.file.empty()) {
      ADD_FAILURE_AT(file, line) << failure.text;
    } else {
      ADD_FAILURE_AT(failure.file.c_str(), failure.line) << failure.text;
    }
  }
  for (size_t r = 0; r < run.ranks.size(); ++r) {
    const std::string output =
        PrefixLines(static_cast<int>(r), run.ranks[r].output);
    std::fwrite(output.data(), 1, output.size(), stdout);
  }
  if (run.flight) {
    std::printf("[flight recorder] %s\n",
                PrintableText(run.flight->text).c_str());
  }
  const std::string& launcher = run.launcher_output;
  if (!launcher.empty())
    std::printf("[launcher] %s\n", PrintableText(launcher).c_str());
  std::fflush(stdout);
}

}  // namespace sherd::testing::internal
