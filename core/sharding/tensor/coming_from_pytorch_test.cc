// Checks COMING_FROM_PYTORCH.md: its code examples are code of this file, which
// runs, and every name that it gives for Sherd's side exists.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "sherd/core/base/status_macros.h"
#include "sherd/core/comm/init.h"
#include "sherd/core/comm/process_group.h"
#include "sherd/core/comm/remote_access.h"
#include "sherd/core/comm/work.h"
#include "sherd/core/sharding/mesh_sharding_spec.h"
#include "sherd/core/sharding/partial_tensor.h"
#include "sherd/core/sharding/placement.h"
#include "sherd/core/sharding/sharded_comparison.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/tensor/device.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/device_stream.h"
#include "sherd/core/tensor/storage.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/threaded_test.h"

namespace sherd {
namespace {

using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;

constexpr char kFolder[] = "core/sharding/";
constexpr char kThisFile[] = "core/sharding/tensor/coming_from_pytorch_test.cc";

// From headers of other folders.
[[maybe_unused]] constexpr auto kSplit = &ProcessGroup::Split;
[[maybe_unused]] constexpr auto kDevice = &ProcessGroup::device;
[[maybe_unused]] constexpr auto kDevices = &ProcessGroup::devices;
[[maybe_unused]] constexpr auto kSynchronize = &ProcessGroup::Synchronize;
[[maybe_unused]] constexpr auto kWait = &Work::Wait;
[[maybe_unused]] constexpr auto kWaitOnStream = &Work::WaitOnStream;
[[maybe_unused]] constexpr auto kUsedOn = &Storage::UsedOn;
[[maybe_unused]] constexpr auto kInit = &Init;
[[maybe_unused]] constexpr auto kCurrentStream = &CurrentStream;
[[maybe_unused]] constexpr auto kSetDevice = &DeviceRuntime::SetCurrentDevice;
[[maybe_unused]] constexpr auto kCurrent = &DeviceRuntime::CurrentDevice;
[[maybe_unused]] constexpr auto kWaitFor = &DeviceRuntime::Synchronize;
[[maybe_unused]] constexpr auto kPinned = &DeviceRuntime::PinnedMemory;
[[maybe_unused]] constexpr auto kStatistics = &DeviceRuntime::MemoryStatistics;
[[maybe_unused]] constexpr auto kTrim = &DeviceRuntime::Trim;
[[maybe_unused]] constexpr auto kAddDeviceMap = &AddDeviceMap;
[[maybe_unused]] constexpr size_t kScope = sizeof(ScopedStream);
// core does not see serialization/checkpoint.h: SaveCheckpoint, LoadCheckpoint,
// LoadCheckpointInto, CheckpointExists. Nor serialization/metadata.h:
// SerializeMetadata, ParseMetadata, SerializeSpec, ParseSpec. Nor
// serialization/archive.h: Save, SaveToString, Load, LoadFromString, Archive:
// Open, contents, Verify. ArchiveSink, ArchiveSource, ArchiveLoadOptions: map,
// device. ScopedLoadGroup. Nor rpc/rpc.h and
// the headers beside it: InitRpc, RpcOptions: init_method, store, timeout,
// transports, device_maps. DefaultRpcAgent, RpcAgent: Call, CallAsync, Remote,
// Share, rank, name, workers, Shutdown, ShutdownOptions, OnWorkerLost,
// Statistics. To. RegisterHandler, UnregisterHandler. Future: Wait, Ready,
// OnReady. RemoteRef: ToHere, LocalValue, owner. Nor core/nn: Module: Call,
// Clone, AddOutputHook. ModuleVisitor: Parameter, Buffer, Attribute, Child.
// Find, Get, Set, NamedParameters, NamedBuffers, NamedAttributes, NamedModules.
// ModuleDict, ModuleList, Linear. State, LoadState, AddShardedAttributeHooks.
// ShardParameter, ShardModule, ShardingPlan, Sharder, ShardingPlanner,
// ReshardOutput, CollectLocalShard, BalancedPlanner. Value, Visit. LookUp,
// Embedding, EmbeddingBag, EmbeddingBagCollection. Bags, ValueMap, kNone,
// PlanEntry, bytes_per_rank. Update, UpdateOptions, SparseRule, SgdStep,
// GetAccumulator, SetAccumulator.

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Lines without the space around them, and no empty ones.
std::vector<std::string> Lines(absl::string_view text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

std::set<std::string> Words(absl::string_view text) {
  const auto is_part_of_word = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  std::set<std::string> words;
  auto begin = text.begin();
  while (begin != text.end()) {
    begin = std::find_if(begin, text.end(), is_part_of_word);
    const auto end = std::find_if_not(begin, text.end(), is_part_of_word);
    if (begin != end) words.emplace(begin, end);
    begin = end;
  }
  return words;
}

// The text between backticks.
std::vector<std::string> Code(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '`');
  std::vector<std::string> code;
  for (size_t i = 1; i < parts.size(); i += 2) code.push_back(parts[i]);
  return code;
}

TEST(ComingFromPyTorchTest, ShowsCodeOfThisFile) {
  const std::string guide =
      Read(std::string(kFolder) + "COMING_FROM_PYTORCH.md");
  const std::string own = absl::StrJoin(Lines(Read(kThisFile)), "\n");
  const std::vector<std::string> parts = absl::StrSplit(guide, "```");
  int blocks = 0;
  for (size_t i = 1; i < parts.size(); i += 2) {
    absl::string_view block = parts[i];
    ASSERT_TRUE(absl::ConsumePrefix(&block, "cpp\n")) << block;
    const std::string wanted = absl::StrJoin(Lines(block), "\n");
    EXPECT_TRUE(absl::StrContains(own, wanted)) << wanted;
    ++blocks;
  }
  EXPECT_GE(blocks, 3);
}

TEST(ComingFromPyTorchTest, NamesOnlyWhatExists) {
  std::set<std::string> known = Words(Read(kThisFile));
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() != ".h") continue;
    known.merge(Words(Read(entry.path().string())));
  }
  int names = 0;
  for (const std::string& line :
       Lines(Read(std::string(kFolder) + "COMING_FROM_PYTORCH.md"))) {
    if (!absl::StartsWith(line, "|")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    ASSERT_EQ(cells.size(), 5u) << line;
    for (const std::string& code : Code(cells[2])) {
      for (const std::string& word : Words(code)) {
        EXPECT_TRUE(known.contains(word)) << word << " in: " << line;
        ++names;
      }
    }
  }
  EXPECT_GT(names, 100);
}

class ComingFromPyTorchProgramTest
    : public sherd::testing::ThreadedDistributedTest {
 protected:
  int world_size() const override { return 4; }
};

absl::Status Chunks() {
  // clang-format off
  // spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", …])
  // st = sharded_tensor.rand(spec, 10, 20)
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr rows,
      ChunkShardingSpec::Create(
          0, {"rank:0/cpu", "rank:1/cpu", "rank:2/cpu", "rank:3/cpu"}));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor st, ShardedTensor::Rand(rows, {10, 20}));
  // st.reshard(ChunkShardingSpec(dim=1, placements=["rank:3/cpu", …]))
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr columns,
      ChunkShardingSpec::Create(1, PlacementsOn({3, 1, 0, 2})));
  SHERD_RETURN_IF_ERROR(st.Reshard(columns));
  // st.gather(dst=0, out=whole)
  SHERD_ASSIGN_OR_RETURN(const Tensor whole, st.Gather(/*dst_rank=*/0));
  // clang-format on
  EXPECT_EQ(st.metadata().shards[0].placement, Placement("rank:3/cpu"));
  EXPECT_EQ(whole.defined(), st.rank() == 0);
  return absl::OkStatus();
}

