#ifndef SHERD_TOOLS_BENCH_CASES_START_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_START_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// The costs of every test with several ranks:
//   test_start    starting ranks, by themselves
//   test_program  a whole GoogleTest program
//   test_each     each further test in it
std::vector<BenchCase> StartCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_START_CASES_H_
