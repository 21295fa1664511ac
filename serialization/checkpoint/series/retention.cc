#include "sherd/serialization/checkpoint/series/retention.h"

namespace sherd {

std::vector<int64_t> ExpiredSteps(const RetentionRule& rule, int64_t saved,
                                  absl::Span<const StepState> steps) {
  std::vector<int64_t> expired;
  if (rule.keep_last <= 0) return expired;
  int64_t oldest = saved;
  int kept = 1;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (kept == rule.keep_last) break;
    if (it->step >= saved || it->state != StepState::kWhole) continue;
    oldest = it->step;
    ++kept;
  }
  if (kept < rule.keep_last) return expired;
  for (const StepState& step : steps) {
    if (step.step >= oldest) break;
    const bool is_kept = rule.keep_every > 0 &&
                         step.step % rule.keep_every == 0 &&
                         step.state != StepState::kDamaged;
    if (!is_kept && step.state != StepState::kUnknown) {
      expired.push_back(step.step);
    }
  }
  return expired;
}

}  // namespace sherd
