#include "sherd/serialization/archive.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/core/sharding/sharded_tensor.h"
#include "sherd/core/sharding/sharding_spec.h"
#include "sherd/core/sharding/state_dict.h"
#include "sherd/core/tensor/device_runtime.h"
#include "sherd/core/tensor/dtype.h"
#include "sherd/core/tensor/tensor.h"
#include "sherd/serialization/archive/archive_reader.h"
#include "sherd/serialization/archive/block_plan.h"
#include "sherd/serialization/checkpoint_files.h"
#include "sherd/serialization/kits/forwarding_files.h"
#include "sherd/serialization/kits/sample_archive.h"
#include "sherd/testing/faults.h"
#include "sherd/testing/kits/fake_device.h"
#include "sherd/testing/matchers.h"
#include "sherd/testing/tensor_matchers.h"

namespace sherd {
namespace {

using ::sherd::testing::FailFileOperation;
using ::sherd::testing::FakeDevice;
using ::sherd::testing::IsOk;
using ::sherd::testing::IsOkAndHolds;
using ::sherd::testing::StatusIs;

constexpr absl::StatusCode kDataLoss = absl::StatusCode::kDataLoss;
constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr Device kCuda = {DeviceType::kCuda, 0};

std::string TestFolder() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder =
      JoinPath(::testing::TempDir(),
               absl::StrCat("archive_",
                            absl::StrReplaceAll(info->name(), {{"/", "_"}})));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  return FileSystem::Posix().List(folder).value();
}

std::string Contents(const std::string& path) {
  return ReadFile(FileSystem::Posix(), path, 1 << 30).value();
}

StateDict StateOf(const std::vector<StateEntry>& entries) {
  return StateDict::Unflatten(entries).value();
}

// What a load of a save gives.
absl::StatusOr<StateDict> SavedAndLoaded(
    const StateDict& state, const ArchiveLoadOptions& options = {}) {
  SHERD_ASSIGN_OR_RETURN(const std::string bytes, SaveToString(state));
  return LoadFromString(bytes, options);
}

bool ShareStorage(const StateDict& state, absl::string_view a,
                  absl::string_view b) {
  return state.Get<Tensor>(a)->storage() == state.Get<Tensor>(b)->storage();
}

// Counts what is read.
class CountingSource final : public ArchiveSource {
 public:
  explicit CountingSource(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<int64_t> Size() override {
    return static_cast<int64_t>(bytes_.size());
  }
  absl::Status ReadAt(int64_t offset, absl::Span<std::byte> buffer) override {
    read_ += static_cast<int64_t>(buffer.size());
    std::memcpy(buffer.data(), bytes_.data() + offset, buffer.size());
    return status_;
  }
  std::string name() const override { return "the test's source"; }

  void FailWith(absl::Status status) { status_ = std::move(status); }
  int64_t TakeRead() { return std::exchange(read_, 0); }

 private:
  const std::string bytes_;
  absl::Status status_;
  int64_t read_ = 0;
};

TEST(ArchiveTest, AStateIsLoadedAsItWasSaved) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, SavedAndLoaded(state));
  EXPECT_EQ(loaded.Difference(state), "");
  SHERD_ASSERT_OK_AND_ASSIGN(const ShardedTensor sharded,
                             loaded.Get<ShardedTensor>("model.sharded"));
  EXPECT_EQ(*sharded.spec(),
            *state.Get<ShardedTensor>("model.sharded")->spec());
  EXPECT_EQ(sharded.group(), nullptr);
}

TEST(ArchiveTest, EqualStatesGiveEqualBytes) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                             SaveToString(*SampleState()));
  EXPECT_THAT(SaveToString(*SampleState()), IsOkAndHolds(bytes));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
  EXPECT_THAT(SaveToString(loaded), IsOkAndHolds(bytes));
}

TEST(ArchiveTest, AnEmptyStateIsOneToo) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             SavedAndLoaded(StateDict()));
  EXPECT_TRUE(loaded.empty());
}

