#ifndef SHERD_TOOLS_BENCH_CASES_CASES_H_
#define SHERD_TOOLS_BENCH_CASES_CASES_H_

#include <string>
#include <vector>

#include "sherd/tools/bench/harness/bench_case.h"
#include "sherd/tools/bench/harness/measure.h"
#include "sherd/tools/bench/harness/options.h"

namespace sherd {

// Every case, in the order in which they run.
const std::vector<BenchCase>& AllBenchCases();

// Cases and their peers, each with a line of help.
std::string ListCases(const BenchOptions& options);

// The measurements that `options` select, ordered by case, world and bytes.
// Omits cases without a selected peer.
std::vector<Measurement> SelectMeasurements(const BenchOptions& options);

}  // namespace sherd

#endif  // SHERD_TOOLS_BENCH_CASES_CASES_H_
