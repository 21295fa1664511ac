#ifndef SHERD_TOOLS_BENCH_CASES_SAVE_MANY_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_SAVE_MANY_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// checkpoint_save_many: 10,000 tensors, compared with one of as many bytes.
std::vector<BenchCase> SaveManyCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_SAVE_MANY_CASES_H_
