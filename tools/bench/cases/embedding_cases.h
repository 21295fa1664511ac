#ifndef SHERD_TOOLS_BENCH_CASES_EMBEDDING_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_EMBEDDING_CASES_H_

#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"

namespace sherd {

// Lookups of bags in tables of float32 and width 64 that are cut by rows, by
// columns, or each whole on one rank; and steps that also update them.
std::vector<BenchCase> EmbeddingCases();

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_EMBEDDING_CASES_H_
