#include "sherd/rpc/engine/landings.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/shape.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_codec.h"

namespace sherd::internal {
namespace {

// `wanted`: the properties of the result's tensor `i`.
absl::Status CheckFits(size_t i, bool defined, DType dtype,
                       absl::Span<const int64_t> sizes, const Tensor& out) {
  if (defined && out.dtype() == dtype && out.sizes() == sizes &&
      out.writable()) {
    return absl::OkStatus();
  }
  const std::string found =
      defined ? absl::StrCat(Name(dtype), " ", FormatDims(sizes)) : "undefined";
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", i, " of the result is ", found,
                   ", but `out` has ", Name(out.dtype()), " ",
                   FormatDims(out.sizes()), " on ", out.device().ToString(),
                   out.writable() ? "" : ", which may not be written to",
                   "; pass one that fits, or none"));
}

absl::Status CheckCount(size_t found, const std::vector<Tensor>& out) {
  if (out.empty() || out.size() == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the result has ", found, " tensors, but `out` has ",
                   out.size(), "; pass as many, or none"));
}

bool Is(const Tensor& a, const Tensor& b) {
  return a.data() == b.data() && a.storage() == b.storage() &&
         a.strides() == b.strides();
}

}  // namespace

uint64_t Landings::Add(int from, End end) {
  absl::MutexLock lock(&mutex_);
  const uint64_t ticket = next_ticket_++;
  landings_.emplace(ticket, Landing{from, std::move(end)});
  return ticket;
}

void Landings::Land(int from, uint64_t ticket) {
  End end;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = landings_.find(ticket);
    if (it == landings_.end() || it->second.from != from) return;
    end = std::move(it->second.end);
    landings_.erase(it);
  }
  end(absl::OkStatus());
}

void Landings::Fail(int worker, const absl::Status& why) {
  std::vector<End> ends;
  {
    absl::MutexLock lock(&mutex_);
    absl::erase_if(landings_, [&](auto& entry) {
      if (worker != -1 && entry.second.from != worker) return false;
      ends.push_back(std::move(entry.second.end));
      return true;
    });
  }
  for (const End& end : ends) end(why);
}

absl::StatusOr<std::vector<Tensor>> TensorsToLandIn(
    const std::vector<TensorLayout>& layouts, const std::vector<Tensor>& out,
    bool any_strides) {
  SHERD_RETURN_IF_ERROR(CheckCount(layouts.size(), out));
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined()) continue;
    SHERD_RETURN_IF_ERROR(CheckFits(i, layouts[i].defined, layouts[i].dtype,
                                    layouts[i].sizes, out[i]));
  }
  std::vector<Tensor> tensors(layouts.size());
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (!layouts[i].defined) continue;
    if (!out.empty() && out[i].defined() && out[i].device().is_cpu() &&
        (any_strides || out[i].is_contiguous())) {
      tensors[i] = out[i];
      continue;
    }
    const bool has_out = !out.empty() && out[i].defined();
    SHERD_ASSIGN_OR_RETURN(
        tensors[i],
        EmptyForCopyTo(has_out ? out[i].device() : layouts[i].device,
                       layouts[i].sizes, layouts[i].dtype));
  }
  return tensors;
}

std::vector<Device> DevicesAfterLanding(
    const std::vector<TensorLayout>& layouts, const std::vector<Tensor>& out) {
  std::vector<Device> devices;
  for (size_t i = 0; i < layouts.size(); ++i) {
    if (layouts[i].device.is_cpu()) continue;
    if (!out.empty() && out[i].defined()) continue;
    devices.resize(layouts.size());
    devices[i] = layouts[i].device;
  }
  return devices;
}

std::vector<absl::Span<std::byte>> DestinationsOf(
    std::vector<Tensor>& tensors) {
  std::vector<absl::Span<std::byte>> destinations;
  for (Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.nbytes() == 0) continue;
    destinations.emplace_back(static_cast<std::byte*>(tensor.data()),
                              static_cast<size_t>(tensor.nbytes()));
  }
  return destinations;
}

bool NeedsCopyIntoOut(const std::vector<Tensor>& out,
                      const std::vector<Tensor>& landed) {
  if (out.size() != landed.size()) return !out.empty();
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].defined() && !Is(out[i], landed[i])) return true;
  }
  return false;
}

absl::Status CopyIntoOut(const std::vector<Tensor>& out,
                         std::vector<Tensor>& landed) {
  SHERD_RETURN_IF_ERROR(CheckCount(landed.size(), out));
  for (size_t i = 0; i < out.size(); ++i) {
    if (!out[i].defined() || Is(out[i], landed[i])) continue;
    SHERD_RETURN_IF_ERROR(CheckFits(i, landed[i].defined(), landed[i].dtype(),
                                    landed[i].sizes(), out[i]));
    Tensor to = out[i];
    SHERD_RETURN_IF_ERROR(to.CopyFrom(landed[i]));
    landed[i] = std::move(to);
  }
  return absl::OkStatus();
}

}  // namespace sherd::internal
