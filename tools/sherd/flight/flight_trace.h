#ifndef SHERD_TOOLS_SHERD_FLIGHT_FLIGHT_TRACE_H_
#define SHERD_TOOLS_SHERD_FLIGHT_FLIGHT_TRACE_H_

#include <string>
#include <vector>

#include "sherd/core/comm/flight/flight_files.h"

namespace sherd {

// The operations as a trace that Perfetto and chrome://tracing show: a process
// per rank, a track per group (more where operations overlap), a span per
// operation from its start to its end, or to the dump if it had not ended.
//
// Time 0 is the first span's. Ranks of one start of one host share a clock;
// those of others are aligned by their wall clocks.
std::string FlightToChromeTrace(const std::vector<FlightFile>& files);

}  // namespace sherd

#endif  // SHERD_TOOLS_SHERD_FLIGHT_FLIGHT_TRACE_H_
