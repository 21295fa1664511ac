#include "sherd/testing/emulated_gpu/plan/faults.h"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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
  GpuFault fault;
  // Calls since it was made.
  int64_t calls = 0;
};

struct Plans {
  std::mutex mutex;
  // The first that fits a call is it.
  std::vector<Plan> plans;
  bool records = false;
  std::vector<std::string> calls;
  std::function<void(const std::string&)> hook;
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

bool ParseFault(absl::string_view text, GpuFault* fault) {
  fault->word = std::string(text);
  if (absl::SimpleAtoi(text, &fault->code)) {
    fault->kind = GpuFault::Kind::kReturn;
  } else if (absl::ConsumePrefix(&text, "break=")) {
    fault->kind = GpuFault::Kind::kBreak;
    return absl::SimpleAtoi(text, &fault->code) && fault->code != 0;
  } else if (text == "hang") {
    fault->kind = GpuFault::Kind::kHang;
  } else if (text == "die") {
    fault->kind = GpuFault::Kind::kDie;
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

// Counts the call for all plans; the fault of the first that fits.
std::optional<GpuFault> Count(Plans& plans, const std::string& call) {
  std::optional<GpuFault> found;
  for (Plan& plan : plans.plans) {
    if (!IsCallOf(plan.function, call)) continue;
    ++plan.calls;
    if (found || plan.calls < plan.first || plan.calls > plan.last) continue;
    found = plan.fault;
  }
  return found;
}

}  // namespace

std::string AddressText(uint64_t address) { return absl::StrCat("@", address); }

std::string AddressText(const void* address) {
  return AddressText(reinterpret_cast<uint64_t>(address));
}

bool IsCallOf(absl::string_view function, absl::string_view call) {
  if (!absl::StartsWith(call, function)) return false;
  return absl::StrContains(function, '(') || call.size() == function.size() ||
         call[function.size()] == '(';
}

std::optional<GpuFault> TakeFault(const GpuCall& call) {
  Plans& plans = AllPlans();
  std::unique_lock<std::mutex> lock(plans.mutex);
  if (plans.plans.empty() && !plans.records && !plans.hook) return std::nullopt;
  // The description of arguments may take locks that other calls hold.
  lock.unlock();
  const std::string text = absl::StrCat(
      call.function, "(", call.arguments ? call.arguments() : "", ")");
  lock.lock();
  if (plans.records) plans.calls.push_back(text);
  const std::optional<GpuFault> fault = Count(plans, text);
  const std::function<void(const std::string&)> hook = plans.hook;
  lock.unlock();
  if (hook) hook(text);
  if (fault && fault->kind == GpuFault::Kind::kDie) kill(getpid(), SIGKILL);
  return fault;
}

bool SetFaults(const std::string& text, std::string* problem) {
  std::vector<Plan> parsed;
  if (!ParsePlans(text, &parsed, problem)) return false;
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.plans = std::move(parsed);
  return true;
}

void AddFault(const std::string& function, int64_t first, int64_t last,
              GpuFault fault) {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.plans.insert(
      plans.plans.begin(),
      {.function = function, .first = first, .last = last, .fault = fault});
}

void DropFaults(const std::string& function) {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  std::erase_if(plans.plans,
                [&](const Plan& plan) { return plan.function == function; });
}

void RecordCalls(bool records) {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.records = records;
  plans.calls.clear();
}

std::vector<std::string> RecordedCalls() {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  return plans.calls;
}

void OnEachCall(std::function<void(const std::string&)> hook) {
  Plans& plans = AllPlans();
  const std::lock_guard<std::mutex> lock(plans.mutex);
  plans.hook = std::move(hook);
}

}  // namespace sherd::testing
