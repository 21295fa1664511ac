#include "sherd/core/comm/bootstrap/rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/knobs.h"
#include "sherd/core/base/logging.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/unique_fd.h"
#include "sherd/core/comm/bootstrap/host_address.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/core/comm/store/hash_store.h"
#include "sherd/core/comm/store/store_servers.h"
#include "sherd/core/comm/store/tcp_store.h"

namespace sherd::internal {
namespace {

constexpr int64_t kMaxSecretBytes = 4096;
// Rank 0 sends this through a bootstrap in place of an address.
constexpr absl::string_view kFailed = "failed ";

bool IsNumeric(const std::string& host) {
  in_addr v4;
  in6_addr v6;
  // An IPv6 address may name its interface.
  const std::string bare = host.substr(0, host.find('%'));
  return inet_pton(AF_INET, bare.c_str(), &v4) == 1 ||
         inet_pton(AF_INET6, bare.c_str(), &v6) == 1;
}

// A session on a server of this process.
class SessionOnOwnServer final : public StoreSession {
 public:
  explicit SessionOnOwnServer(std::unique_ptr<StoreSession> session)
      : StoreSession(session->store()), session_(std::move(session)) {}

  void Leave() override {
    session_->Leave();
    StoreServers::Global().NoteLeaving();
  }
  void GiveUp(const absl::Status& why) override {
    session_->GiveUp(why);
    StoreServers::Global().NoteLeaving();
  }

 private:
  const std::unique_ptr<StoreSession> session_;
};

// Where rank 0 is, as this rank sees it.
struct Master {
  std::string address;
  // Rank 0 only: what it binds to.
  std::string bind_address;
};

absl::StatusOr<Master> LocateMaster(const std::string& host, int rank,
                                    bool on_this_host, Deadline deadline) {
  if (on_this_host) {
    const std::string loopback = LoopbackLike(host);
    return Master{loopback, loopback};
  }
  SHERD_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                         ResolveHost(host, deadline));
  // All ranks have to choose the same address, whatever their resolver prefers.
  std::sort(addresses.begin(), addresses.end(),
            [](const std::string& a, const std::string& b) {
              return std::make_pair(LoopbackLike(a) == "::1", a) <
                     std::make_pair(LoopbackLike(b) == "::1", b);
            });
  const std::string& address = addresses.front();
  if (!IsNumeric(host) && IsLoopback(address) &&
      address != LoopbackLike(address)) {
    // Many systems call themselves 127.0.1.1, while others see an address of
    // the network behind the same name.
    SHERD_ASSIGN_OR_RETURN(const std::string own, AddressForOthers(""));
    return Master{own, own};
  }
  if (rank != 0) return Master{address, ""};
  const absl::StatusOr<std::string> own = AddressTowards(address);
  if (own.ok() && *own == address) return Master{address, address};
  // A service or a router forwards connections to that address.
  SHERD_ASSIGN_OR_RETURN(const std::string bind_address,
                         AddressForOthers(address));
  SHERD_LOG(kInfo) << "rank 0: " << host << " (" << address
                   << ") is not an address of this host; listening on "
                   << bind_address;
  return Master{bind_address, bind_address};
}

absl::StatusOr<Rendezvous> MeetAtServer(const RendezvousOptions& options,
                                        const std::string& address, int port,
                                        const std::string& secret) {
  const int rank = options.place.rank;
  const absl::StatusOr<std::shared_ptr<TcpStore>> store =
      TcpStore::Connect({.host = address,
                         .port = port,
                         .secret = secret,
                         .deadline = options.deadline});
  if (!store.ok()) {
    absl::Status status = Annotate(
        store.status(),
        absl::StrCat("the store of rank 0 at ", HostAndPort(address, port)));
    if (rank == 0) return status;
    // A wrong secret is not a failure of rank 0.
    const bool came =
        !absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status);
    return came ? WithRank(std::move(status), 0)
                : WithFailedRank(std::move(status), 0);
  }
  SHERD_ASSIGN_OR_RETURN(
      std::unique_ptr<StoreSession> session,
      EnterStoreSession(*store, options.group, rank, options.place.world_size));
  if (rank == 0) {
    StoreServers::Global().NoteOwnClient(port, *store);
    session = std::make_unique<SessionOnOwnServer>(std::move(session));
  }
  return Rendezvous{std::move(session), address};
}

