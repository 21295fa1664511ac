#ifndef SHERD_TOOLS_BENCH_CASES_LOAD_MANY_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_LOAD_MANY_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_load_many, checkpoint_load_many_resharded and
// checkpoint_load_replicated.
std::vector<BenchCase> LoadManyCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_LOAD_MANY_CASES_H_