TEST(ArchiveTest, FloatsKeepTheirBits) {
  const uint64_t cases[] = {0x7ff0000000000001, 0xfff8000000000123,
                            0x8000000000000000, 0x7ff0000000000000, 1};
  for (const uint64_t bits : cases) {
    StateDict state;
    ASSERT_THAT(state.Set("x", std::bit_cast<double>(bits)), IsOk());
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, SavedAndLoaded(state));
    EXPECT_EQ(std::bit_cast<uint64_t>(loaded.Get<double>("x").value()), bits);
  }
}

TEST(ArchiveTest, TreesAreAsDeepAsStatesAre) {
  std::string name = "a";
  for (int i = 1; i < StateDict::kMaxDepth; ++i) {
    name += i % 2 == 0 ? ".b" : "[0]";
  }
  StateDict state;
  ASSERT_THAT(state.Set(name, StateList()), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, SavedAndLoaded(state));
  EXPECT_EQ(loaded.Difference(state), "");
}

// Every dtype in every arrangement of elements, pinned and not, here and on a
// device.
TEST(ArchiveTest, TensorsKeepDTypeStridesPinningAndDevice) {
  FakeDevice& devices = FakeDevice::Install(1);
  SHERD_ASSERT_OK_AND_ASSIGN(DeviceRuntime* const runtime,
                             DeviceRuntime::For(DeviceType::kCuda));
  const std::vector<std::pair<std::string, TensorOptions>> places = {
      {"host", {}},
      {"pinned", {.allocator = runtime->PinnedMemory()}},
      {"device", {.device = kCuda}}};
  const std::vector<std::pair<std::string, std::vector<int64_t>>> orders = {
      {"contiguous", {0, 1, 2, 3}},
      {"channels_last", {0, 3, 1, 2}},
      {"preserve", {2, 0, 3, 1}}};
  for (int d = 0; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    SHERD_ASSERT_OK_AND_ASSIGN(const Tensor values,
                               CountingTensor({2, 3, 4, 5}, dtype));
    StateDict state;
    for (const auto& [place, options] : places) {
      TensorOptions of_dtype = options;
      of_dtype.dtype = dtype;
      for (const auto& [order, dims] : orders) {
        SHERD_ASSERT_OK_AND_ASSIGN(Tensor tensor,
                                   Tensor::Empty(values.sizes(), of_dtype));
        ASSERT_THAT(tensor.CopyFrom(values), IsOk());
        ASSERT_THAT(
            state.Set(absl::StrCat(place, ".", order), *tensor.Permute(dims)),
            IsOk());
      }
    }
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, SavedAndLoaded(state));
    EXPECT_EQ(loaded.Difference(state), "");
    for (const StateEntry& entry : state.Flatten()) {
      SCOPED_TRACE(absl::StrCat(Name(dtype), " ", entry.name));
      const Tensor before = *entry.value.get_if<Tensor>();
      const Tensor after = *loaded.Get<Tensor>(entry.name);
      EXPECT_EQ(after.strides(), before.strides());
      EXPECT_EQ(after.device(), before.device());
      EXPECT_TRUE(after.writable());
      EXPECT_EQ(runtime->Locate(after.data()).value(),
                runtime->Locate(before.data()).value());
    }
  }
  devices.RunAll();
}

TEST(ArchiveTest, LargeTensorsAreReadFromAndToDevicesInPieces) {
  FakeDevice::Install(1);
  // Pieces of the copies and chunks of the archive do not end together.
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor values,
                             CountingTensor({9'000'001}, kUInt8));
  StateDict state;
  ASSERT_THAT(state.Set("x", *values.To(kCuda)), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(std::string bytes, SaveToString(state));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
  EXPECT_TRUE(loaded.Get<Tensor>("x")->BitwiseEqual(values));
  bytes[8'000'000] ^= 1;
  EXPECT_THAT(LoadFromString(bytes), StatusIs(kDataLoss, "\"x\": the chunk"));
}

