#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/error_info.h"
#include "sherd/core/base/fault_point.h"
#include "sherd/core/base/scoped_blocked.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/base/waiting_deleter.h"
#include "sherd/core/comm/bootstrap/meeting.h"
#include "sherd/core/comm/bootstrap/rendezvous.h"
#include "sherd/core/comm/flight/flight_recorder.h"
#include "sherd/core/comm/flight/watchdog.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/store/store_session.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/rpc/agent/loss_reporter.h"
#include "sherd/rpc/agent/publications.h"
#include "sherd/rpc/call_context.h"
#include "sherd/rpc/devices/device_routes.h"
#include "sherd/rpc/devices/device_staging.h"
#include "sherd/rpc/engine/call_engine.h"
#include "sherd/rpc/engine/callee.h"
#include "sherd/rpc/link/directory.h"
#include "sherd/rpc/link/links.h"
#include "sherd/rpc/rpc.h"

namespace sherd {
namespace internal {
namespace {

constexpr char kGroup[] = "rpc";
// For the end of a shutdown that no longer waits for others, on a busy
// machine.
constexpr absl::Duration kEnding = absl::Seconds(30);

Deadline NotBefore(absl::Duration reserve, Deadline deadline) {
  const Deadline earliest = Deadline::After(reserve);
  return deadline.when() < earliest.when() ? earliest : deadline;
}

// Reads a box of a published shard; see FetchRequest.
struct FetchShard {
  using Numbers = std::vector<int64_t>;

