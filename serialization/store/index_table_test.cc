#include "sherd/serialization/store/index_table.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/file.h"
#include "sherd/serialization/kits/sample_index.h"
#include "sherd/serialization/safetensors/crc32c.h"
#include "sherd/serialization/wire/little_endian.h"
#include "sherd/testing/matchers.h"

namespace sherd {
namespace {

using sherd::testing::IsOkAndHolds;
using sherd::testing::StatusIs;

constexpr char kGolden[] =
    "serialization/testdata/v1/index-00000000000000000005.sherd";

TEST(IndexTableTest, TheGoldenFileIsWhatThisBuildWritesAndReads) {
  SHERD_ASSERT_OK_AND_ASSIGN(
      const std::string golden,
      ReadFile(FileSystem::Posix(), kGolden, kMaxIndexBytes));
  EXPECT_EQ(EncodeIndexTable(SampleIndex()), golden);
  EXPECT_THAT(DecodeIndexTable(golden, "golden"), IsOkAndHolds(SampleIndex()));
}

TEST(IndexTableTest, EveryChangedOrMissingByteIsRefused) {
  const std::string good = EncodeIndexTable(SampleIndex());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_FALSE(DecodeIndexTable(bad, "x").ok()) << i;
    EXPECT_THAT(DecodeIndexTable(good.substr(0, i), "x"),
                StatusIs(absl::StatusCode::kDataLoss, "x is damaged"));
  }
  EXPECT_THAT(DecodeIndexTable(good + "\n", "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

// With a correct CRC.
TEST(IndexTableTest, EveryContradictionIsRefused) {
  const std::string good = EncodeIndexTable(SampleIndex());
  const std::string body = good.substr(0, good.size() - 16);
  struct Row {
    const char* from;
    const char* to;
  };
  for (const Row& row : {
           Row{"index 1\n", "index 0\n"},
           Row{"index 1\n", "index 01\n"},
           Row{"number 5", "number 0"},
           Row{"number 5", "number 4"},
           Row{"number 5", "number 6"},
           Row{"number 5", "number 05"},
           Row{"number 5\n", ""},
           Row{"number 5", "number 5\nnumber 5"},
           Row{"number 5", "number 18446744073709551616"},
           Row{"operation 0000000000000002\n", ""},
           Row{"operation 0000000000000002", "operation 2"},
           Row{"operation ffff", "operation FFFF"},
           Row{"operation ffff", "operation +fff"},
           Row{"name lease.sherd ", "name ../lease.sherd "},
           Row{"name lease.sherd ", "name lease.sherd  "},
           Row{"name lease.sherd ", "name lease.sherd-"},
           Row{"name lease.sherd ", "name z.sherd "},
           Row{"name lease.sherd ", "name manifest.sherd "},
           Row{"name lease.sherd ", "name index-00000000000000000005.sherd "},
           Row{"lease.sherd.18c251e97a0589a9.tmp-00000000000004d2",
               "index-00000000000000000005.sherd"},
           Row{"lease.sherd.18c251e97a0589a9.tmp-00000000000004d2",
               "manifest.sherd.18c251e97a0589a8.tmp-a1b2c3d4e5f60718"},
           Row{"lease.sherd.18c251e97a0589a9.tmp-00000000000004d2",
               "manifest.sherd.18c251e97a0589a6.tmp-2122232425262728"},
           Row{"removed ", "Removed "},
           Row{"removed ", "removed /"},
           Row{"removed manifest.sherd.18c251e97a0589a6.tmp-2122232425262728",
               "removed index-00000000000000000001.sherd"},
           Row{"removed ", "\nremoved "},
       }) {
    const std::string bad = absl::StrReplaceAll(body, {{row.from, row.to}});
    ASSERT_NE(bad, body) << row.from;
    EXPECT_THAT(
        DecodeIndexTable(
            bad + absl::StrFormat("crc32c %08x\n", Crc32c(AsBytes(bad))), "x"),
        StatusIs(absl::StatusCode::kDataLoss, "x is damaged"))
        << row.from << " -> " << row.to;
  }
  EXPECT_THAT(DecodeIndexTable(
                  absl::StrReplaceAll(good, {{"index 1", "index 2"}}), "x"),
              StatusIs(absl::StatusCode::kUnimplemented,
                       "x has version 2, but this build knows versions up to "
                       "1"));
  EXPECT_THAT(DecodeIndexTable(std::string(kMaxIndexBytes + 1, 'x'), "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(IndexTableTest, RemembersTheLastOperations) {
  IndexTable table = SampleIndex();
  EXPECT_EQ(table.NonceOf(5), 0xfedcba9876543210);
  EXPECT_EQ(table.NonceOf(1), 0x0123456789abcdef);
  EXPECT_EQ(table.NonceOf(0), std::nullopt);
  EXPECT_EQ(table.NonceOf(6), std::nullopt);
  table.number = 100;
  table.nonces.resize(kIndexHistory, 7);
  EXPECT_EQ(table.NonceOf(100 - kIndexHistory), std::nullopt);
  EXPECT_EQ(table.NonceOf(100 - kIndexHistory + 1), 0x0123456789abcdef);
  EXPECT_THAT(DecodeIndexTable(EncodeIndexTable(table), "x"),
              IsOkAndHolds(table));
}

TEST(IndexTableTest, NamesOfItsObjectsAreInTheOrderOfNumbers) {
  EXPECT_EQ(IndexObjectName(5), "index-00000000000000000005.sherd");
  EXPECT_LT(IndexObjectName(99), IndexObjectName(100));
  EXPECT_EQ(NumberOfIndexObject(IndexObjectName(UINT64_MAX)), UINT64_MAX);
  for (const char* name :
       {"index-5.sherd", "index-00000000000000000005.tmp",
        "index-0000000000000000000x.sherd", "index-99999999999999999999.sherd",
        "xindex-00000000000000000005.sherd", ""}) {
    EXPECT_EQ(NumberOfIndexObject(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace sherd
