#include "sherd/core/comm/channel/device_connector.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/deviation.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/channel/scoped_device.h"
#include "sherd/core/tensor/device_runtime.h"

namespace sherd::internal {
namespace {

// A status as ranks send it: code and text.
std::string StatusToText(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), "\n", status.message());
}

absl::Status Malformed() {
  return absl::InternalError("it sent a malformed status record");
}

absl::Status StatusFromText(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  int code = 0;
  if (!absl::SimpleAtoi(fields.first, &code)) return Malformed();
  return absl::Status(static_cast<absl::StatusCode>(code), fields.second);
}

// The first that is not OK, as all ranks report it.
absl::Status FirstError(absl::Span<const absl::Status> statuses) {
  for (size_t r = 0; r < statuses.size(); ++r) {
    if (statuses[r].ok()) continue;
    return WithRank(
        absl::Status(statuses[r].code(),
                     absl::StrCat("rank ", r, ": ", statuses[r].message())),
        static_cast<int>(r));
  }
  return absl::OkStatus();
}

}  // namespace

DeviceOrigin::~DeviceOrigin() {
  if (split == nullptr) return;
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(device.type);
  if (!runtime.ok()) return;
  const ScopedDevice current(**runtime, device);
  split.reset();
}

// As ranks send each other.
struct DeviceConnector::Facts {
  enum class Source { kAnew = 0, kSplit = 1, kShrink = 2 };

  // OK, or why this rank cannot take part.
  absl::Status status;
  Source source = Source::kAnew;
  std::string library_version;
  // Number of the rank's device.
  int device = -1;
  // DeviceProperties::bus_id.
  std::string device_id;

  std::string ToString() const {
    return absl::StrCat(static_cast<int>(source), "\n", library_version, "\n",
                        device, "\n", device_id, "\n", StatusToText(status));
  }
  static Facts Parse(absl::string_view text) {
    Facts facts;
    const std::vector<absl::string_view> fields =
        absl::StrSplit(text, absl::MaxSplits('\n', 4));
    int source = 0;
    if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &source) ||
        !absl::SimpleAtoi(fields[2], &facts.device)) {
      facts.status = Malformed();
      return facts;
    }
    facts.source = static_cast<Source>(source);
    facts.library_version = std::string(fields[1]);
    facts.device_id = std::string(fields[3]);
    facts.status = StatusFromText(fields[4]);
    return facts;
  }
};

DeviceConnector::DeviceConnector(const Backend& backend, const Device& device,
                                 const Membership& membership,
                                 PeerMonitor& peers, DeviceOrigin& origin)
    : backend_(backend),
      device_(device),
      membership_(membership),
      peers_(peers),
      origin_(origin) {}

DeviceConnector::Facts DeviceConnector::OwnFacts() const {
  Facts facts;
  facts.source = origin_.split != nullptr    ? Facts::Source::kSplit
                 : origin_.parent != nullptr ? Facts::Source::kShrink
                                             : Facts::Source::kAnew;
  facts.library_version = backend_.info().library_version;
  const absl::StatusOr<DeviceRuntime*> runtime =
      DeviceRuntime::For(device_.type);
  if (!runtime.ok()) {
    facts.status = runtime.status();
    return facts;
  }
  const absl::StatusOr<Device> resolved = DeviceRuntime::Resolve(device_);
  if (!resolved.ok()) {
    facts.status = resolved.status();
    return facts;
  }
  const absl::StatusOr<DeviceProperties> properties =
      (*runtime)->Properties(resolved->index);
  facts.status = properties.status();
  facts.device = resolved->index;
  if (properties.ok()) facts.device_id = properties->bus_id;
  return facts;
}

absl::StatusOr<std::vector<absl::Status>> DeviceConnector::ExchangeStatus(
    absl::string_view step, const absl::Status& own, Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                         peers_.Exchange(step, StatusToText(own), deadline));
  std::vector<absl::Status> statuses;
  for (const std::string& text : texts) {
    statuses.push_back(StatusFromText(text));
  }
  return statuses;
}

absl::StatusOr<std::vector<Device>> DeviceConnector::Connect(
    CommunicatorOptions options, DeviceChannel& channel) {
  absl::StatusOr<std::vector<Device>> devices =
      ConnectAll(std::move(options), channel);
  if (devices.ok()) return devices;
  return Annotate(devices.status(),
                  absl::StrCat("the ", Name(device_.type), " part, ",
                               backend_.info().name));
}

