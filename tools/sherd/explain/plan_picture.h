#ifndef SHERD_TOOLS_SHERD_EXPLAIN_PLAN_PICTURE_H_
#define SHERD_TOOLS_SHERD_EXPLAIN_PLAN_PICTURE_H_

#include <string>

#include "sherd/core/sharding/plan/plan_report.h"

namespace sherd {

// The heat map and the totals of a report as a self-contained picture.
std::string PlanToSvg(const PlanReport& report);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_EXPLAIN_PLAN_PICTURE_H_