absl::Status Devices() {
  // clang-format off
  // dist.init_process_group("cpu:gloo,cuda:nccl")
  // spec = ChunkShardingSpec(dim=0, placements=["rank:0/cuda:0", …])
  // st = sharded_tensor.ones(spec, 10, 20)
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr on_gpus,
      ChunkShardingSpec::Create(0, {"rank:0/cuda:0", "rank:1/cuda:1",
                                    "rank:2/cuda:2", "rank:3/cuda:3"}));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor st,
                         ShardedTensor::Ones(on_gpus, {10, 20}));
  // st = st.cpu(); st = st.to(torch.device("cuda", rank))
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor on_cpu, st.Cpu());
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor back,
                         on_cpu.To(Device{DeviceType::kCuda, st.rank()}));
  // clang-format on
  EXPECT_THAT(Equal(back, st), IsOkAndHolds(true));
  EXPECT_EQ(st.device(), (Device{DeviceType::kCuda, st.rank()}));
  EXPECT_EQ(on_cpu.metadata().shards[3].placement, Placement("rank:3/cpu"));
  SHERD_ASSIGN_OR_RETURN(const Tensor whole, on_cpu.AllGather());
  SHERD_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Ones({10, 20}));
  EXPECT_TRUE(whole.Equal(ones));
  return absl::OkStatus();
}

