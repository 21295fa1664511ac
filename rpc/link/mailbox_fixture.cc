#include "sherd/rpc/link/mailbox_fixture.h"

#include "sherd/core/comm/store/store_session.h"
#include "sherd/testing/kits/rank_threads.h"

namespace sherd::internal {
namespace {

using ::sherd::testing::RunRankThreads;

constexpr absl::Duration kLong = absl::Seconds(60);

absl::Status WaitForEntry(absl::Mutex& mutex,
                          const std::map<int, absl::Status>& entries,
                          int worker) {
  const auto has = [&] { return entries.contains(worker); };
  mutex.AwaitWithTimeout(absl::Condition(&has), kLong);
  const auto it = entries.find(worker);
  return it == entries.end() ? absl::OkStatus() : it->second;
}

}  // namespace

absl::StatusOr<std::vector<absl::Span<std::byte>>> LinkMailbox::OnControl(
    int from, absl::string_view control, uint64_t tail_bytes,
    uint64_t* ticket) {
  absl::MutexLock lock(&mutex_);
  Mail mail = {.from = from, .control = std::string(control)};
  std::vector<absl::Span<std::byte>> memory;
  if (tail_bytes == 0) {
    mails_.push_back(std::move(mail));
    return memory;
  }
  *ticket = next_ticket_++;
  mail.tail.resize(tail_bytes);
  Mail& kept = awaited_[{from, *ticket}];
  kept = std::move(mail);
  // In two pieces, so that messages cross a border.
  const absl::Span<std::byte> whole(
      reinterpret_cast<std::byte*>(kept.tail.data()), tail_bytes);
  const size_t middle = tail_bytes / 3;
  memory.push_back(whole.subspan(0, middle));
  memory.push_back(whole.subspan(middle));
  return memory;
}

void LinkMailbox::OnTail(int from, uint64_t ticket) {
  absl::MutexLock lock(&mutex_);
  const auto it = awaited_.find({from, ticket});
  mails_.push_back(std::move(it->second));
  awaited_.erase(it);
}

void LinkMailbox::OnLost(int worker, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  lost_[worker] = why;
  ++losses_[worker];
}

void LinkMailbox::OnLeft(int worker, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  left_[worker] = why;
}

std::vector<LinkMailbox::Mail> LinkMailbox::WaitForMail(size_t count) {
  absl::MutexLock lock(&mutex_);
  const auto has = [&] {
    mutex_.AssertHeld();
    return mails_.size() >= count;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&has), kLong);
  return mails_;
}

absl::Status LinkMailbox::WaitForLoss(int worker) {
  absl::MutexLock lock(&mutex_);
  return WaitForEntry(mutex_, lost_, worker);
}

absl::Status LinkMailbox::WaitForGoodbye(int worker) {
  absl::MutexLock lock(&mutex_);
  return WaitForEntry(mutex_, left_, worker);
}

std::map<int, int> LinkMailbox::losses() const {
  absl::MutexLock lock(&mutex_);
  return losses_;
}

size_t LinkMailbox::num_mails() const {
  absl::MutexLock lock(&mutex_);
  return mails_.size();
}

LinkOptions OptionsOn(const std::shared_ptr<Store>& store, int rank,
                      int world_size) {
  LinkOptions options = {.rank = rank, .world_size = world_size};
  absl::StatusOr<std::unique_ptr<StoreSession>> session =
      EnterStoreSession(store, "rpc", rank, world_size);
  if (session.ok()) options.session = *std::move(session);
  options.deadline = Deadline::After(kLong);
  return options;
}

std::vector<TestWorker> StartWorkers(
    const std::shared_ptr<Store>& store, int world_size,
    const std::function<void(LinkOptions&)>& edit) {
  std::vector<TestWorker> workers(world_size);
  RunRankThreads(world_size, [&](int rank) {
    LinkOptions options = OptionsOn(store, rank, world_size);
    if (edit) edit(options);
    workers[rank].links = Links::Start(options, workers[rank].mailbox.get());
  });
  return workers;
}

std::vector<absl::Status> GoodbyeToAll(std::vector<TestWorker>& workers,
                                       absl::Duration timeout) {
  std::vector<absl::Status> results(workers.size());
  RunRankThreads(static_cast<int>(workers.size()), [&](int rank) {
    results[rank] = workers[rank]->Goodbye(Deadline::After(timeout));
  });
  return results;
}

}  // namespace sherd::internal
