#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/backends/cuda/driver_api.h"
#include "sherd/testing/emulated_gpu/driver/driver.h"
#include "sherd/testing/emulated_gpu/graph_api.h"

// Capture of streams into graphs, and their launches.

namespace sherd::testing {
namespace {

using internal::CudaFunctions;
using internal::kCudaInvalidHandle;
using internal::kCudaInvalidValue;
using internal::kCudaStreamCaptureUnsupported;

constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureUnmatched = 903;
constexpr int kCaptureUnjoined = 904;
constexpr int kCaptureWrongThread = 908;
constexpr int kCaptureRelaxed = 2;

// Whether the origin has waited for all that the others captured.
bool IsJoined(const Capture& capture) {
  std::vector<bool> is_awaited(capture.nodes.size(), false);
  std::vector<size_t> open = capture.origin->capture_tail;
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    if (is_awaited[node]) continue;
    is_awaited[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(),
                capture.nodes[node].after.end());
  }
  return std::find(is_awaited.begin(), is_awaited.end(), false) ==
         is_awaited.end();
}

int EndCapture(Driver& driver, Stream& stream, CUgraph* graph) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (capture == nullptr) return kCudaInvalidValue;
  if (capture->origin != &stream) return kCaptureUnmatched;
  if (capture->mode != kCaptureRelaxed &&
      capture->owner != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  const bool is_joined = IsJoined(*capture);
  const size_t lanes = capture->members.size();
  for (const StreamRef& member : capture->members) {
    member->capture = nullptr;
    member->capture_tail.clear();
  }
  std::erase(driver.captures, capture);
  *graph = nullptr;
  if (!capture->is_valid) return kCaptureInvalidated;
  // Events that were recorded while it captured are of no more use.
  capture->is_valid = false;
  if (!is_joined) return kCaptureUnjoined;
  auto made = std::make_shared<Graph>();
  made->nodes = std::move(capture->nodes);
  made->lanes = lanes;
  *graph = static_cast<CUgraph>(driver.graphs.Add(std::move(made)));
  return 0;
}

// The work of one launch: node by node, on the stream's thread.
int Launch(Driver& driver, GraphExec& exec, Stream& stream,
           std::vector<std::function<int()>> prepared) {
  if (const int result = driver.CheckImplicitCapture(stream); result != 0) {
    return result;
  }
  std::vector<StreamWorker::Place> after;
  // A graph does not overlap with itself.
  if (exec.place) after.push_back(*exec.place);
  stream.clock.Join(exec.clock);
  const OperationRef start =
      driver.Begin(stream, "cuGraphLaunch", nullptr, &after);
  std::vector<StreamWorker::Place> others;
  std::vector<std::function<void()>> runs;
  std::vector<Clock> clocks;
  for (size_t i = 0; i < exec.graph->nodes.size(); ++i) {
    const GraphNode& node = exec.graph->nodes[i];
    auto& [lane, place] = exec.lanes[node.lane];
    auto operation = std::make_shared<OrderedOperation>();
    operation->name = absl::StrCat(node.task.name, " (node ", i, " of the ",
                                   start->name, ")");
    operation->lane = lane;
    operation->place = ++place;
    operation->clock = start->clock;
    for (const size_t other : node.after) operation->clock.Join(clocks[other]);
    operation->clock.Advance(lane, place);
    operation->index = driver.NextIndex();
    operation->runs_at = start->runs_at;
    clocks.push_back(operation->clock);
    stream.clock.Join(operation->clock);
    StreamTask task = node.task;
    if (prepared[i] != nullptr) task.run = std::move(prepared[i]);
    runs.push_back(
        driver.Runner(operation, stream.device, std::move(task), &others));
  }
  // Nodes of the same launch are ordered already.
  std::erase(others, start->runs_at);
  after.insert(after.end(), others.begin(), others.end());
  exec.clock = stream.clock;
  exec.place = stream.tail();
  stream.worker->Push(std::move(after), [runs = std::move(runs)] {
    for (const auto& run : runs) run();
  });
  return 0;
}

}  // namespace

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  return Enter("cuThreadExchangeStreamCaptureMode", Needs::kInit, [&]() -> int {
    if (mode == nullptr || *mode < 0 || *mode > kCaptureRelaxed) {
      return kCudaInvalidValue;
    }
    std::swap(*mode, ThisThread().capture_mode);
    return 0;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return Enter("cuStreamBeginCapture", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    StreamRef found;
    if (const int result = driver.FindUsableStream(stream, &found);
        result != 0) {
      return result;
    }
    if (found->is_default) return kCudaStreamCaptureUnsupported;
    if (found->capture != nullptr || mode < 0 || mode > kCaptureRelaxed) {
      return kCudaInvalidValue;
    }
    auto capture = std::make_shared<Capture>();
    capture->mode = mode;
    capture->owner = std::this_thread::get_id();
    capture->origin = found.get();
    capture->members = {found};
    found->capture_lane = 0;
    found->capture_tail.clear();
    found->capture = capture;
    driver.captures.push_back(std::move(capture));
    return 0;
  });
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return Enter("cuStreamEndCapture", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    StreamRef found;
    if (const int result = driver.FindUsableStream(stream, &found);
        result != 0) {
      return result;
    }
    return EndCapture(driver, *found, graph);
  });
}

CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  return Enter("cuStreamIsCapturing", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    StreamRef found;
    if (const int result = driver.FindUsableStream(stream, &found);
        result != 0) {
      return result;
    }
    // Asking breaks nothing.
    if (driver.FindImplicitCapture(*found) != nullptr) {
      return internal::kCudaStreamCaptureImplicit;
    }
    // None, active or invalidated.
    *status = found->capture == nullptr ? 0 : found->capture->is_valid ? 1 : 2;
    return 0;
  });
}

CUresult cuGraphInstantiateWithFlags(
    CUgraphExec* exec, CUgraph graph,
    unsigned long long) {  // NOLINT(runtime/int)
  return Enter("cuGraphInstantiateWithFlags", Needs::kContext, [&]() -> int {
    Driver& driver = Driver::Get();
    const std::lock_guard<std::mutex> lock(driver.mutex);
    auto made = std::make_shared<GraphExec>();
    made->graph = driver.graphs.Find(graph);
    if (made->graph == nullptr) return kCudaInvalidValue;
    for (size_t lane = 0; lane < made->graph->lanes; ++lane) {
      made->lanes.push_back(driver.TakeLane());
    }
    *exec = static_cast<CUgraphExec>(driver.graph_execs.Add(std::move(made)));
    return 0;
  });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return Enter("cuGraphLaunch", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    std::unique_lock<std::mutex> lock(driver.mutex);
    const std::shared_ptr<GraphExec> found = driver.graph_execs.Find(exec);
    if (found == nullptr) return kCudaInvalidValue;
    StreamRef on;
    if (const int result = driver.FindUsableStream(stream, &on); result != 0) {
      return result;
    }
    if (on->capture != nullptr) return kCudaStreamCaptureUnsupported;
    lock.unlock();
    std::vector<std::function<int()>> prepared;
    for (const GraphNode& node : found->graph->nodes) {
      prepared.push_back(node.task.prepare ? node.task.prepare() : nullptr);
    }
    lock.lock();
    return Launch(driver, *found, *on, std::move(prepared));
  });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return Enter("cuGraphExecDestroy", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    std::unique_lock<std::mutex> lock(driver.mutex);
    std::shared_ptr<GraphExec> found = driver.graph_execs.Find(exec);
    if (found == nullptr) return kCudaInvalidValue;
    driver.graph_execs.Remove(exec);
    const std::shared_ptr<const Graph> graph = std::move(found->graph);
    // Release objects that nodes keep alive without the lock.
    lock.unlock();
    return 0;
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return Enter("cuGraphDestroy", Needs::kInit, [&]() -> int {
    Driver& driver = Driver::Get();
    std::unique_lock<std::mutex> lock(driver.mutex);
    const std::shared_ptr<Graph> found = driver.graphs.Find(graph);
    if (found == nullptr) return kCudaInvalidValue;
    driver.graphs.Remove(graph);
    lock.unlock();
    return 0;
  });
}

}  // extern "C"

#define SHERD_CHECK(function, table, member) \
  static_assert(std::is_same_v<decltype(&function), decltype(table::member)>)
SHERD_CHECK(cuThreadExchangeStreamCaptureMode, CudaFunctions,
            ThreadExchangeStreamCaptureMode);
SHERD_CHECK(cuStreamIsCapturing, CudaFunctions, StreamIsCapturing);
SHERD_CHECK(cuStreamBeginCapture_v2, TestCudaFunctions, StreamBeginCapture);
SHERD_CHECK(cuStreamEndCapture, TestCudaFunctions, StreamEndCapture);
SHERD_CHECK(cuGraphInstantiateWithFlags, TestCudaFunctions, GraphInstantiate);
SHERD_CHECK(cuGraphLaunch, TestCudaFunctions, GraphLaunch);
SHERD_CHECK(cuGraphExecDestroy, TestCudaFunctions, GraphExecDestroy);
SHERD_CHECK(cuGraphDestroy, TestCudaFunctions, GraphDestroy);
#undef SHERD_CHECK

}  // namespace sherd::testing
