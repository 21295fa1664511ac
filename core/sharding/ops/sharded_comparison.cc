#include "sherd/core/sharding/sharded_comparison.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/collective/agreement.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/sharding/sharded_tensor_like.h"
#include "sherd/core/sharding/tensor/local_shards.h"
#include "sherd/core/sharding/tensor/sharded_tensor_access.h"
#include "sherd/core/sharding/tensor/sharded_tensor_state.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

// Whether the elements of two tensors with the same sizes and dtype match.
using Match = absl::FunctionRef<bool(const Tensor& a, const Tensor& b)>;

struct Call {
  absl::string_view name;
  CompareLayouts layouts;
  CollectiveOptions options;
  // Of all options that must be the same on all ranks.
  Fingerprint fingerprint;
  // The same as text.
  std::function<std::string()> describe;
  // Why they cannot be compared.
  absl::Status status;
};

absl::Status CheckTensors(const ShardedTensor& a, const ShardedTensor& b) {
  if (!a.defined() || !b.defined()) {
    return absl::FailedPreconditionError("a ShardedTensor was not created");
  }
  if (a.group() != b.group()) {
    return absl::FailedPreconditionError(
        "All distributed tensors should use the same ProcessGroup");
  }
  for (const ShardedTensor* tensor : {&a, &b}) {
    SHERD_RETURN_IF_ERROR(internal::CheckHasData(tensor->local_shards()));
  }
  return absl::OkStatus();
}

// Compares where the host can, on a device in slices.
absl::StatusOr<bool> TensorsMatch(const Tensor& a, const Tensor& b,
                                  Match match) {
  constexpr int64_t kSliceBytes = int64_t{32} << 20;
  if (a.device().is_cpu() && b.device().is_cpu()) return match(a, b);
  int64_t longest = 0;
  for (int64_t d = 1; d < a.dim(); ++d) {
    if (a.sizes()[d] > a.sizes()[longest]) longest = d;
  }
  if (a.sizes() == b.sizes() && a.nbytes() > kSliceBytes &&
      a.sizes()[longest] > 1) {
    const int64_t half = a.sizes()[longest] / 2;
    for (const auto& [start, length] :
         {std::pair(int64_t{0}, half),
          std::pair(half, a.sizes()[longest] - half)}) {
      SHERD_ASSIGN_OR_RETURN(const Tensor x, a.Narrow(longest, start, length));
      SHERD_ASSIGN_OR_RETURN(const Tensor y, b.Narrow(longest, start, length));
      SHERD_ASSIGN_OR_RETURN(const bool same, TensorsMatch(x, y, match));
      if (!same) return false;
    }
    return true;
  }
  SHERD_ASSIGN_OR_RETURN(const Tensor x, internal::OnHost(a));
  SHERD_ASSIGN_OR_RETURN(const Tensor y, internal::OnHost(b));
  return match(x, y);
}

absl::StatusOr<bool> LocalShardsMatch(const ShardedTensor& a,
                                      const ShardedTensor& b,
                                      CompareLayouts layouts, Match match) {
  if (a.local_shards().size() != b.local_shards().size()) return false;
  for (size_t i = 0; i < a.local_shards().size(); ++i) {
    const Tensor& x = a.local_shards()[i].tensor;
    const Tensor& y = b.local_shards()[i].tensor;
    // Their placements may not have an index.
    if (layouts == CompareLayouts::kStrictly &&
        !SameDevice(x.device(), y.device())) {
      return false;
    }
    SHERD_ASSIGN_OR_RETURN(const bool same, TensorsMatch(x, y, match));
    if (!same) return false;
  }
  return true;
}

// As far as the metadata goes, which is the same on all ranks.
bool CanBeEqual(const ShardedTensor& a, const ShardedTensor& b,
                CompareLayouts layouts) {
  if (layouts == CompareLayouts::kStrictly) {
    return a.metadata().properties == b.metadata().properties &&
           internal::SameLayout(a.metadata(), b.metadata());
  }
  return a.size() == b.size() && a.dtype() == b.dtype();
}

bool NeedsMove(const ShardedTensor& a, const ShardedTensor& b) {
  return !internal::SameLayout(a.metadata(), b.metadata());
}

uint64_t FingerprintOf(const ShardedTensor& tensor) {
  return tensor.defined() ? tensor.fingerprint() : 0;
}

// Where the ranks meet: also if one of the tensors is missing on this one.
ProcessGroup* GroupOf(const ShardedTensor& a, const ShardedTensor& b) {
  if (a.defined() && a.group() != nullptr) return a.group().get();
  if (b.defined() && b.group() != nullptr) return b.group().get();
  return nullptr;
}

