#ifndef SHERD_TOOLS_BENCH_START_CASES_H_
#define SHERD_TOOLS_BENCH_START_CASES_H_

#include <vector>

#include "sherd/tools/bench/bench_case.h"

namespace sherd {

// test_start: what every test with several ranks pays.
std::vector<BenchCase> StartCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_START_CASES_H_