absl::Status Meshes(const Tensor& whole) {
  // clang-format off
  // mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
  const DeviceMesh mesh = {.shape = {2, 2}, .placements = PlacementsOnRanks(4)};
  // t = distribute_tensor(whole, mesh, [Shard(0), Replicate()])
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr layout,
      MeshShardingSpec::FromPlacements(
          mesh, {MeshPlacement::Shard(0), MeshPlacement::Replicate()}));
  SHERD_ASSIGN_OR_RETURN(ShardedTensor t, ShardTensor(whole, layout));
  // t = t.redistribute(mesh, [Shard(1), Shard(1)])
  SHERD_ASSIGN_OR_RETURN(
      const ShardingSpecPtr other,
      MeshShardingSpec::FromPlacements(
          mesh, {MeshPlacement::Shard(1), MeshPlacement::Shard(1)}));
  SHERD_RETURN_IF_ERROR(t.Reshard(other));
  // t.full_tensor(); t.to_local()
  SHERD_ASSIGN_OR_RETURN(const Tensor full, t.AllGather());
  SHERD_ASSIGN_OR_RETURN(const Tensor local, t.local_tensor());
  // clang-format on
  EXPECT_TRUE(full.BitwiseEqual(whole));
  EXPECT_EQ(local.sizes()[1], t.rank() == 0 ? 2 : 1);
  return absl::OkStatus();
}

absl::Status Partials(const Tensor& product, const ShardingSpecPtr& rows) {
  // clang-format off
  // p = DTensor.from_local(product, mesh, [Partial()])
  // c = p.redistribute(mesh, [Shard(0)])
  SHERD_ASSIGN_OR_RETURN(const PartialTensor p, PartialTensor::Create(product));
  SHERD_ASSIGN_OR_RETURN(const ShardedTensor c, p.Reshard(rows));
  // clang-format on
  SHERD_ASSIGN_OR_RETURN(const Tensor sum, c.AllGather());
  EXPECT_EQ(sum.At<float>({1, 1}).value(), 4);
  return absl::OkStatus();
}

SHERD_DIST_TEST_F(ComingFromPyTorchProgramTest, Runs) {
  EXPECT_THAT(Chunks(), IsOk());
  if (rank() == 0) FakeDevice::Install(4);
  ASSERT_THAT(group().Barrier(), IsOk());
  EXPECT_THAT(Devices(), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, Tensor::Ones({3, 5}));
  EXPECT_THAT(Meshes(whole), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(
      const ShardingSpecPtr rows,
      ChunkShardingSpec::Create(0, PlacementsOnRanks(4)));
  EXPECT_THAT(Partials(whole, rows), IsOk());
}

}  // namespace
}  // namespace sherd