absl::StatusOr<Rendezvous> MeetAtAddress(const RendezvousOptions& options,
                                         const std::string& host, int port,
                                         bool on_this_host) {
  const int rank = options.place.rank;
  SHERD_ASSIGN_OR_RETURN(const std::string secret, ReadSecret());
  SHERD_ASSIGN_OR_RETURN(
      const Master master,
      LocateMaster(host, rank, on_this_host, options.deadline));
  if (rank == 0) {
    WarnOfMissingSecret(0, master.bind_address, port, secret);
    const std::string where = HostAndPort(master.bind_address, port);
    const absl::StatusOr<int> listening = StoreServers::Global().FindOrStart(
        where,
        {.address = master.bind_address, .port = port, .secret = secret});
    if (!listening.ok()) {
      return WithRank(Annotate(listening.status(),
                               absl::StrCat("rank 0 cannot listen on ", where)),
                      0);
    }
  }
  return MeetAtServer(options, master.address, port, secret);
}

absl::StatusOr<Rendezvous> MeetAtFile(const RendezvousOptions& options,
                                      const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(
      std::shared_ptr<StoreSession> session,
      EnterFileSession(std::make_shared<FileStore>(path), options.group,
                       options.place.rank, options.place.world_size));
  return Rendezvous{std::move(session), ""};
}

// A directory below TMPDIR that no other user can access.
absl::StatusOr<std::string> OwnDirectory() {
  const std::string path =
      JoinPath(GetKnobOr(Knob::kTmpDir, "/tmp"),
               absl::StrCat("sherd-", static_cast<uint64_t>(geteuid())));
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, "making the directory in which ranks meet,",
                       path);
  }
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, "looking at", path);
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & 0077) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ", in which ranks meet, is not a directory that only its owner, this "
        "user, can enter: remove it, or choose another TMPDIR"));
  }
  return path;
}

absl::Status CheckLaunchedWorld(const RendezvousOptions& options) {
  SHERD_ASSIGN_OR_RETURN(const LaunchedWorld world,
                         options.backend->FindLaunchedWorld());
  if (world.rank == options.place.rank &&
      world.size == options.place.world_size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "this is rank ", options.place.rank, " of ", options.place.world_size,
      ", but the backend ", options.backend->info().name,
      " was launched as rank ", world.rank, " of ", world.size));
}

// Rank 0 listens, and the backend's launcher broadcasts the address.
absl::StatusOr<Rendezvous> MeetByBootstrap(const RendezvousOptions& options) {
  SHERD_RETURN_IF_ERROR(CheckLaunchedWorld(options));
  SHERD_ASSIGN_OR_RETURN(const std::string secret, ReadSecret());
  std::string blob;
  if (options.place.rank == 0) {
    const auto listen = [&]() -> absl::StatusOr<std::string> {
      std::string address = "127.0.0.1";
      if (!options.place.one_host.value_or(false)) {
        SHERD_ASSIGN_OR_RETURN(address, AddressForOthers(""));
      }
      SHERD_ASSIGN_OR_RETURN(
          const int port,
          StoreServers::Global().FindOrStart(
              absl::StrCat("bootstrap ", address),
              {.address = address, .port = 0, .secret = secret}));
      WarnOfMissingSecret(0, address, port, secret);
      return absl::StrCat(address, " ", port);
    };
    absl::StatusOr<std::string> listening = listen();
    blob = listening.ok() ? *listening
                          : absl::StrCat(kFailed, listening.status().message())
                                .substr(0, Backend::kMaxBootstrapBytes);
  }
  SHERD_ASSIGN_OR_RETURN(blob,
                         options.backend->Bootstrap(blob, options.deadline));
  absl::string_view text = blob;
  if (absl::ConsumePrefix(&text, kFailed)) {
    return WithRank(
        absl::UnavailableError(absl::StrCat("rank 0 cannot listen: ", text)),
        0);
  }
  const std::pair<std::string, std::string> fields =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  int port;
  if (!absl::SimpleAtoi(fields.second, &port)) {
    return absl::InternalError(absl::StrCat(
        "the bootstrap of the backend ", options.backend->info().name,
        " returned other data than rank 0 sent"));
  }
  return MeetAtServer(options, fields.first, port, secret);
}

absl::Status NowhereToMeet(const RendezvousOptions& options) {
  const LaunchEnvironment& place = options.place;
  const char* missing = "";
  if (!place.master_addr.empty()) {
    missing = ". MASTER_PORT expected, but not set";
  } else if (place.master_port != 0) {
    missing = ". MASTER_ADDR expected, but not set";
  }
  return absl::InvalidArgumentError(absl::StrCat(
      options.function,
      ": no place is given where the ranks meet: start the program with "
      "\"sherd run -n N PROGRAM\", or set MASTER_ADDR and MASTER_PORT, or "
      "init_method or SHERD_INIT_METHOD to tcp://HOST:PORT or to a file that "
      "does not exist yet, file:///PATH (rank and size came from ",
      place.launcher, ", which provides none)", missing));
}