TEST(ArchiveTest, TensorsGoToTheDeviceThatIsAskedFor) {
  FakeDevice::Install(1);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             SavedAndLoaded(state, {.device = kCuda}));
  EXPECT_EQ(loaded.Difference(state), "");
  EXPECT_EQ(loaded.Get<Tensor>("model.weight")->device(), kCuda);
  EXPECT_EQ(loaded.Get<Tensor>("model.empty")->device(), kCuda);
  EXPECT_TRUE(loaded.Get<Tensor>("model.meta")->device().is_meta());
  const ShardedTensor sharded = *loaded.Get<ShardedTensor>("model.sharded");
  EXPECT_TRUE(sharded.device().is_cpu());
  EXPECT_THAT(SavedAndLoaded(state, {.device = Device("gpu")}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "gpu"));
}

TEST(ArchiveTest, SharedElementsStayShared) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             SavedAndLoaded(*SampleState()));
  EXPECT_TRUE(ShareStorage(loaded, "model.weight", "model.tied"));
  EXPECT_TRUE(ShareStorage(loaded, "model.weight", "model.rows"));
  EXPECT_FALSE(ShareStorage(loaded, "model.weight", "model.image"));
  Tensor rows = *loaded.Get<Tensor>("model.rows");
  ASSERT_THAT(rows.Fill(9), IsOk());
  EXPECT_EQ(loaded.Get<Tensor>("model.weight")->At<float>({1, 0}).value(), 9);
  EXPECT_NE(loaded.Get<Tensor>("model.weight")->At<float>({0, 0}).value(), 9);
  // A storage has no more than its tensors.
  EXPECT_EQ(rows.storage()->size(), 4 * 6 * 4);
}

TEST(ArchiveTest, ViewsOfPartsTakeThePlaceOfTheirPart) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, CountingTensor({1000, 1000}));
  const std::vector<std::pair<const char*, Tensor>> views = {
      {"rows", *whole.Narrow(0, 10, 2)},
      {"column", *whole.Select(1, 900)},
      {"scalar", *whole.Narrow({500, 500}, {1, 1})}};
  StateDict state;
  for (const auto& [name, view] : views) {
    ASSERT_THAT(state.Set(name, view), IsOk());
  }
  // The column is among the elements of the others.
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string all, SaveToString(state));
  EXPECT_LT(all.size(), 4'100'000);
  for (const auto& [name, view] : views) {
    const StateDict alone = StateOf({{name, view}});
    SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(alone));
    EXPECT_LT(bytes.size(), 4096 + 2 * 4000 + 200) << name;
    SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
    EXPECT_EQ(loaded.Difference(alone), "");
    EXPECT_TRUE(loaded.Get<Tensor>(name)->is_contiguous());
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(all));
  EXPECT_EQ(loaded.Difference(state), "");
}

// An expanded scalar is as small in the archive as in memory.
TEST(ArchiveTest, ElementsThatCoincideAreSavedOnce) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor scalar, Tensor::Scalar(3.0f));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor expanded,
      Tensor::FromStorageStrided(scalar.storage(), 0, {1 << 20, 1 << 20},
                                 {0, 0}, kFloat32));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes,
                             SaveToString(StateOf({{"x", expanded}})));
  EXPECT_LT(bytes.size(), 1000);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
  const Tensor after = *loaded.Get<Tensor>("x");
  EXPECT_EQ(after.sizes(), expanded.sizes());
  EXPECT_EQ(after.strides(), expanded.strides());
  EXPECT_EQ(after.At<float>({12, 99}).value(), 3);
}

// As shards of a group are, so that a load copies nothing.
TEST(ArchiveTest, AViewApartHasItsElementsInTheArchiveOnce) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor scalar, Tensor::Scalar(3.0f));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor expanded,
      Tensor::FromStorageStrided(scalar.storage(), 0, {4, 5}, {0, 0},
                                 kFloat32));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor whole, CountingTensor({5, 4}));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor turned, whole.Permute({1, 0}));
  for (const Tensor& shard : {expanded, turned}) {
    SHERD_ASSERT_OK_AND_ASSIGN(
        const internal::BlockPlan plan,
        internal::PlanBlocks({shard, whole, shard}, {0}));
    EXPECT_NE(plan.places[0].block, plan.places[2].block);
    EXPECT_EQ(plan.places[0].strides, ContiguousStrides({4, 5}));
    EXPECT_EQ(plan.blocks[plan.places[0].block].nbytes(), 4 * 5 * 4);
  }
}

