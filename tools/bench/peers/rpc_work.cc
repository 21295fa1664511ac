#include "sherd/tools/bench/peers/rpc_work.h"

#include <sched.h>

#include <algorithm>
#include <any>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/tensor/tensor.h"

namespace sherd {
namespace {

constexpr int kRoundTrips = 500;
constexpr int kOutstandingCalls = 4000;
constexpr double kComputeSeconds = 500e-6;
// As many as take about that long with memcpy, and at least one.
constexpr int64_t kFetchedBytes = int64_t{16} << 20;

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Median(std::vector<double>& seconds) {
  const auto middle = seconds.begin() + seconds.size() / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

std::string MessageOf(RankContext& context) {
  std::string message(static_cast<size_t>(context.bytes()), '\0');
  for (size_t i = 0; i < message.size(); ++i) {
    message[i] = static_cast<char>(context.rank() + 31 * i);
  }
  return message;
}

// Rank 0 measures, and the others answer on threads of their own.
class RpcWork : public RankWork {
 public:
  RpcWork(RankContext& context, std::unique_ptr<RpcWorker> worker)
      : measures_(context.rank() == 0), worker_(std::move(worker)) {}

  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Run() override {
    if (!measures_) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(seconds_, Measure(*worker_));
    return absl::OkStatus();
  }
  std::optional<double> OwnSeconds() const override { return seconds_; }
  absl::Status Check() override { return absl::OkStatus(); }

 protected:
  bool measures() const { return measures_; }

 private:
  // The seconds that one call takes.
  virtual absl::StatusOr<double> Measure(RpcWorker& worker) = 0;

  const bool measures_;
  const std::unique_ptr<RpcWorker> worker_;
  double seconds_ = 0;
};

class RoundTrips final : public RpcWork {
 public:
  RoundTrips(RankContext& context, std::unique_ptr<RpcWorker> worker)
      : RpcWork(context, std::move(worker)),
        message_(MessageOf(context)),
        seconds_(kRoundTrips) {}

 private:
  absl::StatusOr<double> Measure(RpcWorker& worker) override {
    for (double& seconds : seconds_) {
      const double begin = Now();
      SHERD_ASSIGN_OR_RETURN(const std::string answer,
                             worker.Echo(1, message_));
      seconds = Now() - begin;
      if (answer != message_) return WrongEcho(1);
    }
    return Median(seconds_);
  }

  const std::string message_;
  std::vector<double> seconds_;
};

class OutstandingCalls final : public RpcWork {
 public:
  OutstandingCalls(RankContext& context, std::unique_ptr<RpcWorker> worker)
      : RpcWork(context, std::move(worker)), message_(MessageOf(context)) {}

 private:
  absl::StatusOr<double> Measure(RpcWorker& worker) override {
    const double begin = Now();
    SHERD_RETURN_IF_ERROR(
        worker.EchoMany(1, message_, kOutstandingCalls, kRpcOutstanding));
    return (Now() - begin) / kOutstandingCalls;
  }

  const std::string message_;
};

// The tensors that the peers of a case fetch, and their destinations.
struct FetchTensors {
  Tensor served;
  Tensor out;
};

uint32_t WordAt(int rank, size_t index) {
  return static_cast<uint32_t>(index * 2654435761u + rank);
}

absl::StatusOr<FetchTensors> SharedTensors(RankContext& context) {
  std::any& common = context.common();
  if (common.has_value()) return std::any_cast<FetchTensors>(common);
  const int64_t words =
      context.bytes() / static_cast<int64_t>(sizeof(uint32_t));
  FetchTensors tensors;
  SHERD_ASSIGN_OR_RETURN(tensors.served,
                         Tensor::Empty({words}, {.dtype = kUInt32}));
  SHERD_ASSIGN_OR_RETURN(tensors.out,
                         Tensor::Empty({words}, {.dtype = kUInt32}));
  uint32_t* const served = tensors.served.mutable_data_as<uint32_t>();
  for (int64_t i = 0; i < words; ++i) served[i] = WordAt(context.rank(), i);
  common = tensors;
  return tensors;
}

class Fetches final : public RpcWork {
 public:
  Fetches(RankContext& context, std::unique_ptr<RpcWorker> worker, Tensor out)
      : RpcWork(context, std::move(worker)),
        out_(std::move(out)),
        seconds_(std::clamp(kFetchedBytes / context.bytes(), int64_t{1},
                            int64_t{100})) {}

  absl::Status Prepare() override {
    std::fill_n(out_.mutable_data_as<uint32_t>(), out_.numel(), ~uint32_t{0});
    return absl::OkStatus();
  }

  absl::Status Check() override {
    if (!measures()) return absl::OkStatus();
    const uint32_t* const words = std::as_const(out_).data_as<uint32_t>();
    for (int64_t i = 0; i < out_.numel(); ++i) {
      if (words[i] != WordAt(1, i)) {
        return absl::DataLossError(absl::StrCat("word ", i, " is ", words[i],
                                                ", expected ", WordAt(1, i)));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<double> Measure(RpcWorker& worker) override {
    for (double& seconds : seconds_) {
      const double begin = Now();
      SHERD_RETURN_IF_ERROR(worker.Fetch(1, out_));
      seconds = Now() - begin;
    }
    return Median(seconds_);
  }

  Tensor out_;
  std::vector<double> seconds_;
};

class BusyCalls final : public RankWork {
 public:
  BusyCalls(RankContext& context, std::unique_ptr<RpcWorker> worker)
      : next_((context.rank() + 1) % context.world()),
        message_(MessageOf(context)),
        worker_(std::move(worker)) {}

  absl::Status Prepare() override { return absl::OkStatus(); }
  absl::Status Run() override {
    Compute();
    if (worker_ == nullptr) return absl::OkStatus();
    SHERD_ASSIGN_OR_RETURN(const std::string answer,
                           worker_->Echo(next_, message_));
    return answer == message_ ? absl::OkStatus() : WrongEcho(next_);
  }
  absl::Status Check() override { return absl::OkStatus(); }

 private:
  static double CpuSeconds() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_nsec) * 1e-9;
  }

  void Compute() {
    const double end = CpuSeconds() + kComputeSeconds;
    while (CpuSeconds() < end) {
      for (int i = 0; i < 1000; ++i) value_ = value_ * 1.0000001 + 1e-9;
    }
  }

  const int next_;
  const std::string message_;
  const std::unique_ptr<RpcWorker> worker_;
  // Written, so that the compiler leaves the work in.
  volatile double value_ = 1;
};

// Keeps this process on one of its cores, counted from the last one, around if
// there are fewer.
absl::Status StayOnCore(int index) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) != 0) {
    return ErrnoStatus(errno, "reading the cores of", "this process");
  }
  int core = CPU_SETSIZE;
  for (int left = index % CPU_COUNT(&cores); left >= 0; --left) {
    do {
      --core;
    } while (!CPU_ISSET(core, &cores));
  }
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  // Threads that begin later inherit it.
  if (sched_setaffinity(0, sizeof(cores), &cores) != 0) {
    return ErrnoStatus(errno, "staying on core", absl::StrCat(core));
  }
  return absl::OkStatus();
}

template <typename Work>
absl::StatusOr<std::unique_ptr<RankWork>> Make(RankContext& context,
                                               RpcWorkerMaker make_worker) {
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<RpcWorker> worker,
                         make_worker(context, Tensor()));
  return std::make_unique<Work>(context, std::move(worker));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankWork>> MakeRoundTrips(
    RankContext& context, RpcWorkerMaker make_worker) {
  SHERD_RETURN_IF_ERROR(StayOnCore(context.rank()));
  return Make<RoundTrips>(context, make_worker);
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeRoundTripsOnOneCore(
    RankContext& context, RpcWorkerMaker make_worker) {
  SHERD_RETURN_IF_ERROR(StayOnCore(0));
  return Make<RoundTrips>(context, make_worker);
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeOutstandingCalls(
    RankContext& context, RpcWorkerMaker make_worker) {
  return Make<OutstandingCalls>(context, make_worker);
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeFetches(
    RankContext& context, RpcWorkerMaker make_worker) {
  SHERD_ASSIGN_OR_RETURN(FetchTensors tensors, SharedTensors(context));
  SHERD_ASSIGN_OR_RETURN(std::unique_ptr<RpcWorker> worker,
                         make_worker(context, tensors.served));
  return std::make_unique<Fetches>(context, std::move(worker),
                                   std::move(tensors.out));
}

absl::StatusOr<std::unique_ptr<RankWork>> MakeBusyCalls(
    RankContext& context, RpcWorkerMaker make_worker) {
  if (make_worker != nullptr) return Make<BusyCalls>(context, make_worker);
  return std::make_unique<BusyCalls>(context, nullptr);
}

}  // namespace sherd