absl::StatusOr<Rendezvous> MeetAtMaster(const RendezvousOptions& options) {
  const LaunchEnvironment& place = options.place;
  if (place.master_addr.empty() || place.master_port == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Error initializing using env:// rendezvous: environment variable ",
        place.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT",
        " expected, but not set"));
  }
  absl::StatusOr<Rendezvous> met =
      MeetAtAddress(options, place.master_addr, place.master_port,
                    place.one_host.value_or(false));
  if (met.ok()) return met;
  return Annotate(
      met.status(),
      absl::StrCat("meeting at ",
                   HostAndPort(place.master_addr, place.master_port), " (from ",
                   place.master_source, ")"));
}

absl::StatusOr<Rendezvous> MeetWhereTheLauncherSays(
    const RendezvousOptions& options) {
  const LaunchEnvironment& place = options.place;
  if (place.world_size == 1) {
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<StoreSession> session,
        EnterStoreSession(std::make_shared<HashStore>(), options.group, 0, 1));
    return Rendezvous{std::move(session), ""};
  }
  if (!place.master_addr.empty() && place.master_port != 0) {
    return MeetAtMaster(options);
  }
  if (place.one_host.value_or(false) && !place.job_id.empty()) {
    SHERD_ASSIGN_OR_RETURN(const std::string directory, OwnDirectory());
    return MeetAtFile(options, JoinPath(directory, place.job_id));
  }
  if (options.backend != nullptr && options.backend->info().needs_launcher) {
    return MeetByBootstrap(options);
  }
  return NowhereToMeet(options);
}

}  // namespace

absl::StatusOr<Rendezvous> Meet(const RendezvousOptions& options) {
  if (options.store != nullptr) {
    SHERD_ASSIGN_OR_RETURN(
        std::shared_ptr<StoreSession> session,
        EnterStoreSession(options.store, options.group, options.place.rank,
                          options.place.world_size));
    return Rendezvous{std::move(session), ""};
  }
  if (!options.method) return MeetWhereTheLauncherSays(options);
  switch (options.method->kind) {
    case InitMethod::Kind::kFile:
      return MeetAtFile(options, options.method->path);
    case InitMethod::Kind::kTcp:
      return MeetAtAddress(options, options.method->host, options.method->port,
                           false);
    case InitMethod::Kind::kEnvironment:
      return MeetAtMaster(options);
  }
  return absl::InternalError("an init method of unknown kind");
}

void WarnOfMissingSecret(int rank, const std::string& address, int port,
                         const std::string& secret) {
  if (!secret.empty() || IsLoopback(address)) return;
  static const bool warned = [&] {
    SHERD_LOG(kWarning)
        << "rank " << rank << " listens on " << HostAndPort(address, port)
        << " without a shared secret: any program that reaches it can join or "
           "disturb the run. Name a file with a secret, the same on all hosts, "
           "in "
           "SHERD_SECRET_FILE";
    return true;
  }();
  (void)warned;
}

absl::StatusOr<std::string> AddressForOthers(const std::string& master) {
  const std::string pattern = GetKnobOr(Knob::kSocketIfname, "");
  if (!pattern.empty()) {
    SHERD_ASSIGN_OR_RETURN(const std::vector<NetworkInterface> interfaces,
                           ListInterfaces());
    return AddressOfInterface(pattern, master, interfaces);
  }
  if (!master.empty()) {
    absl::StatusOr<std::string> own = AddressTowards(master);
    if (own.ok() && !IsLoopback(*own)) return own;
  }
  return PrimaryAddress();
}

absl::StatusOr<std::string> ReadSecret() {
  const std::string path = GetKnobOr(Knob::kSecretFile, "");
  if (path.empty()) return "";
  SHERD_ASSIGN_OR_RETURN(
      const UniqueFd fd,
      OpenRegularFile(path, O_RDONLY, 0, "SHERD_SECRET_FILE: opening"));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) {
    return ErrnoStatus(errno, "SHERD_SECRET_FILE: opening", path);
  }
  if ((info.st_mode & 0007) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("SHERD_SECRET_FILE: other users may read or change ", path,
                     ", and then it holds no secret: chmod o= ", path));
  }
  SHERD_ASSIGN_OR_RETURN(std::string secret,
                         ReadFile(FileSystem::Posix(), path, kMaxSecretBytes));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) {
    secret.pop_back();
  }
  if (secret.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("SHERD_SECRET_FILE: ", path, " is empty"));
  }
  return secret;
}

}  // namespace sherd::internal
