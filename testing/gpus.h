#ifndef SHERD_TESTING_GPUS_H_
#define SHERD_TESTING_GPUS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/testing/exit_codes.h"

namespace sherd::testing::internal {

// Where GPUs are looked for.
struct GpuHost {
  // Has a file nvidiaN for each.
  std::string devices = "/dev";
  // As CUDA_VISIBLE_DEVICES says it; unset: all of them.
  std::optional<std::string> visible;
  // GPUs that the emulated CUDA driver pretends to have, in place of all those.
  int emulated = 0;
  // Ranks may share GPUs where there are fewer.
  bool shared = false;

  // This host, as CUDA_VISIBLE_DEVICES, SHERD_EMULATED_GPUS and
  // SHERD_TEST_SHARE_GPUS say.
  static GpuHost Own();

  // How many of `n` GPUs, one for each rank, have to be there.
  int Needed(int n) const;
};

struct Gpu {
  // What CUDA_VISIBLE_DEVICES calls it.
  std::string name;
  // The device files that stand for it: one, or all where `name` is a UUID,
  // which does not say which; none if it is emulated.
  std::vector<std::string> files;
};

// The GPUs that a CUDA program sees there, in its order, which is taken to be
// that of the device files (CUDA_DEVICE_ORDER=PCI_BUS_ID). As in CUDA, an entry
// of CUDA_VISIBLE_DEVICES that is no GPU hides those after it, and one that
// stands there twice hides all.
std::vector<Gpu> VisibleGpus(const GpuHost& host = GpuHost::Own());

// Why a test that needs `n` GPUs does not run there; nothing if it does.
std::optional<Skip> SkipIfFewerGpus(int n,
                                    const GpuHost& host = GpuHost::Own());

// GPUs that no other test uses while this object lives: not those of this
// process, of other Bazel invocations, or of other users who see the same
// device files. A lock (flock) on a device file keeps out other locks only, and
// goes with the process that holds it, however that ends.
class GpuLocks {
 public:
  // Any `n` of the visible GPUs, or as many as `n` ranks need; with 0 nothing
  // is locked. Waits for them until the deadline; when it begins to wait, it
  // logs for whom.
  //   kResourceExhausted  The host has fewer.
  //   kDeadlineExceeded   Others hold them; named where they can be known.
  //   kPermissionDenied   A device file cannot be opened.
  static absl::StatusOr<GpuLocks> Acquire(int n, Deadline deadline,
                                          const GpuHost& host = GpuHost::Own());

  GpuLocks() = default;

  // Those locked, ascending by their place among the visible ones.
  const std::vector<Gpu>& gpus() const { return gpus_; }
  // CUDA_VISIBLE_DEVICES for ranks that are to see these and no others.
  std::string Visible() const;

 private:
  // Locks it, or says in `obstacles` who has it.
  absl::Status Add(const Gpu& gpu, std::vector<std::string>& obstacles);

  std::vector<Gpu> gpus_;
  std::vector<UniqueFd> files_;
  // Of files_.
  std::vector<std::string> paths_;
};

}  // namespace sherd::testing::internal

#endif  // SHERD_TESTING_GPUS_H_
