#include "sherd/tools/bench/harness/mpirun.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace sherd {

std::string FindMpirun() {
  for (const char* const path : {"/usr/bin/mpirun", "/usr/local/bin/mpirun"}) {
    if (access(path, X_OK) == 0) return path;
  }
  return "";
}

const char* NameOf(MpiTransport transport) {
  switch (transport) {
    case MpiTransport::kVader:
      return "vader";
    case MpiTransport::kVaderTwoCopies:
      return "vader, 2 copies";
    case MpiTransport::kUcx:
      return "ucx";
  }
  return "";
}

std::vector<std::string> MpirunCommand(
    const std::string& mpirun, MpiTransport transport,
    const std::string& directory, int world, const std::string& program,
    const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {mpirun, "--quiet", "--oversubscribe",
                                      "--bind-to", "none"};
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  const auto set = [&command](const char* parameter, const char* value) {
    command.insert(command.end(), {"--mca", parameter, value});
  };
  set("plm", "isolated");
  if (transport == MpiTransport::kUcx) {
    set("pml", "ucx");
    // For all transfers, not only those through network cards, Open MPI's
    // default.
    set("opal_common_ucx_tls", "any");
    set("opal_common_ucx_devices", "any");
  } else {
    set("pml", "ob1");
    set("btl", "self,vader");
    set("btl_vader_backing_directory", directory.c_str());
  }
  if (transport == MpiTransport::kVaderTwoCopies) {
    set("btl_vader_single_copy_mechanism", "none");
  }
  command.insert(command.end(), {"-n", absl::StrCat(world), program});
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace sherd