absl::StatusOr<std::vector<DeviceConnector::Facts>>
DeviceConnector::ExchangeFacts(Deadline deadline) {
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<std::string> texts,
      peers_.Exchange("device_facts", OwnFacts().ToString(), deadline));
  std::vector<Facts> facts;
  std::vector<absl::Status> statuses;
  std::vector<std::optional<std::string>> versions;
  for (const std::string& text : texts) {
    facts.push_back(Facts::Parse(text));
    statuses.push_back(facts.back().status);
    versions.push_back(absl::StrCat("\"", facts.back().library_version, "\""));
  }
  SHERD_RETURN_IF_ERROR(FirstError(statuses));
  const Deviation deviation = FindDeviation(versions);
  if (!deviation.Exists()) return facts;
  const absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      deviation.ToText("loaded", [&](int r) { return *versions[r]; }),
      ", expected one version of the vendor's library on all ranks"));
  const std::optional<int> failed = deviation.Rank();
  return failed ? WithFailedRank(status, *failed) : status;
}

absl::StatusOr<std::vector<Device>> DeviceConnector::ConnectAll(
    CommunicatorOptions options, DeviceChannel& channel) {
  const Deadline deadline = options.deadline;
  SHERD_ASSIGN_OR_RETURN(const std::vector<Facts> facts,
                         ExchangeFacts(deadline));
  options.device = device_.index;
  options.device_id = facts[membership_.rank()].device_id;
  SHERD_ASSIGN_OR_RETURN(DeviceRuntime* const runtime,
                         DeviceRuntime::For(device_.type));
  const ScopedDevice current(*runtime, device_);
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                         MakeCommunicator(options, facts));
  const absl::Status opened =
      channel.Open({.runtime = runtime,
                    .device = device_,
                    .rank = membership_.rank(),
                    .size = membership_.size(),
                    .native = backend_.info().native,
                    .communicator = std::move(communicator)});
  const absl::StatusOr<std::vector<absl::Status>> outcomes =
      ExchangeStatus("device_opened", opened, deadline);
  if (absl::Status status =
          outcomes.ok() ? FirstError(*outcomes) : outcomes.status();
      !status.ok()) {
    channel.TakeBack(deadline);
    return status;
  }
  std::vector<Device> devices;
  for (const Facts& one : facts) devices.emplace_back(device_.type, one.device);
  return devices;
}

absl::StatusOr<std::unique_ptr<Communicator>> DeviceConnector::MakeCommunicator(
    const CommunicatorOptions& options, absl::Span<const Facts> facts) {
  const auto all_have = [facts](Facts::Source source) {
    return std::all_of(facts.begin(), facts.end(), [source](const Facts& one) {
      return one.source == source;
    });
  };
  if (all_have(Facts::Source::kSplit)) return std::move(origin_.split);
  // With the device current: release what is not needed.
  origin_.split.reset();
  if (all_have(Facts::Source::kShrink)) {
    absl::StatusOr<std::unique_ptr<Communicator>> shrunk =
        origin_.parent->Shrink(options, origin_.excluded);
    SHERD_ASSIGN_OR_RETURN(
        const std::vector<absl::Status> outcomes,
        ExchangeStatus("device_shrunk", shrunk.status(), options.deadline));
    if (FirstError(outcomes).ok()) return shrunk;
    SHERD_LOG(kDebug) << "group \"" << membership_.name()
                      << "\" connects its devices anew: "
                      << FirstError(outcomes).message();
  }
  absl::Status allowed = membership_.MaybeInjectFault(
      FaultPoint::kBeforeConnecting, membership_.name());
  absl::StatusOr<std::unique_ptr<Communicator>> made =
      allowed.ok() ? backend_.CreateCommunicator(options) : std::move(allowed);
  SHERD_ASSIGN_OR_RETURN(
      const std::vector<absl::Status> outcomes,
      ExchangeStatus("device_made", made.status(), options.deadline));
  // A rank that knows which rank failed returns its own error.
  if (!made.ok() && ErrorRank(made.status())) return made.status();
  SHERD_RETURN_IF_ERROR(FirstError(outcomes));
  return made;
}

}  // namespace sherd::internal
