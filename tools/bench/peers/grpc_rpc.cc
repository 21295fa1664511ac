#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sherd/core/base/deadline.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/store/file_store.h"
#include "sherd/tools/bench/peers/rpc_worker.h"

namespace sherd {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr char kMethod[] = "/bench/call";

absl::Status ToAbsl(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()),
          absl::StrCat("gRPC: ", status.error_message())};
}

// Without a copy: `size` bytes that outlive the buffer.
grpc::ByteBuffer Referring(const void* data, size_t size) {
  const grpc::Slice slice(data, size, grpc::Slice::STATIC_SLICE);
  return grpc::ByteBuffer(&slice, 1);
}

// Copies the bytes to `to` if there are `size` of them.
bool CopyTo(const grpc::ByteBuffer& bytes, void* to, size_t size) {
  std::vector<grpc::Slice> slices;
  if (bytes.Length() != size || !bytes.Dump(&slices).ok()) return false;
  char* at = static_cast<char*>(to);
  for (const grpc::Slice& slice : slices) {
    std::memcpy(at, slice.begin(), slice.size());
    at += slice.size();
  }
  return true;
}

// A call that this rank answers: waits for one, reads it, answers it.
class ServedCall {
 public:
  ServedCall(grpc::AsyncGenericService& service,
             grpc::ServerCompletionQueue& queue, const Tensor& served)
      : service_(service), queue_(queue), served_(served), stream_(&context_) {
    service_.RequestCall(&context_, &stream_, &queue_, &queue_, this);
  }

  // The awaited event happened, or will not. The call deletes itself.
  void Proceed(bool happened) {
    if (!happened || answered_) {
      delete this;
      return;
    }
    if (!accepted_) {
      accepted_ = true;
      new ServedCall(service_, queue_, served_);
      stream_.Read(&message_, this);
      return;
    }
    answered_ = true;
    if (served_.defined()) {
      message_ =
          Referring(served_.data(), static_cast<size_t>(served_.nbytes()));
    }
    stream_.WriteAndFinish(message_, {}, grpc::Status::OK, this);
  }

 private:
  grpc::AsyncGenericService& service_;
  grpc::ServerCompletionQueue& queue_;
  const Tensor& served_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer message_;
  bool accepted_ = false;
  bool answered_ = false;
};

// A call that this rank makes.
struct MadeCall {
  grpc::ClientContext context;
  grpc::ByteBuffer answer;
  grpc::Status status;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader;
};

class GrpcRpc final : public RpcWorker {
 public:
  explicit GrpcRpc(Tensor served) : served_(std::move(served)) {}
  ~GrpcRpc() override {
    stubs_.clear();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    if (server_queue_ != nullptr) server_queue_->Shutdown();
    if (serving_.joinable()) serving_.join();
    queue_.Shutdown();
    void* tag;
    bool good;
    while (queue_.Next(&tag, &good)) {
    }
  }

  absl::Status Connect(RankContext& context) {
    const std::string own =
        absl::StrCat("unix-abstract:sherd-bench-grpc-", getpid());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(own, grpc::InsecureServerCredentials());
    builder.RegisterAsyncGenericService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    server_queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("gRPC: listening at ", own));
    }
    new ServedCall(service_, *server_queue_, served_);
    serving_ = std::thread([this] { Serve(); });
    FileStore store(JoinPath(context.directory(), "grpc"));
    SHERD_RETURN_IF_ERROR(store.Set(absl::StrCat(context.rank()), own));
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    for (int rank = 0; rank < context.world(); ++rank) {
      SHERD_ASSIGN_OR_RETURN(
          const std::string address,
          store.Get(absl::StrCat(rank), Deadline::After(kTimeout)));
      stubs_.push_back(
          std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
              address, grpc::InsecureChannelCredentials(), arguments)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Echo(int rank,
                                   const std::string& message) override {
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<MadeCall> call,
                           StartAndAwait(rank, message));
    std::string answer(call->answer.Length(), '\0');
    CopyTo(call->answer, answer.data(), answer.size());
    return answer;
  }

  absl::Status EchoMany(int rank, const std::string& message, int calls,
                        int outstanding) override {
    std::string answer(message.size(), '\0');
    int started = 0;
    for (int ended = 0; ended < calls; ++ended) {
      while (started < std::min(calls, ended + outstanding)) {
        Start(rank, message);
        ++started;
      }
      SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<MadeCall> call, Await());
      if (!CopyTo(call->answer, answer.data(), answer.size()) ||
          answer != message) {
        return WrongEcho(rank);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Fetch(int rank, Tensor& out) override {
    SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<MadeCall> call,
                           StartAndAwait(rank, "?"));
    if (!CopyTo(call->answer, out.data(), static_cast<size_t>(out.nbytes()))) {
      return WrongEcho(rank);
    }
    return absl::OkStatus();
  }

 private:
  // `message` outlives the call.
  void Start(int rank, const std::string& message) {
    auto* const call = new MadeCall;
    call->reader = stubs_[rank]->PrepareUnaryCall(
        &call->context, kMethod, Referring(message.data(), message.size()),
        &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->answer, &call->status, call);
  }

  absl::StatusOr<std::unique_ptr<MadeCall>> Await() {
    void* tag;
    bool good;
    if (!queue_.Next(&tag, &good)) {
      return absl::InternalError("gRPC: the queue was shut down");
    }
    std::unique_ptr<MadeCall> call(static_cast<MadeCall*>(tag));
    if (!call->status.ok()) return ToAbsl(call->status);
    return call;
  }

  absl::StatusOr<std::unique_ptr<MadeCall>> StartAndAwait(
      int rank, const std::string& message) {
    Start(rank, message);
    return Await();
  }

  void Serve() {
    void* tag;
    bool happened;
    while (server_queue_->Next(&tag, &happened)) {
      static_cast<ServedCall*>(tag)->Proceed(happened);
    }
  }

  const Tensor served_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> server_queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread serving_;
  // By rank.
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  grpc::CompletionQueue queue_;
};

}  // namespace

absl::Status FindGrpc() {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  return absl::UnimplementedError(
      "ThreadSanitizer does not see how gRPC synchronizes; build without it");
#else
  return absl::OkStatus();
#endif
}

absl::StatusOr<std::unique_ptr<RpcWorker>> MakeGrpc(RankContext& context,
                                                    const Tensor& served) {
  auto worker = std::make_unique<GrpcRpc>(served);
  SHERD_RETURN_IF_ERROR(worker->Connect(context));
  return worker;
}

}  // namespace sherd
