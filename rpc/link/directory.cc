#include "sherd/rpc/link/directory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/printable_text.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/group/membership_exchange.h"
#include "sherd/core/process/process_identity.h"

namespace sherd::internal {
namespace {

constexpr size_t kMaxNameBytes = 127;
constexpr char kUnixName[] = "unix";
constexpr char kTcpName[] = "tcp";
// Lines of a member record: name, nonce, network, transports, note.
constexpr size_t kRecordFields = 5;
// Lines of an address: Unix name, TCP host and port.
constexpr size_t kAddressFields = 2;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == ':' || c == '-';
}

std::string Record(const Directory::Worker& worker) {
  return absl::StrJoin(
      {worker.name, absl::BytesToHexString(worker.nonce), worker.network,
       worker.transports.ToText(), absl::BytesToHexString(worker.note)},
      "\n");
}

absl::Status Malformed(int rank, absl::string_view detail = "") {
  return WithRank(
      absl::InvalidArgumentError(absl::StrCat(
          "what rank ", rank,
          " wrote at the rendezvous is not of this version of Sherd, or the "
          "store serves something else too",
          detail.empty() ? "" : ": ", detail)),
      rank);
}

// The inverse of BytesToHexString; nothing for other text, which
// HexStringToBytes would accept.
std::optional<std::string> FromHex(absl::string_view text) {
  const auto is_digit = [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c));
  };
  if (text.size() % 2 != 0 ||
      !std::all_of(text.begin(), text.end(), is_digit)) {
    return std::nullopt;
  }
  return absl::HexStringToBytes(text);
}

}  // namespace

absl::StatusOr<Transports> Transports::Parse(
    const std::vector<std::string>& names) {
  if (names.empty()) return Transports();
  Transports result = {.unix_sockets = false, .tcp = false, .memory = {}};
  const std::map<absl::string_view, bool*> known = {
      {kUnixName, &result.unix_sockets},
      {kTcpName, &result.tcp},
      {"thread", &result.memory.thread},
      {"shm", &result.memory.shm},
      {"cma", &result.memory.cma}};
  bool is_valid = true;
  for (const std::string& name : names) {
    const auto found = known.find(name);
    is_valid = is_valid && found != known.end() && !*found->second;
    if (found != known.end()) *found->second = true;
  }
  if (is_valid && (result.unix_sockets || result.tcp)) return result;
  return absl::InvalidArgumentError(
      absl::StrCat("RPC transports are \"", absl::StrJoin(names, ","),
                   "\", expected unix, tcp or both, for messages, and any of "
                   "thread, shm and "
                   "cma, for large tensors"));
}

absl::StatusOr<Transports> Transports::Choose(
    const std::vector<std::string>& asked) {
  if (!asked.empty()) return Parse(asked);
  const std::string knob = GetKnobOr(Knob::kRpcTransports, "");
  if (knob.empty()) return Transports();
  absl::StatusOr<Transports> chosen = Parse(absl::StrSplit(knob, ','));
  if (chosen.ok()) return chosen;
  return Annotate(chosen.status(),
                  absl::StrCat("environment variable ",
                               GetKnobInfo(Knob::kRpcTransports).variable));
}

std::string Transports::ToText() const {
  std::vector<std::string> names;
  if (unix_sockets) names.push_back(kUnixName);
  if (tcp) names.push_back(kTcpName);
  return absl::StrJoin(names, ", ");
}

absl::Status CheckWorkerName(absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes &&
      std::all_of(name.begin(), name.end(), IsNameCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("RPC worker name ", Quoted(name), ": expected 1 to ",
                   kMaxNameBytes, " letters, digits, \"_\", \":\" or \"-\""));
}

Directory::Directory(std::shared_ptr<Store> store, int rank, int world_size)
    : store_(std::move(store)),
      membership_("rpc", rank, world_size, {}, world_size),
      log_(store_, membership_),
      workers_(world_size) {}

absl::StatusOr<std::unique_ptr<Directory>> Directory::Meet(
    std::shared_ptr<Store> store, int rank, int world_size, Worker self,
    Deadline deadline, absl::Status error) {
  // Passed on, so that the others need not wait for this worker.
  error.Update(CheckWorkerName(self.name));
  auto directory = std::unique_ptr<Directory>(
      new Directory(std::move(store), rank, world_size));
  // By rank 0 for all, so that an error reaches all before its store ends.
  const auto settle = [&](const std::vector<std::string>& records)
      -> absl::StatusOr<std::string> {
    SHERD_RETURN_IF_ERROR(directory->ReadRecords(records));
    SHERD_RETURN_IF_ERROR(directory->CheckNames());
    SHERD_RETURN_IF_ERROR(directory->CheckRoutes());
    return std::string();
  };
  Store& meeting = *directory->store_;
  SHERD_RETURN_IF_ERROR(
      ExchangeMembership(
          meeting, /*expected=*/{}, deadline, directory->membership_,
          {.note = Record(self), .error = std::move(error), .settle = settle})
          .status());
  if (rank == 0) return directory;
  const absl::StatusOr<std::vector<std::string>> records =
      ReadNotes(meeting, world_size, deadline);
  const absl::Status status =
      records.ok() ? directory->ReadRecords(*records) : records.status();
  if (status.ok()) return directory;
  // The others wait for this worker's address.
  directory->ReportFailure(status);
  return status;
}

