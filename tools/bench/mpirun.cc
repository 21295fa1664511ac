#include "sherd/tools/bench/mpirun.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace sherd {

std::string FindMpirun() {
  for (const char* const path : {"/usr/bin/mpirun", "/usr/local/bin/mpirun"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

std::vector<std::string> MpirunCommand(
    const std::string& mpirun, int world, const std::string& program,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {mpirun,
                                      "--quiet",
                                      "--oversubscribe",
                                      "--bind-to",
                                      "none",
                                      "--mca",
                                      "pml",
                                      "ob1",
                                      "--mca",
                                      "btl",
                                      "self,vader",
                                      "--mca",
                                      "plm",
                                      "isolated",
                                      "-n",
                                      absl::StrCat(world)};
  if (geteuid() == 0)
    command.insert(command.begin() + 1, "--allow-run-as-root");
  command.push_back(program);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace sherd