  static constexpr absl::string_view kName = "sherd.fetch";
  using Signature = absl::StatusOr<Tensor>(
      const std::string& scope, uint64_t number, uint64_t fingerprint,
      int32_t shard, const std::optional<std::pair<Numbers, Numbers>>& box,
      bool on_host);
};

// As Publications::Await; ends with the call that this thread handles.
absl::StatusOr<std::shared_ptr<const Publication>> AwaitPublished(
    const std::shared_ptr<Publications>& publications, const PublicationId& id,
    Deadline deadline) {
  const std::shared_ptr<CallContext>& context = CallContext::Current();
  if (context != nullptr) {
    context->OnCancelled([publications] { publications->Wake(); });
  }
  return publications->Await(id, deadline, context.get());
}

std::shared_ptr<const RawHandler> FetchHandler(
    std::shared_ptr<Publications> publications) {
  const auto fetch =
      [publications = std::move(publications)](
          const std::string& scope, uint64_t number, uint64_t fingerprint,
          int32_t shard,
          const std::optional<
              std::pair<FetchShard::Numbers, FetchShard::Numbers>>& box,
          bool on_host) -> absl::StatusOr<Tensor> {
    FetchRequest request = {.publication = {scope, number},
                            .fingerprint = fingerprint,
                            .shard = shard};
    if (box) {
      request.box = Box{Dims(box->first.begin(), box->first.end()),
                        Dims(box->second.begin(), box->second.end())};
    }
    // Other calls may have to be served first.
    ScopedBlocked blocked;
    const Deadline deadline = CallContext::Current()->deadline();
    const auto publication =
        AwaitPublished(publications, request.publication, deadline);
    if (!publication.ok()) return AsCallersSee(publication.status());
    SHERD_ASSIGN_OR_RETURN(Tensor elements,
                           SelectPublished(**publication, request));
    // The reader has memory for it on a device of its own choice.
    if (on_host) {
      SHERD_RETURN_IF_ERROR(CopyToHost(absl::MakeSpan(&elements, 1), deadline));
    }
    return elements;
  };
  RawHandler handler;
  handler.name = std::string(FetchShard::kName);
  handler.signature = SignatureOf<FetchShard>();
  handler.run = [fetch](Payload request, ReplyFunction reply) {
    RunHandler<FetchShard>(fetch, std::move(request), reply);
  };
  return std::make_shared<const RawHandler>(std::move(handler));
}

absl::Status SetDeviceRoutes(const Directory& directory, CallEngine& engine) {
  std::vector<std::string> maps;
  for (int r = 0; r < directory.size(); ++r) {
    maps.push_back(directory.worker(r).note);
  }
  SHERD_ASSIGN_OR_RETURN(
      DeviceRoutes routes,
      DeviceRoutes::Create(directory.rank(), directory.names(), maps));
  // Loaded now, not when a message arrives, since loading may take long. A
  // worker without devices refuses tensors for them.
  if (routes.uses_devices()) {
    DeviceRuntime::For(DeviceType::kCuda).IgnoreError();
  }
  engine.SetDeviceRoutes(std::move(routes));
  return absl::OkStatus();
}

int64_t ToNanoseconds(Deadline::Clock::time_point time) {
  return absl::ToInt64Nanoseconds(absl::FromChrono(time.time_since_epoch()));
}

// In the form of the flight recorder.
std::vector<FlightCall> FlightCallsOf(const CallEngine& engine,
                                      const std::vector<std::string>& names) {
  std::vector<FlightCall> calls;
  for (CallUnderWay& call : engine.CallsUnderWay()) {
    FlightCall& to = calls.emplace_back();
    to.incoming = call.incoming;
    to.peer = call.peer;
    to.peer_name = names[static_cast<size_t>(call.peer)];
    to.number = call.id;
    to.method = std::move(call.method);
    to.state = call.state;
    to.started = ToNanoseconds(call.started);
    if (!call.deadline.IsInfinite()) {
      to.deadline = ToNanoseconds(call.deadline.when());
    }
  }
  return calls;
}

class Agent final : public RpcAgent,
                    public std::enable_shared_from_this<Agent> {
 public:
  explicit Agent(const RpcOptions& options) : options_(options) {}
  ~Agent() override { Shutdown({.graceful = false}).IgnoreError(); }

  absl::Status Join(int rank, int world_size,
                    std::shared_ptr<StoreSession> session,
                    const std::string& master, Deadline deadline);
  // After Join. Handlers run from here on.
  void Open() { engine_->Attach(links_); }

  int rank() const override { return links_->rank(); }
  const std::vector<std::string>& workers() const override {
    return links_->names();
  }
  bool is_running() const override {
    return running_.load(std::memory_order_acquire);
  }
  std::vector<std::string> Addresses() const override {
    return links_->Addresses();
  }
  std::vector<WorkerStatistics> Statistics() const override {
    std::vector<WorkerStatistics> all = engine_->Statistics();
    all[static_cast<size_t>(rank())].publications = publications_->size();
    for (const auto& [lost, why] : losses_->lost()) {
      all[static_cast<size_t>(lost)].lost = true;
    }
    return all;
  }
  void OnWorkerLost(
      std::function<void(int, const absl::Status&)> notify) override {
    losses_->Add(std::move(notify));
  }

  std::string DescribeReferences() const override {
    return engine_->references().ToString();
  }

  absl::Status Publish(Publication publication) override {
    return publications_->Publish(std::move(publication));
  }
  absl::Status Withdraw(const PublicationId& id) override {
    return publications_->Withdraw(id);
  }
  absl::StatusOr<Tensor> Fetch(int rank, const FetchRequest& request) override;
  absl::Status Shutdown(const ShutdownOptions& options) override;

 private:
  uint64_t Start(const To& to, bool waits, absl::string_view method,
                 uint64_t signature, absl::StatusOr<Payload> request,
                 ReplyFunction done) override;
  std::function<void()> Canceller(uint64_t call) override;
  std::shared_ptr<SharedWork> work() const override { return engine_->work(); }
  absl::StatusOr<ReferenceService::Handle> StartRemote(
      const To& to, absl::string_view method, uint64_t signature,
      absl::StatusOr<Payload> request) override;
  absl::StatusOr<ReferenceService::Handle> ShareValue(
      absl::StatusOr<Payload> value) override;
  // Shows the calls of this worker in dumps of the flight recorder.
  void RecordCalls();
  //   kInvalidArgument  "Invalid worker name", or the rank does not exist.
  absl::StatusOr<int> RankOf(const WorkerRef& worker) const;

  // The first thread that shuts down does the work; others wait for it, and may
  // have less time.
  enum class Phase { kRunning, kDraining, kParting, kClosing, kOver };
  absl::Status End(bool graceful, Deadline deadline)
      ABSL_LOCKS_EXCLUDED(shutdown_mutex_);
  // `found`: the phase at which this thread arrived.
  absl::Status JoinEnd(bool graceful, Deadline deadline, Phase found)
      ABSL_LOCKS_EXCLUDED(shutdown_mutex_);
  // Until when a shutdown that should end by `deadline` notifies the others.
  Deadline PartingBy(Deadline deadline) const {
    return NotBefore(options_.parting_timeout, deadline);
  }
  // Begins `phase`, and returns until when it may last.
  Deadline EnterPhase(Phase phase) ABSL_LOCKS_EXCLUDED(shutdown_mutex_);

  const RpcOptions options_;
  std::atomic<bool> running_{false};
  absl::Mutex shutdown_mutex_;
  Phase phase_ ABSL_GUARDED_BY(shutdown_mutex_) = Phase::kRunning;
  // The earliest deadline of those threads.
  Deadline end_by_ ABSL_GUARDED_BY(shutdown_mutex_) = Deadline::Infinite();
  absl::Status outcome_ ABSL_GUARDED_BY(shutdown_mutex_);
  absl::flat_hash_map<std::string, int> rank_of_;
  std::shared_ptr<Publications> publications_;
  // In the order of their making; null until Join.
  std::shared_ptr<CallEngine> engine_;
  std::unique_ptr<LossReporter> losses_;
  std::shared_ptr<Links> links_;
  std::unique_ptr<GroupTag> flight_;
  // For dumps upon a signal: calls have deadlines of their own.
  Watchdog::Watch watch_;
};

absl::Status Agent::Join(int rank, int world_size,
                         std::shared_ptr<StoreSession> session,
                         const std::string& master, Deadline deadline) {
  absl::StatusOr<std::string> secret = ReadSecret();
  const std::string name =
      options_.name.empty() ? absl::StrCat("worker", rank) : options_.name;
  publications_ = std::make_shared<Publications>(name);
  // Links reports the error.
  const MemoryPathSet memory_paths = Transports::Choose(options_.transports)
                                         .value_or(Transports{.memory = {}})
                                         .memory;
  CallEngineOptions calls = {.rank = rank,
                             .world_size = world_size,
                             .memory_paths = memory_paths,
                             .timeout = options_.timeout};
  calls.limits.max_tensor_bytes = options_.max_message_bytes;
  calls.find_handler = [own = FetchHandler(publications_)](
                           absl::string_view method, uint64_t signature,
                           absl::string_view worker) {
    if (method == own->name && signature == own->signature.hash) {
      return absl::StatusOr<std::shared_ptr<const RawHandler>>(own);
    }
    return FindHandlerFor(method, signature, worker);
  };
  engine_ = std::make_shared<CallEngine>(std::move(calls));
  const auto on_met = [engine = engine_.get()](const Directory& directory) {
    return SetDeviceRoutes(directory, *engine);
  };
  losses_ = std::make_unique<LossReporter>(engine_.get());
  SHERD_ASSIGN_OR_RETURN(
      links_, Links::Start({.rank = rank,
                            .world_size = world_size,
                            .name = options_.name,
                            .session = std::move(session),
                            .master = master,
                            .secret = secret.value_or(""),
                            .transports = options_.transports,
                            .deadline = deadline,
                            .heartbeat = options_.heartbeat_interval,
                            .patience = options_.heartbeat_timeout,
                            .max_tail_bytes = options_.max_message_bytes,
                            .error = secret.status(),
                            .note = EncodeDeviceMaps(options_.device_maps),
                            .on_met = on_met},
                           losses_.get()));
  for (int r = 0; r < world_size; ++r) rank_of_[workers()[r]] = r;
  RecordCalls();
  engine_->Share(links_->work());
  running_.store(true, std::memory_order_release);
  return absl::OkStatus();
}

void Agent::RecordCalls() {
  flight_ = std::make_unique<GroupTag>(
      FlightGroupInfo{.name = kGroup,
                      .backend = kGroup,
                      .rank = rank(),
                      .size = static_cast<int>(workers().size())});
  flight_->SetCalls(
      [this] { return FlightCallsOf(*engine_, links_->names()); });
  losses_->Add([tag = flight_.get()](int rank, const absl::Status&) {
    tag->SetFailedRank(rank);
  });
  watch_ = Watchdog::Global().Add(*flight_, [](const absl::Status&) {});
}

absl::StatusOr<int> Agent::RankOf(const WorkerRef& worker) const {
  if (const int64_t* const rank = worker.rank()) {
    if (*rank >= 0 && static_cast<size_t>(*rank) < workers().size()) {
      return static_cast<int>(*rank);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "worker ", *rank, " does not exist, expected a rank from 0 to ",
        workers().size() - 1));
  }
  const auto found = rank_of_.find(*worker.name());
  if (found != rank_of_.end()) return found->second;
  constexpr size_t kShown = 8;
  const size_t shown = std::min(kShown, workers().size());
  return absl::InvalidArgumentError(absl::StrCat(
      "Invalid worker name '", *worker.name(), "': the workers are ",
      absl::StrJoin(workers().begin(), workers().begin() + shown, ", "),
      shown < workers().size() ? ", …" : ""));
}

uint64_t Agent::Start(const To& to, bool waits, absl::string_view method,
                      uint64_t signature, absl::StatusOr<Payload> request,
                      ReplyFunction done) {
  const absl::StatusOr<int> rank = RankOf(to.worker);
  absl::Status status = request.status();
  status.Update(rank.status());
  if (!status.ok()) {
    done(Annotate(std::move(status), absl::StrCat("call of ", method)));
    return 0;
  }
  return engine_->Start(*rank, method, signature, *std::move(request),
                        {.timeout = to.timeout.value_or(options_.timeout),
                         .out = to.out,
                         .may_wait = !waits},
                        std::move(done));
}

std::function<void()> Agent::Canceller(uint64_t call) {
  return [engine = std::weak_ptr<CallEngine>(engine_), call] {
    if (const auto alive = engine.lock()) alive->Cancel(call);
  };
}

absl::StatusOr<ReferenceService::Handle> Agent::StartRemote(
    const To& to, absl::string_view method, uint64_t signature,
    absl::StatusOr<Payload> request) {
  const auto create = [&]() -> absl::StatusOr<ReferenceService::Created> {
    SHERD_RETURN_IF_ERROR(request.status());
    SHERD_ASSIGN_OR_RETURN(const int rank, RankOf(to.worker));
    if (to.out.empty()) return engine_->references().Create(rank);
    return absl::InvalidArgumentError(
        "To::out is for results that are returned; this one stays there");
  };
  absl::StatusOr<ReferenceService::Created> created = create();
  if (!created.ok()) {
    return Annotate(created.status(), absl::StrCat("remote ", method));
  }
  engine_->Start(created->message.id.owner, method, signature,
                 *std::move(request),
                 {.timeout = to.timeout.value_or(options_.timeout),
                  .may_wait = true,
                  .creation = created->message},
                 [](const absl::StatusOr<Payload>& /*in the value*/) {});
  return std::move(created->handle);
}

absl::StatusOr<ReferenceService::Handle> Agent::ShareValue(
    absl::StatusOr<Payload> value) {
  SHERD_RETURN_IF_ERROR(value.status());
  // It is fetched on other threads.
  SHERD_RETURN_IF_ERROR(Annotate(
      AwaitQueued(value->tensors, Deadline::After(options_.timeout)), "share"));
  SHERD_ASSIGN_OR_RETURN(ReferenceService::Created created,
                         engine_->references().Create(rank()));
  if (const auto shared = engine_->references().ValueOf(created.message.id)) {
    shared->Set(*std::move(value));
  }
  return std::move(created.handle);
}

absl::StatusOr<Tensor> Agent::Fetch(int rank, const FetchRequest& request) {
  const absl::Duration timeout = request.timeout.value_or(options_.timeout);
  if (rank == this->rank()) {
    SHERD_ASSIGN_OR_RETURN(const std::shared_ptr<const Publication> publication,
                           AwaitPublished(publications_, request.publication,
                                          Deadline::After(timeout)));
    SHERD_ASSIGN_OR_RETURN(const Tensor elements,
                           SelectPublished(*publication, request));
    if (request.out.defined()) return DeliverFetched(elements, request);
    return elements.Clone();
  }
  std::optional<std::pair<FetchShard::Numbers, FetchShard::Numbers>> box;
  if (request.box) {
    box.emplace(FetchShard::Numbers(request.box->offsets.begin(),
                                    request.box->offsets.end()),
                FetchShard::Numbers(request.box->sizes.begin(),
                                    request.box->sizes.end()));
  }
  To to = {.worker = rank, .timeout = timeout};
  const bool has_out = request.out.defined();
  if (has_out) to.out = {request.out};
  return Call<FetchShard>(to, request.publication.scope,
                          request.publication.number, request.fingerprint,
                          request.shard, box, has_out);
}

absl::Status Agent::Shutdown(const ShutdownOptions& options) {
  // Functions of the program that it runs may drop the last handle. None is
  // left if the destructor calls it.
  const std::shared_ptr<Agent> self = weak_from_this().lock();
  const Deadline deadline = Deadline::After(
      options.graceful ? options.timeout.value_or(options_.timeout)
                       : absl::ZeroDuration());
  Phase found;
  {
    absl::MutexLock lock(&shutdown_mutex_);
    found = phase_;
    const bool is_first = found == Phase::kRunning;
    if (found == Phase::kOver || (is_first && !is_running())) {
      return absl::OkStatus();
    }
    if (is_first) phase_ = Phase::kDraining;
    end_by_ = Deadline::Earlier(end_by_, deadline);
  }
  if (found != Phase::kRunning) {
    return JoinEnd(options.graceful, deadline, found);
  }
  absl::Status status =
      Annotate(End(options.graceful, deadline), "RPC shutdown");
  absl::MutexLock lock(&shutdown_mutex_);
  phase_ = Phase::kOver;
  outcome_ = status;
  return status;
}

absl::Status Agent::End(bool graceful, Deadline deadline) {
  absl::Status status;
  const auto pass = [this](FaultPoint point) {
    MaybeInjectFault({.point = point, .rank = rank(), .subject = name()})
        .IgnoreError();
  };
  pass(FaultPoint::kRpcBeforeDrain);
  if (graceful) status = engine_->Drain(deadline);
  pass(FaultPoint::kRpcAfterDrain);
  running_.store(false, std::memory_order_release);
  publications_->Close();
  engine_->FailAll(
      absl::FailedPreconditionError("RPC has been shut down on this worker"));
  engine_->references().ReleaseAll();
  const Deadline parting = EnterPhase(Phase::kParting);
  // Also if the others are not waited for: an intended end is not a loss.
  const absl::Status parted = links_->Goodbye(parting);
  // No loss is reported from here on.
  losses_->Close();
  watch_.Stop();
  flight_ = nullptr;
  // For handlers that still run; threads that arrived meanwhile may have less
  // time.
  const absl::Status closed =
      engine_->Close(Deadline::Earlier(parting, EnterPhase(Phase::kClosing)));
  if (!graceful) return absl::OkStatus();
  status.Update(parted);
  status.Update(closed);
  return status;
}

Deadline Agent::EnterPhase(Phase phase) {
  absl::MutexLock lock(&shutdown_mutex_);
  phase_ = phase;
  return PartingBy(end_by_);
}

absl::Status Agent::JoinEnd(bool graceful, Deadline deadline, Phase found) {
  engine_->EndDrainBy(deadline);
  const auto has_reached = [this](Phase phase, Deadline by) {
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(shutdown_mutex_) {
      return phase_ >= phase;
    };
    absl::MutexLock lock(&shutdown_mutex_);
    return shutdown_mutex_.AwaitWithTimeout(absl::Condition(&reached),
                                            by.Remaining());
  };
  const Deadline parting = PartingBy(deadline);
  // It ends by the earlier deadline.
  if (has_reached(Phase::kParting, parting)) {
    links_->Goodbye(parting).IgnoreError();
  }
  // The wait may have lasted until then. The rest lasts no longer either,
  // except for handlers that the first thread waited for before this one
  // arrived.
  const bool is_over = has_reached(
      Phase::kOver,
      found < Phase::kClosing ? NotBefore(kEnding, parting) : parting);
  if (!graceful) return absl::OkStatus();
  if (!is_over) {
    return absl::DeadlineExceededError(
        "RPC shutdown: that of another thread has not ended");
  }
  absl::MutexLock lock(&shutdown_mutex_);
  return outcome_;
}

absl::StatusOr<std::shared_ptr<RpcAgent>> Launch(
    const RpcOptions& options, int rank, int world_size,
    std::shared_ptr<StoreSession> session, const std::string& master,
    Deadline deadline, bool make_default) {
  const std::shared_ptr<Agent> agent(new Agent(options), WaitingDeleter());
  SHERD_RETURN_IF_ERROR(
      agent->Join(rank, world_size, std::move(session), master, deadline));
  // Before Open: handlers may use the default.
  if (make_default) SetDefaultRemoteAccess(agent, options.workers_are_threads);
  agent->Open();
  return agent;
}

absl::StatusOr<std::shared_ptr<RemoteAccess>> StartAgent(
    const RemoteAccessOptions& options) {
  RpcOptions rpc;
  rpc.name = options.name;
  rpc.timeout = options.timeout;
  rpc.device_maps = options.device_maps;
  SHERD_ASSIGN_OR_RETURN(std::shared_ptr<StoreSession> session,
                         EnterStoreSession(options.store, kGroup, options.rank,
                                           options.world_size));
  return Launch(rpc, options.rank, options.world_size, std::move(session),
                /*master=*/"", Deadline::After(options.timeout),
                /*make_default=*/false);
}

[[maybe_unused]] const bool registered = [] {
  RegisterRemoteAccess(StartAgent);
  return true;
}();

}  // namespace
}  // namespace internal