absl::Status Directory::ReadRecords(const std::vector<std::string>& records) {
  for (int rank = 0; rank < size(); ++rank) {
    const std::vector<std::string> fields = absl::StrSplit(records[rank], '\n');
    if (fields.size() != kRecordFields || !CheckWorkerName(fields[0]).ok()) {
      return Malformed(rank);
    }
    const absl::StatusOr<Transports> transports =
        Transports::Parse(absl::StrSplit(fields[3], ", "));
    if (!transports.ok()) return Malformed(rank);
    std::optional<std::string> nonce = FromHex(fields[1]);
    std::optional<std::string> note = FromHex(fields[4]);
    if (!nonce || !note) {
      return Malformed(
          rank, absl::StrCat("worker ", fields[0], ": expected its ",
                             nonce ? "note" : "nonce", " in hexadecimal"));
    }
    workers_[rank] = {.name = fields[0],
                      .nonce = *std::move(nonce),
                      .network = fields[2],
                      .transports = *transports,
                      .note = *std::move(note)};
    names_.push_back(fields[0]);
  }
  return absl::OkStatus();
}

absl::Status Directory::CheckNames() const {
  std::map<absl::string_view, int> ranks;
  for (int rank = 0; rank < size(); ++rank) {
    const auto [it, is_new] = ranks.emplace(names_[rank], rank);
    if (is_new) continue;
    return WithRank(absl::AlreadyExistsError(absl::StrCat(
                        "RPC worker name ", names_[rank],
                        " is not unique: ranks ", it->second, " and ", rank,
                        " have it; give each worker one of its own")),
                    rank);
  }
  return absl::OkStatus();
}

absl::Status Directory::CheckRoutes() const {
  for (int from = 0; from < size(); ++from) {
    for (int to = from + 1; to < size(); ++to) {
      if (RouteBetween(from, to) != Route::kNone) continue;
      const bool near = workers_[from].network == workers_[to].network;
      return WithRank(
          absl::FailedPreconditionError(absl::StrCat(
              Label(from), " and ", Label(to), " cannot reach each other: on ",
              near ? "one host" : "two hosts", " with the RPC transports ",
              workers_[from].transports.ToText(), " and ",
              workers_[to].transports.ToText(),
              near ? "; name one that both have" : "; both need tcp")),
          to);
    }
  }
  return absl::OkStatus();
}

absl::Status Directory::ExchangeAddresses(const HostPort& unix_address,
                                          const HostPort& tcp_address,
                                          Deadline deadline) {
  const std::string own =
      absl::StrCat(unix_address.host, "\n",
                   tcp_address.host.empty()
                       ? ""
                       : FormatHostPort(tcp_address.host, tcp_address.port));
  SHERD_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                         log_.Exchange("addresses", own, deadline));
  for (int rank = 0; rank < size(); ++rank) {
    const std::vector<std::string> fields =
        absl::StrSplit(addresses[rank], '\n');
    if (fields.size() != kAddressFields) return Malformed(rank);
    workers_[rank].unix_address.host = fields[0];
    if (fields[1].empty()) continue;
    const absl::StatusOr<HostPort> tcp = ParseHostPort(fields[1]);
    if (!tcp.ok()) return Malformed(rank);
    workers_[rank].tcp_address = *tcp;
  }
  return absl::OkStatus();
}

Directory::Route Directory::RouteBetween(int from, int to) const {
  const Worker& a = workers_[from];
  const Worker& b = workers_[to];
  if (a.network == b.network && a.transports.unix_sockets &&
      b.transports.unix_sockets) {
    return Route::kUnix;
  }
  return a.transports.tcp && b.transports.tcp ? Route::kTcp : Route::kNone;
}

bool Directory::one_network() const {
  return std::all_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
    return w.network == workers_[0].network;
  });
}

std::string Directory::Label(int rank) const {
  return absl::StrCat(workers_[rank].name, " (rank ", rank, ")");
}

ProcessState Directory::StateOfWorker(int rank) const {
  return StateOf(membership_.process(rank));
}

std::string Directory::EndOfWorker(int rank) const {
  return DescribeEnd(membership_.process(rank), StateOfWorker(rank))
      .value_or("");
}

bool Directory::SharesProcess(int rank) const {
  return membership_.process(rank) == membership_.process(this->rank());
}

}  // namespace sherd::internal