// Floats behind an odd byte: their place in the archive is aligned as that in
// the storage.
TEST(ArchiveTest, ViewsOfOtherDTypesShareABlock) {
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor bytes, CountingTensor({64}, kUInt8));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor odd, bytes.Narrow(0, 13, 20));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor floats,
      Tensor::FromStorageStrided(bytes.storage(), 16, {1 << 20, 1 << 20},
                                 {0, 0}, kFloat32));
  const StateDict state = StateOf({{"odd", odd}, {"floats", floats}});
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string archive, SaveToString(state));
  EXPECT_LT(archive.size(), 1000);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(archive));
  EXPECT_TRUE(loaded.Get<Tensor>("odd")->BitwiseEqual(odd));
  EXPECT_EQ(loaded.Get<Tensor>("floats")->strides(), floats.strides());
  EXPECT_EQ(loaded.Get<Tensor>("floats")->At<float>({3, 5}).value(),
            floats.At<float>({3, 5}).value());
  EXPECT_TRUE(ShareStorage(loaded, "odd", "floats"));
  // From the aligned byte before the first to the last.
  EXPECT_EQ(loaded.Get<Tensor>("odd")->storage()->size(), 21);
}

// In memory that others own, at an odd address.
TEST(ArchiveTest, ViewsThatCannotShareABlockHaveTheirOwn) {
  SHERD_ASSERT_OK_AND_ASSIGN(Tensor whole, CountingTensor({64}, kUInt8));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::shared_ptr<Storage> storage,
      Storage::Borrow(static_cast<std::byte*>(whole.data()) + 1, 63,
                      whole.storage()));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor bytes,
                             Tensor::FromStorage(storage, 0, {63}, kUInt8));
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor odd, bytes.Narrow(0, 0, 20));
  SHERD_ASSERT_OK_AND_ASSIGN(
      const Tensor floats,
      Tensor::FromStorage(bytes.storage(), 3, {4}, kFloat32));
  const StateDict state = StateOf({{"odd", odd}, {"floats", floats}});
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, SavedAndLoaded(state));
  EXPECT_EQ(loaded.Difference(state), "");
  EXPECT_FALSE(ShareStorage(loaded, "odd", "floats"));
}

TEST(ArchiveTest, LargeTensorsBeginAtPagesAndSmallOnesAtCacheLines) {
  const std::string path = JoinPath(TestFolder(), "state");
  ASSERT_THAT(Save(*SampleState(), path), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, Load(path, {.map = true}));
  const auto address = [&](absl::string_view name) {
    return reinterpret_cast<uintptr_t>(loaded.Get<Tensor>(name)->data());
  };
  EXPECT_EQ(address("model.large") % 4096, 0);
  EXPECT_EQ(address("model.weight") % 64, 0);
  EXPECT_EQ(address("model.image") % 64, 0);
}

// Large tensors come first, whatever the order of the tree.
TEST(ArchiveTest, SmallTensorsBetweenLargeOnesCostNoPages) {
  StateDict state;
  for (int i = 0; i < 10; ++i) {
    ASSERT_THAT(state.Set(absl::StrCat("bias", i), *CountingTensor({3})),
                IsOk());
    ASSERT_THAT(state.Set(absl::StrCat("weight", i), *CountingTensor({1024})),
                IsOk());
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
  EXPECT_LT(bytes.size(), 12 * 4096);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, LoadFromString(bytes));
  EXPECT_EQ(loaded.Difference(state), "");
}

TEST(ArchiveTest, AMappedStateIsAReadOnlyViewOfTheFile) {
  const std::string path = JoinPath(TestFolder(), "state");
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  ASSERT_THAT(Save(state, path), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded, Load(path, {.map = true}));
  EXPECT_EQ(loaded.Difference(state), "");
  EXPECT_FALSE(loaded.Get<Tensor>("model.weight")->writable());
  EXPECT_TRUE(ShareStorage(loaded, "model.weight", "model.large"));
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string bytes, SaveToString(state));
  EXPECT_THAT(LoadFromString(bytes, {.map = true}),
              StatusIs(kInvalid, "only a file can be mapped"));
}