absl::StatusOr<std::shared_ptr<RpcAgent>> InitRpc(const RpcOptions& options) {
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("InitRpc: timeout must be above zero");
  }
  SHERD_RETURN_IF_ERROR(
      internal::CheckNoDefaultRemoteAccess(options.workers_are_threads));
  const Deadline deadline = Deadline::After(options.timeout);
  SHERD_ASSIGN_OR_RETURN(
      const internal::MeetingPlace meeting,
      internal::FindMeeting({.rank = options.rank,
                             .world_size = options.world_size,
                             .init_method = options.init_method,
                             .store = options.store},
                            "InitRpc", "RpcOptions"));
  SHERD_ASSIGN_OR_RETURN(const internal::Rendezvous rendezvous,
                         internal::Meet({.group = internal::kGroup,
                                         .place = meeting.place,
                                         .method = meeting.method,
                                         .store = options.store,
                                         .deadline = deadline,
                                         .function = "InitRpc"}));
  return internal::Launch(options, meeting.place.rank, meeting.place.world_size,
                          rendezvous.session, rendezvous.master, deadline,
                          /*make_default=*/true);
}

absl::StatusOr<std::shared_ptr<RpcAgent>> DefaultRpcAgent() {
  auto agent = std::dynamic_pointer_cast<RpcAgent>(DefaultRemoteAccess());
  if (agent != nullptr) return agent;
  return absl::FailedPreconditionError(
      "RPC has not been initialized: call InitRpc first");
}

}  // namespace sherd
