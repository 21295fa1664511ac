#include "sherd/testing/emulated_gpu/plan/faults.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/knobs.h"

namespace sherd::testing {
namespace {

struct Plan {
  std::string function;
  int64_t first = 1;
  int64_t last = 1;
  Fault fault;
};

struct Plans {
  std::mutex mutex;
  std::vector<Plan> plans;
  std::map<std::string, int64_t> calls;
};

bool ParseCall(absl::string_view text, Plan* plan) {
  if (text == "*") {
    plan->last = INT64_MAX;
    return true;
  }
  const bool and_later = absl::ConsumeSuffix(&text, "+");
  if (!absl::SimpleAtoi(text, &plan->first) || plan->first < 1) return false;
  plan->last = and_later ? INT64_MAX : plan->first;
  return true;
}

bool ParseFault(absl::string_view text, Fault* fault) {
  fault->word = std::string(text);
  if (absl::SimpleAtoi(text, &fault->code)) {
    fault->kind = Fault::Kind::kReturn;
  } else if (absl::ConsumePrefix(&text, "break=")) {
    fault->kind = Fault::Kind::kBreak;
    return absl::SimpleAtoi(text, &fault->code) && fault->code != 0;
  } else if (text == "hang") {
    fault->kind = Fault::Kind::kHang;
  } else if (text == "die") {
    fault->kind = Fault::Kind::kDie;
  }
  return !text.empty();
}

bool ParsePlans(const std::string& text, std::vector<Plan>* plans,
                std::string* problem) {
  for (const absl::string_view part :
       absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(absl::StripAsciiWhitespace(part), ':');
    Plan plan;
    if (words.size() != 3 || words[0].empty() || !ParseCall(words[1], &plan) ||
        !ParseFault(words[2], &plan.fault)) {
      *problem = absl::StrCat(
          "expected FUNCTION:CALL:FAULT, with CALL = N, N+ "
          "or *, got '",
          part, "'");
      return false;
    }
    plan.function = std::string(words[0]);
    plans->push_back(std::move(plan));
  }
  return true;
}

// Never destroyed: threads of streams outlive main.
Plans& AllPlans() {
  static Plans* const plans = [] {
    auto* const made = new Plans;
    std::string problem;
    if (!ParsePlans(GetKnobOr(Knob::kEmulatedGpuFaults, ""), &made->plans,
                    &problem)) {
      std::fprintf(stderr, "SHERD_EMULATED_GPU_FAULTS: %s\n", problem.c_str());
      std::abort();
    }
    return made;
  }();
  return *plans;
}

}  // namespace

std::optional<Fault> TakeFault(const char* function) {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  if (plans.plans.empty()) return std::nullopt;
  const int64_t call = ++plans.calls[function];
  for (const Plan& plan : plans.plans) {
    if (plan.function != function || call < plan.first || call > plan.last) {
      continue;
    }
    if (plan.fault.kind == Fault::Kind::kDie) kill(getpid(), SIGKILL);
    return plan.fault;
  }
  return std::nullopt;
}

bool SetFaults(const std::string& text, std::string* problem) {
  std::vector<Plan> parsed;
  if (!ParsePlans(text, &parsed, problem)) return false;
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.plans = std::move(parsed);
  plans.calls.clear();
  return true;
}

}  // namespace sherd::testing