// Between the reading of the tree and the mapping.
TEST(ArchiveTest, AFileThatWasReplacedIsNotMapped) {
  const std::string path = JoinPath(TestFolder(), "state");
  const StateDict state = StateOf({{"x", *Tensor::Scalar(1.0)}});
  const StateDict other = StateOf({{"x", *Tensor::Scalar(2.0)}});
  SHERD_ASSERT_OK_AND_ASSIGN(
      internal::ArchiveReader reader,
      internal::ArchiveReader::Open(
          std::make_shared<CountingSource>(*SaveToString(state))));
  ASSERT_THAT(reader.ReadTable(), IsOk());
  ASSERT_THAT(Save(state, path), IsOk());
  EXPECT_THAT(reader.Map(path), IsOk());
  ASSERT_THAT(Save(other, path), IsOk());
  EXPECT_THAT(reader.Map(path),
              StatusIs(kDataLoss, "another file has replaced it"));
}

TEST(ArchiveTest, AnOpenArchiveListsWhatItHas) {
  const std::string path = JoinPath(TestFolder(), "state");
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  ASSERT_THAT(Save(state, path), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Archive archive, Archive::Open(path));
  const StateDict& contents = archive.contents();
  ASSERT_EQ(contents.Flatten().size(), state.Flatten().size());
  EXPECT_EQ(contents.Get<double>("groups[0].lr").value(), 0.125);
  const Tensor weight = *contents.Get<Tensor>("model.weight");
  EXPECT_TRUE(weight.device().is_meta());
  EXPECT_EQ(FormatDims(weight.sizes()), "[4, 6]");
  const ShardedTensor sharded = *contents.Get<ShardedTensor>("model.sharded");
  EXPECT_EQ(sharded.metadata(),
            state.Get<ShardedTensor>("model.sharded")->metadata());
  EXPECT_TRUE(sharded.local_shards().empty());
}

