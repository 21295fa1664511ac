#include "sherd/tools/bench/harness/proportional_memory.h"

#include <cinttypes>
#include <cstdio>

namespace sherd {

int64_t ProportionalMemory() {
  std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "re");
  if (file == nullptr) return -1;
  int64_t kilobytes = -1;
  char line[256];
  while (kilobytes < 0 && std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "Pss: %" SCNd64, &kilobytes) != 1) kilobytes = -1;
  }
  std::fclose(file);
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

}  // namespace sherd
