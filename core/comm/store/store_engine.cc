#include "sherd/core/comm/store/store_engine.h"

#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

// A list of missing keys in a message is long enough with these.
constexpr size_t kMissingNamed = 64;

StoreResponse Failure(uint64_t id, const absl::Status& status) {
  return {.id = id,
          .code = status.code(),
          .strings = {std::string(status.message())}};
}

int64_t EntryBytes(absl::string_view key, absl::string_view value) {
  return static_cast<int64_t>(key.size() + value.size());
}

}  // namespace

StoreEngine::StoreEngine(int64_t max_bytes, Reply reply)
    : max_bytes_(max_bytes), reply_(std::move(reply)) {}

absl::Status StoreEngine::Handle(ClientId client, absl::string_view bytes,
                                 Clock::time_point now) {
  SHERD_ASSIGN_OR_RETURN(StoreRequest request, ParseStoreRequest(bytes));
  switch (request.operation) {
    case StoreOperation::kCancel:
      Forget({client, request.id});
      break;
    case StoreOperation::kGet:
    case StoreOperation::kWait:
      Begin(client, request, now);
      break;
    default:
      Answer(client, request);
  }
  return absl::OkStatus();
}

void StoreEngine::Answer(ClientId client, const StoreRequest& request) {
  absl::StatusOr<StoreResponse> response = Execute(request);
  if (!response.ok()) {
    return reply_(client, Failure(request.id, response.status()));
  }
  response->id = request.id;
  reply_(client, *response);
}

absl::StatusOr<StoreResponse> StoreEngine::Execute(
    const StoreRequest& request) {
  const std::string& key = request.strings[0];
  StoreResponse response;
  switch (request.operation) {
    case StoreOperation::kSet:
      SHERD_RETURN_IF_ERROR(Put(key, request.strings[1]));
      break;
    case StoreOperation::kAdd: {
      SHERD_ASSIGN_OR_RETURN(std::string sum,
                             AddToEntry(entries_, key, request.number));
      (void)absl::SimpleAtoi(sum, &response.number);
      SHERD_RETURN_IF_ERROR(Put(key, std::move(sum)));
      break;
    }
    case StoreOperation::kCompareSet: {
      SHERD_RETURN_IF_ERROR(CheckStoreEntry(key, request.strings[2]));
      ComparedEntry compared =
          CompareEntry(entries_, key, request.strings[1], request.strings[2]);
      if (compared.write) SHERD_RETURN_IF_ERROR(Put(key, compared.value));
      response.strings.push_back(std::move(compared.value));
      break;
    }
    case StoreOperation::kDelete:
      response.number = RemoveAll({key});
      break;
    case StoreOperation::kDeletePrefix:
      response.number = RemoveAll(KeysBelow(entries_, key));
      break;
    case StoreOperation::kRetire: {
      const int members = static_cast<int>(
          request.number > std::numeric_limits<int>::max() ? -1
                                                           : request.number);
      SHERD_ASSIGN_OR_RETURN(Retirement retirement,
                             CountRetired(entries_, key, members));
      if (retirement.is_last) {
        RemoveAll(KeysBelow(entries_, key));
      } else {
        SHERD_RETURN_IF_ERROR(
            Put(retirement.counter_key, std::move(retirement.count)));
      }
      break;
    }
    case StoreOperation::kContains:
      response.number = entries_.count(key) != 0 ? 1 : 0;
      break;
    case StoreOperation::kGet:
    case StoreOperation::kWait:
    case StoreOperation::kCancel:
      return absl::InternalError("a request that waits");
  }
  return response;
}

void StoreEngine::Begin(ClientId client, StoreRequest& request,
                        Clock::time_point now) {
  const RequestId id = {client, request.id};
  if (waiting_.count(id) != 0) {
    return reply_(client, Failure(request.id, absl::InvalidArgumentError(
                                                  "a request has this id")));
  }
  if (absl::Status status = CheckStoreKeys(request.strings); !status.ok()) {
    return reply_(client, Failure(request.id, status));
  }
  Waiting waiting;
  waiting.operation = request.operation;
  waiting.removals = removals_;
  for (const std::string& key : request.strings) {
    waiting.bytes += EntryBytes(key, "") + sizeof(std::string);
  }
  waiting.keys = std::move(request.strings);
  if (Advance(waiting)) return AnswerFound(client, request.id, waiting);
  if (request.number == 0) return AnswerMissing(client, request.id, waiting);
  waiting.bytes += sizeof(Waiting);
  if (waiting.bytes > max_bytes_ - bytes_) {
    return reply_(client, Failure(request.id, absl::ResourceExhaustedError(
                                                  "too many requests wait")));
  }
  if (request.number > 0 && std::chrono::nanoseconds(request.number) <
                                Clock::time_point::max() - now) {
    waiting.expiry = now + std::chrono::nanoseconds(request.number);
    by_expiry_.insert({*waiting.expiry, id});
  }
  bytes_ += waiting.bytes;
  by_key_[waiting.keys[waiting.cursor]].insert(id);
  waiting_.emplace(id, std::move(waiting));
}