TEST(ArchiveTest, AnOpenArchiveLoadsValuesByName) {
  const std::string path = JoinPath(TestFolder(), "state");
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  ASSERT_THAT(Save(state, path), IsOk());
  SHERD_ASSERT_OK_AND_ASSIGN(const Archive archive, Archive::Open(path));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict all, archive.Load());
  EXPECT_EQ(all.Difference(state), "");
  for (const char* name : {"model", "groups", "groups[0]", "model.sharded",
                           "model.tied", "groups[3][0]", "none", "random"}) {
    SCOPED_TRACE(name);
    SHERD_ASSERT_OK_AND_ASSIGN(const StateValue value, archive.Load(name));
    const StateDict expected = StateOf({{"x", **state.Find(name)}});
    EXPECT_EQ(StateOf({{"x", value}}).Difference(expected), "");
  }
  EXPECT_THAT(archive.Load("model.bias"),
              StatusIs(absl::StatusCode::kNotFound, path));
  EXPECT_THAT(archive.Load("groups[4]"),
              StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(ArchiveTest, AValueByNameIsAllThatIsRead) {
  const StateDict state = StateOf({{"a", *CountingTensor({1'000'000})},
                                   {"b", *CountingTensor({100'000})},
                                   {"c", *CountingTensor({10})}});
  auto source = std::make_shared<CountingSource>(*SaveToString(state));
  SHERD_ASSERT_OK_AND_ASSIGN(const Archive archive, Archive::Open(source));
  EXPECT_LT(source->TakeRead(), 1000);
  EXPECT_THAT(archive.Load("b"), IsOk());
  EXPECT_LT(source->TakeRead(), 400'000 + 4096);
  EXPECT_THAT(archive.Load("c"), IsOk());
  EXPECT_LT(source->TakeRead(), 4096);
  source->FailWith(absl::UnavailableError("the network is down"));
  EXPECT_THAT(archive.Load("c"),
              StatusIs(absl::StatusCode::kUnavailable,
                       "loading the test's source: \"c\": the network"));
}

// Remembers the largest piece.
class PieceSink final : public ArchiveSink {
 public:
  absl::Status Append(absl::Span<const std::byte> bytes) override {
    largest_ = std::max(largest_, bytes.size());
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (bytes_.size() > fail_after_) return absl::AbortedError("sink is full");
    return absl::OkStatus();
  }
  size_t largest_ = 0;
  size_t fail_after_ = std::numeric_limits<size_t>::max();
  std::string bytes_;
};

TEST(ArchiveTest, ASinkGetsPiecesInOrder) {
  FakeDevice::Install(1);
  SHERD_ASSERT_OK_AND_ASSIGN(const Tensor large, CountingTensor({3'000'000}));
  const StateDict state = StateOf(
      {{"host", large},
       {"strided",
        *large.Clone()->Reshape({2, 3, 500'000})->Narrow(2, 1, 400'000)},
       {"device", *large.To(kCuda)}});
  PieceSink sink;
  ASSERT_THAT(Save(state, sink), IsOk());
  EXPECT_LE(sink.largest_, 262'144);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             LoadFromString(sink.bytes_));
  EXPECT_EQ(loaded.Difference(state), "");
  PieceSink full;
  full.fail_after_ = 1'000'000;
  EXPECT_THAT(Save(state, full),
              StatusIs(absl::StatusCode::kAborted, "sink is full"));
  EXPECT_LE(full.bytes_.size(), 1'000'000 + 262'144);
}

TEST(ArchiveTest, WhatCannotBeSavedIsNamed) {
  StateDict state = *SampleState();
  ASSERT_THAT(state.Set("groups[3][1].x", Tensor()), IsOk());
  EXPECT_THAT(SaveToString(state),
              StatusIs(kInvalid, "\"groups[3][1].x\": expected a tensor"));
  ASSERT_THAT(state.Set("groups[3][1].x", ShardedTensor()), IsOk());
  EXPECT_THAT(SaveToString(state),
              StatusIs(kInvalid, "\"groups[3][1].x\": expected a sharded"));
}

TEST(ArchiveTest, AMissingFileIsNotFoundAndANonFileIsRefused) {
  const std::string folder = TestFolder();
  EXPECT_THAT(Load(JoinPath(folder, "none")),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Load(folder), StatusIs(kInvalid));
  EXPECT_THAT(Save(StateDict(), JoinPath(folder, "no/folder/x")),
              StatusIs(absl::StatusCode::kNotFound, "saving"));
}

// Crash safety: whatever fails, the file has its former contents or the new
// ones, and nothing else is left.
TEST(ArchiveTest, AFailedSaveLeavesTheFormerFile) {
  const std::string folder = TestFolder();
  const std::string path = JoinPath(folder, "state");
  const StateDict before = StateOf({{"x", 1}});
  ASSERT_THAT(Save(before, path), IsOk());
  const std::string former = Contents(path);
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict after, SampleState());
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string complete, SaveToString(after));
  // Whether the operation failed; the file is the former one again then.
  const auto fails = [&](absl::string_view operation, int64_t nth) {
    absl::Status status;
    bool happened = false;
    {
      const FailFileOperation fault(operation, absl::StrCat(folder, "*"),
                                    absl::ResourceExhaustedError("injected"),
                                    {.nth = nth, .optional = true});
      status = Save(after, path);
      happened = fault.happened();
    }
    EXPECT_EQ(status.ok(), !happened) << status;
    EXPECT_THAT(NamesIn(folder), ::testing::ElementsAre("state"));
    const bool replaced = !happened || operation == "sync_directory";
    EXPECT_EQ(Contents(path), replaced ? complete : former);
    if (replaced) {
      EXPECT_THAT(Save(before, path), IsOk());
    }
    return happened;
  };
  for (const char* operation : {"create", "reserve", "write", "sync", "close",
                                "rename", "sync_directory"}) {
    SCOPED_TRACE(operation);
    int64_t failures = 0;
    while (fails(operation, failures + 1)) ++failures;
    EXPECT_GT(failures, 0);
  }
}

TEST(ArchiveTest, APathMayLeadToAnObjectStore) {
  const std::string store =
      absl::StrCat("objects:", JoinPath(TestFolder(), "store"));
  for (const char* name : {"state", "state.sherd"}) {
    SCOPED_TRACE(name);
    const std::string path = JoinPath(store, name);
    EXPECT_THAT(Load(path), StatusIs(absl::StatusCode::kNotFound));
    for (const int64_t value : {1, 2}) {
      const StateDict state = StateOf({{"a", value}});
      ASSERT_THAT(Save(state, path), IsOk());
      EXPECT_EQ(*SaveToString(*Load(path)), *SaveToString(state));
    }
    {
      const FailFileOperation full("write", absl::StrCat(path, "*"),
                                   absl::ResourceExhaustedError("disk full"));
      EXPECT_THAT(Save(StateOf({{"a", int64_t{3}}}), path),
                  StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
    }
    EXPECT_EQ(*SaveToString(*Load(path)),
              *SaveToString(StateOf({{"a", int64_t{2}}})));
    EXPECT_THAT(Load(path, {.map = true}), StatusIs(kInvalid, "scheme"));
  }
  EXPECT_THAT(CheckpointFiles().List(store),
              IsOkAndHolds(::testing::ElementsAre("state", "state.sherd")));
}

// A folder of the machine's files, in which schemes mean nothing.
class FilesIn final : public ForwardingFiles {
 public:
  explicit FilesIn(std::string folder) : folder_(std::move(folder)) {}

  absl::StatusOr<std::unique_ptr<File>> OpenForRead(
      const std::string& path) override {
    return Posix().OpenForRead(JoinPath(folder_, path));
  }
  absl::StatusOr<std::unique_ptr<File>> Create(
      const std::string& path) override {
    return Posix().Create(JoinPath(folder_, path));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Posix().Rename(JoinPath(folder_, from), JoinPath(folder_, to));
  }
  absl::Status Remove(const std::string& path) override {
    return Posix().Remove(JoinPath(folder_, path));
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return Posix().SyncDirectory(JoinPath(folder_, path));
  }

 private:
  const std::string folder_;
};

TEST(ArchiveTest, SchemesAreNotThoseOfAnotherFileSystem) {
  const std::string folder = TestFolder();
  FilesIn files(folder);
  const char path[] = "objects:state";
  const StateDict first = StateOf({{"a", int64_t{1}}});
  ASSERT_THAT(Save(first, path, {.files = &files}), IsOk());
  {
    const FailFileOperation full("write", JoinPath(folder, "*"),
                                 absl::ResourceExhaustedError("disk full"));
    EXPECT_THAT(Save(StateOf({{"a", int64_t{2}}}), path, {.files = &files}),
                StatusIs(absl::StatusCode::kResourceExhausted, "disk full"));
  }
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             Load(path, {.files = &files}));
  EXPECT_EQ(*SaveToString(loaded), *SaveToString(first));
  EXPECT_THAT(FileSystem::Posix().List(folder),
              IsOkAndHolds(::testing::ElementsAre("objects:state")));
}

TEST(ArchiveTest, OfAWrappedStoreOnlyNamesThatCanBeRenamedToAreTaken) {
  ForwardingFiles files(CheckpointFiles());
  const std::string store =
      absl::StrCat("objects:", JoinPath(TestFolder(), "store"));
  const StateDict state = StateOf({{"a", int64_t{1}}});
  EXPECT_THAT(Save(state, JoinPath(store, "state"), {.files = &files}),
              StatusIs(kInvalid, ".sherd"));
  EXPECT_THAT(files.List(store), IsOkAndHolds(::testing::IsEmpty()));
  const std::string path = JoinPath(store, "state.sherd");
  ASSERT_THAT(Save(state, path, {.files = &files}), IsOk());
  EXPECT_EQ(*SaveToString(*Load(path, {.files = &files})),
            *SaveToString(state));
  EXPECT_THAT(files.List(store),
              IsOkAndHolds(::testing::ElementsAre("state.sherd")));
}

TEST(ArchiveTest, ASaveWithoutSyncDoesNotWaitForTheDisk) {
  const std::string path = JoinPath(TestFolder(), "state");
  FailFileOperation sync("sync*", "*", absl::DataLossError("x"),
                         {.optional = true});
  ASSERT_THAT(Save(*SampleState(), path, {.sync = false}), IsOk());
  EXPECT_FALSE(sync.happened());
  EXPECT_THAT(Load(path), IsOk());
}

// With two blocks, zeros before them, and a table.
std::string SmallArchive() {
  return SaveToString(StateOf({{"step", 7},
                               {"weight", *CountingTensor({2, 3})},
                               {"mask", *CountingTensor({5}, kBool)}}))
      .value();
}

TEST(ArchiveTest, EachFlippedBitIsFound) {
  std::string bytes = SmallArchive();
  for (size_t i = 0; i < bytes.size() * 8; ++i) {
    const char bit = static_cast<char>(1 << (i % 8));
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ bit);
    const absl::Status status = LoadFromString(bytes).status();
    // The version is read before the CRC is known.
    const bool in_version = i / 8 >= 8 && i / 8 < 12;
    ASSERT_THAT(status, StatusIs(in_version ? absl::StatusCode::kUnimplemented
                                            : kDataLoss))
        << "bit " << i;
    bytes[i / 8] = static_cast<char>(bytes[i / 8] ^ bit);
  }
  EXPECT_THAT(LoadFromString(bytes), IsOk());
}

TEST(ArchiveTest, EachTruncationAndEachAdditionIsFound) {
  const std::string good = SmallArchive();
  for (size_t length = 0; length < good.size(); ++length) {
    ASSERT_THAT(LoadFromString(good.substr(0, length)), StatusIs(kDataLoss))
        << length;
  }
  EXPECT_THAT(LoadFromString(good + '\0'), StatusIs(kDataLoss, "it has"));
}

TEST(ArchiveTest, DamageIsNamedWithItsPlace) {
  SHERD_ASSERT_OK_AND_ASSIGN(const std::string good,
                             SaveToString(*SampleState()));
  const auto load = [&](size_t at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    return LoadFromString(bytes);
  };
  EXPECT_THAT(load(0), StatusIs(kDataLoss, "not an archive of Sherd"));
  EXPECT_THAT(load(8),
              StatusIs(absl::StatusCode::kUnimplemented, "version 17"));
  EXPECT_THAT(load(12), StatusIs(kDataLoss, "the message of"));
  EXPECT_THAT(load(30), StatusIs(kDataLoss, "the message of"));
  // The large tensor is the first; it begins at 4096.
  EXPECT_THAT(load(4095), StatusIs(kDataLoss, "at offset 4095 is not 0"));
  EXPECT_THAT(load(4096),
              StatusIs(kDataLoss,
                       "loading the bytes: \"model.large\": the chunk of "
                       "5000 bytes at offset 4096 is damaged"));
  EXPECT_THAT(load(good.size() - 5), StatusIs(kDataLoss, "the table of CRCs"));
  EXPECT_THAT(load(good.size() - 1), StatusIs(kDataLoss, "the table of CRCs"));
}

TEST(ArchiveTest, VerifyFindsDamageThatAMappedLoadDoesNot) {
  const std::string path = JoinPath(TestFolder(), "state");
  SHERD_ASSERT_OK_AND_ASSIGN(std::string bytes, SaveToString(*SampleState()));
  const auto write = [&] {
    std::ofstream(path, std::ios::binary) << bytes;
    return Archive::Open(path, {.map = true});
  };
  EXPECT_THAT(write()->Verify(), IsOk());
  bytes[5000] ^= 1;
  SHERD_ASSERT_OK_AND_ASSIGN(const Archive damaged, write());
  EXPECT_THAT(damaged.Load(), IsOk());
  // A long path is shortened, but for its end.
  EXPECT_THAT(damaged.Verify(), StatusIs(kDataLoss, "/state\": the chunk"));
}

// Every later build reads what version 1 wrote.
TEST(ArchiveTest, Version1IsRead) {
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict loaded,
                             Load("serialization/testdata/v1/archive.sherd"));
  SHERD_ASSERT_OK_AND_ASSIGN(const StateDict state, SampleState());
  EXPECT_EQ(loaded.Difference(state), "");
}

}  // namespace
}  // namespace sherd