// The elements of `b` in the layout of `a`.
absl::StatusOr<ShardedTensor> Aligned(const ShardedTensor& a,
                                      const ShardedTensor& b,
                                      ProcessGroup& group, const Call& call) {
  absl::StatusOr<ShardedTensor> aligned = EmptyLike(a);
  SHERD_RETURN_IF_ERROR(
      Agree(group, call.name, aligned.status(), {}, call.options));
  SHERD_RETURN_IF_ERROR(InOperation(
      call.name, b.ReshardInto(*aligned, {.timeout = call.options.timeout})));
  return aligned;
}

absl::StatusOr<bool> CompareInGroup(const ShardedTensor& a,
                                    const ShardedTensor& b, ProcessGroup& group,
                                    const Call& call, Match match) {
  absl::Status status = CheckTensors(a, b);
  status.Update(call.status);
  Fingerprint fingerprint = call.fingerprint;
  fingerprint.Add(static_cast<int64_t>(FingerprintOf(a)))
      .Add(static_cast<int64_t>(FingerprintOf(b)));
  const auto describe = [&] {
    return absl::StrCat(internal::DescribeForAgreement("first tensor", a),
                        internal::DescribeForAgreement("second tensor", b),
                        call.describe());
  };
  const bool possible = status.ok() && CanBeEqual(a, b, call.layouts);
  const bool moves = possible && NeedsMove(a, b);
  bool equal = false;
  if (possible && !moves) {
    const absl::StatusOr<bool> same =
        LocalShardsMatch(a, b, call.layouts, match);
    status.Update(same.status());
    equal = same.ok() && *same;
  }
  SHERD_ASSIGN_OR_RETURN(
      uint64_t differences,
      AgreeOnMaximum(group, call.name, status, {fingerprint.value(), describe},
                     equal || moves ? 0 : 1, call.options));
  // The following depends on the metadata, on which the ranks have agreed.
  if (!moves) return differences == 0;
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor aligned,
                         Aligned(a, b, group, call));
  const absl::StatusOr<bool> same =
      LocalShardsMatch(a, aligned, call.layouts, match);
  SHERD_ASSIGN_OR_RETURN(
      differences, AgreeOnMaximum(group, call.name, same.status(), {},
                                  same.ok() && *same ? 0 : 1, call.options));
  return differences == 0;
}

absl::StatusOr<bool> Compare(const ShardedTensor& a, const ShardedTensor& b,
                             const Call& call, Match match) {
  ProcessGroup* const group = GroupOf(a, b);
  if (group != nullptr && group->is_member()) {
    return CompareInGroup(a, b, *group, call, match);
  }
  SHERD_RETURN_IF_ERROR(CheckTensors(a, b));
  SHERD_RETURN_IF_ERROR(call.status);
  // Nothing here to compare.
  if (group != nullptr) return true;
  if (!CanBeEqual(a, b, call.layouts)) return false;
  if (NeedsMove(a, b)) {
    return absl::FailedPreconditionError(absl::StrCat(
        call.name,
        ": tensors without a group and with different layouts cannot be "
        "compared"));
  }
  return LocalShardsMatch(a, b, call.layouts, match);
}

absl::Status CheckTolerance(absl::string_view name, double tolerance) {
  if (tolerance >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", tolerance, ", expected 0 or more"));
}

std::string TextOf(CompareLayouts layouts) {
  return layouts == CompareLayouts::kStrictly ? "layouts compared\n"
                                              : "layouts not compared\n";
}

}  // namespace

absl::StatusOr<bool> Equal(const ShardedTensor& a, const ShardedTensor& b,
                           const EqualOptions& options) {
  const Call call = {.name = "equal",
                     .layouts = options.layouts,
                     .options = {.timeout = options.timeout},
                     .fingerprint = Fingerprint().Add("equal").Add(
                         static_cast<int>(options.layouts)),
                     .describe = [&] { return TextOf(options.layouts); },
                     .status = absl::OkStatus()};
  return Compare(a, b, call,
                 [](const Tensor& x, const Tensor& y) { return x.Equal(y); });
}

absl::StatusOr<bool> AllClose(const ShardedTensor& a, const ShardedTensor& b,
                              const AllCloseOptions& options) {
  absl::Status status = CheckTolerance("rtol", options.rtol);
  status.Update(CheckTolerance("atol", options.atol));
  const Call call = {
      .name = "allclose",
      .layouts = options.layouts,
      .options = {.timeout = options.timeout},
      .fingerprint = Fingerprint()
                         .Add("allclose")
                         .Add(static_cast<int>(options.layouts))
                         .Add(std::bit_cast<int64_t>(options.rtol))
                         .Add(std::bit_cast<int64_t>(options.atol))
                         .Add(options.equal_nan ? 1 : 0),
      .describe =
          [&] {
            return absl::StrCat(TextOf(options.layouts), "rtol ", options.rtol,
                                "\natol ", options.atol, "\nequal_nan ",
                                options.equal_nan ? "true" : "false");
          },
      .status = std::move(status)};
  return Compare(a, b, call, [&](const Tensor& x, const Tensor& y) {
    return x.AllClose(y, options.rtol, options.atol, options.equal_nan);
  });
}

}  // namespace sherd