bool StoreEngine::Advance(Waiting& waiting) const {
  if (waiting.removals != removals_) {
    waiting.removals = removals_;
    waiting.cursor = 0;
  }
  while (waiting.cursor < waiting.keys.size()) {
    if (entries_.count(waiting.keys[waiting.cursor]) == 0) return false;
    ++waiting.cursor;
  }
  return true;
}

void StoreEngine::Notify(const std::string& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return;
  const std::set<RequestId> ids = std::move(it->second);
  by_key_.erase(it);
  for (const RequestId& id : ids) {
    Waiting& waiting = waiting_.find(id)->second;
    if (Advance(waiting)) {
      Finish(id);
    } else {
      by_key_[waiting.keys[waiting.cursor]].insert(id);
    }
  }
}

void StoreEngine::Finish(const RequestId& id) {
  const auto it = waiting_.find(id);
  const Waiting waiting = std::move(it->second);
  if (waiting.expiry) by_expiry_.erase({*waiting.expiry, id});
  bytes_ -= waiting.bytes;
  waiting_.erase(it);
  AnswerFound(id.first, id.second, waiting);
}

void StoreEngine::Forget(const RequestId& id) {
  const auto it = waiting_.find(id);
  if (it == waiting_.end()) return;
  const Waiting& waiting = it->second;
  if (waiting.expiry) by_expiry_.erase({*waiting.expiry, id});
  const auto missed = by_key_.find(waiting.keys[waiting.cursor]);
  missed->second.erase(id);
  if (missed->second.empty()) by_key_.erase(missed);
  bytes_ -= waiting.bytes;
  waiting_.erase(it);
}

void StoreEngine::AnswerFound(ClientId client, uint64_t id,
                              const Waiting& waiting) {
  StoreResponse response;
  response.id = id;
  if (waiting.operation == StoreOperation::kGet) {
    absl::StatusOr<std::vector<std::string>> values =
        ValuesOf(entries_, waiting.keys);
    if (!values.ok()) return reply_(client, Failure(id, values.status()));
    response.strings = *std::move(values);
  }
  reply_(client, response);
}

void StoreEngine::AnswerMissing(ClientId client, uint64_t id,
                                const Waiting& waiting) {
  StoreResponse response;
  response.id = id;
  response.code = absl::StatusCode::kDeadlineExceeded;
  for (const std::string& key : waiting.keys) {
    if (response.strings.size() == kMissingNamed) break;
    if (entries_.count(key) == 0) response.strings.push_back(key);
  }
  reply_(client, response);
}

void StoreEngine::Expire(Clock::time_point now) {
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const RequestId id = by_expiry_.begin()->second;
    const Waiting waiting = waiting_.find(id)->second;
    Forget(id);
    AnswerMissing(id.first, id.second, waiting);
  }
}

std::optional<StoreEngine::Clock::time_point> StoreEngine::NextExpiry() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

void StoreEngine::Disconnect(ClientId client) {
  std::vector<RequestId> ids;
  for (auto it = waiting_.lower_bound({client, 0});
       it != waiting_.end() && it->first.first == client; ++it) {
    ids.push_back(it->first);
  }
  for (const RequestId& id : ids) Forget(id);
}

absl::Status StoreEngine::Put(absl::string_view key, std::string value) {
  SHERD_RETURN_IF_ERROR(CheckStoreEntry(key, value));
  const auto it = entries_.find(key);
  const int64_t before =
      it == entries_.end() ? 0 : EntryBytes(it->first, it->second);
  const int64_t growth = EntryBytes(key, value) - before;
  if (growth > max_bytes_ - bytes_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store holds ", bytes_, " bytes and may hold ",
                     max_bytes_, ": store less, or delete unused keys"));
  }
  bytes_ += growth;
  if (it != entries_.end()) {
    it->second = std::move(value);
    return absl::OkStatus();
  }
  const std::string created(key);
  entries_.emplace(created, std::move(value));
  Notify(created);
  return absl::OkStatus();
}

int64_t StoreEngine::RemoveAll(absl::Span<const std::string> keys) {
  int64_t count = 0;
  for (const std::string& key : keys) {
    const auto it = entries_.find(key);
    if (it == entries_.end()) continue;
    bytes_ -= EntryBytes(it->first, it->second);
    entries_.erase(it);
    ++count;
  }
  if (count > 0) ++removals_;
  return count;
}

}  // namespace sherd::internal
