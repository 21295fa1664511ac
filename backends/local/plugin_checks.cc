#include "sherd/backends/local/plugin_checks.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace sherd::testing {
namespace {

// Element `i` of rank `rank`'s data; differs for all ranks and near elements.
int32_t Element(int rank, uint64_t i) {
  return static_cast<int32_t>(rank * 1000003 + i * 7 + i / 251);
}

std::vector<int32_t> Data(int rank, uint64_t count, uint64_t first = 0) {
  std::vector<int32_t> data(count);
  for (uint64_t i = 0; i < count; ++i) data[i] = Element(rank, first + i);
  return data;
}

std::vector<int32_t> Sum(int size, uint64_t count, uint64_t first = 0) {
  std::vector<int32_t> sum(count);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t value = 0;
    for (int r = 0; r < size; ++r) {
      value += static_cast<uint32_t>(Element(r, first + i));
    }
    sum[i] = static_cast<int32_t>(value);
  }
  return sum;
}

std::vector<uint64_t> Counts(uint64_t max_bytes) {
  std::vector<uint64_t> counts = {1, 2, 17};
  for (uint64_t bytes = 4096; bytes <= max_bytes; bytes *= 8) {
    counts.push_back(bytes / 4 - 1);
    counts.push_back(bytes / 4);
    counts.push_back(bytes / 4 + 5);
  }
  return counts;
}

sherd_op_v0 Reduction(int op, uint64_t count) {
  sherd_op_v0 desc = {};
  desc.op = op;
  desc.bytes = count * sizeof(int32_t);
  desc.dtype = SHERD_INT32;
  desc.reduction = SHERD_SUM;
  return desc;
}

void ExpectOk(const PluginOutcome& outcome) {
  EXPECT_EQ(outcome.code, SHERD_OK)
      << "peer " << outcome.peer << ": " << outcome.text;
}

// The length of the message from `from` to `to` where lengths may differ.
uint64_t Length(int from, int to) {
  return (from + to) % 3 == 0 ? 0 : 1000 * from + 37 * to + 5;
}

std::vector<uint8_t> Bytes(int from, int to, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint64_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<uint8_t>(i * 3 + i / 256 + from * 17 + to * 5);
  }
  return bytes;
}

sherd_op_v0 Message(int op, int peer, int64_t tag, std::vector<uint8_t>& data) {
  sherd_op_v0 desc = {};
  desc.op = op;
  desc.root = peer;
  desc.tag = tag;
  desc.in = desc.out = data.data();
  desc.bytes = data.size();
  return desc;
}

}  // namespace

void CheckAllReduce(PluginRank& self, uint64_t max_bytes) {
  for (uint64_t count : Counts(max_bytes)) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(absl::StrCat(count, " elements, in place: ", in_place));
      std::vector<int32_t> in = Data(self.rank(), count);
      std::vector<int32_t> out(count + 1, -1);
      sherd_op_v0 op = Reduction(SHERD_ALL_REDUCE, count);
      op.in = in.data();
      op.out = in_place ? in.data() : out.data();
      ExpectOk(self.Run(op));
      EXPECT_EQ(out.back(), -1);
      out.pop_back();
      EXPECT_TRUE((in_place ? in : out) == Sum(self.size(), count));
      if (!in_place) {
        EXPECT_TRUE(in == Data(self.rank(), count));
      }
    }
  }
}

void CheckReduce(PluginRank& self, uint64_t max_bytes) {
  int root = 0;
  for (uint64_t count : Counts(max_bytes)) {
    root = (root + 1) % self.size();
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(absl::StrCat(count, " elements, root ", root));
      std::vector<int32_t> in = Data(self.rank(), count);
      std::vector<int32_t> out(count);
      sherd_op_v0 op = Reduction(SHERD_REDUCE, count);
      op.root = root;
      op.in = in.data();
      if (self.rank() == root) op.out = in_place ? in.data() : out.data();
      ExpectOk(self.Run(op));
      if (self.rank() == root) {
        EXPECT_TRUE((in_place ? in : out) == Sum(self.size(), count));
      } else {
        EXPECT_TRUE(in == Data(self.rank(), count));
      }
    }
  }
}

void CheckReduceScatter(PluginRank& self, uint64_t max_bytes) {
  for (uint64_t count : Counts(max_bytes / self.size())) {
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(absl::StrCat(count, " elements, in place: ", in_place));
      std::vector<int32_t> in = Data(self.rank(), count * self.size());
      std::vector<int32_t> out(count);
      std::vector<sherd_bytes_v0> sends;
      for (int r = 0; r < self.size(); ++r) {
        sends.push_back({in.data() + r * count, count * sizeof(int32_t)});
      }
      sherd_op_v0 op = Reduction(SHERD_REDUCE_SCATTER, count);
      op.sends = sends.data();
      op.out = in_place ? sends[self.rank()].data : out.data();
      ExpectOk(self.Run(op));
      EXPECT_EQ(std::memcmp(op.out,
                            Sum(self.size(), count, self.rank() * count).data(),
                            op.bytes),
                0);
    }
  }
}

void CheckAllGatherV(PluginRank& self) {
  std::vector<uint8_t> own = Bytes(self.rank(), 0, Length(self.rank(), 0));
  std::vector<std::vector<uint8_t>> all;
  std::vector<sherd_bytes_v0> recvs;
  for (int r = 0; r < self.size(); ++r) all.emplace_back(Length(r, 0));
  all[self.rank()] = own;
  for (auto& block : all) recvs.push_back({block.data(), block.size()});
  sherd_op_v0 op = {};
  op.op = SHERD_ALL_GATHER_V;
  op.in = own.data();
  op.bytes = own.size();
  op.recvs = recvs.data();
  ExpectOk(self.Run(op));
  for (int r = 0; r < self.size(); ++r) {
    EXPECT_EQ(all[r], Bytes(r, 0, Length(r, 0))) << "from " << r;
  }
}

void CheckGather(PluginRank& self) {
  for (int root = 0; root < self.size(); ++root) {
    std::vector<uint8_t> own =
        Bytes(self.rank(), root, Length(self.rank(), root));
    std::vector<std::vector<uint8_t>> all;
    std::vector<sherd_bytes_v0> recvs;
    for (int r = 0; r < self.size(); ++r) all.emplace_back(Length(r, root));
    all[self.rank()] = own;
    for (auto& block : all) recvs.push_back({block.data(), block.size()});
    sherd_op_v0 op = {};
    op.op = SHERD_GATHER;
    op.root = root;
    op.in = own.data();
    op.bytes = own.size();
    if (self.rank() == root) op.recvs = recvs.data();
    ExpectOk(self.Run(op));
    if (self.rank() != root) continue;
    for (int r = 0; r < self.size(); ++r) {
      EXPECT_EQ(all[r], Bytes(r, root, Length(r, root))) << "from " << r;
    }
  }
}

void CheckScatter(PluginRank& self) {
  for (int root = 0; root < self.size(); ++root) {
    std::vector<std::vector<uint8_t>> all;
    std::vector<sherd_bytes_v0> sends;
    for (int r = 0; r < self.size(); ++r) {
      all.push_back(Bytes(root, r, Length(root, r)));
    }
    for (auto& block : all) sends.push_back({block.data(), block.size()});
    std::vector<uint8_t> own(Length(root, self.rank()));
    if (self.rank() == root) own = all[root];
    sherd_op_v0 op = {};
    op.op = SHERD_SCATTER;
    op.root = root;
    op.out = own.data();
    op.bytes = own.size();
    if (self.rank() == root) op.sends = sends.data();
    ExpectOk(self.Run(op));
    EXPECT_EQ(own, all[self.rank()]);
  }
}

void CheckRoundsOnce(PluginRank& self) {
  // In bfloat16, 256 + 1 is 256. Added one after another, the ones of all ranks
  // but the first would be lost.
  constexpr uint16_t k256 = 0x4380, k1 = 0x3f80;
  for (uint64_t count : {8, 300000}) {
    std::vector<uint16_t> values(count, self.rank() == 0 ? k256 : k1);
    sherd_op_v0 op = Reduction(SHERD_ALL_REDUCE, count);
    op.bytes = count * sizeof(uint16_t);
    op.dtype = SHERD_BFLOAT16;
    op.in = op.out = values.data();
    ExpectOk(self.Run(op));
    // The nearest to 256 + (size - 1), of which there is one per 2.
    float sum = 256.0f + static_cast<float>(self.size() - 1);
    uint32_t bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    bits += 0x7fff + (bits >> 16 & 1);
    const auto expected = static_cast<uint16_t>(bits >> 16);
    EXPECT_TRUE(values == std::vector<uint16_t>(count, expected)) << values[0];
  }
}

void CheckMessages(PluginRank& self) {
  if (self.rank() > 1) return;
  const int peer = 1 - self.rank();
  const std::vector<uint64_t> sizes = {1,     1000,  1024,   65519,
                                       65520, 65521, 3000000};
  const auto data = [&](int from, size_t i) {
    return Bytes(from, static_cast<int>(i), sizes[i]);
  };
  // Each rank's sends are on a thread of their own, since they may wait.
  std::thread sender([&] {
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::vector<uint8_t> out = data(self.rank(), i);
      ExpectOk(self.Run(Message(SHERD_SEND, peer, 5, out)));
    }
  });
  std::thread other_tag([&] {
    std::vector<uint8_t> out = Bytes(self.rank(), 99, 70000);
    ExpectOk(self.Run(Message(SHERD_SEND, peer, INT32_MAX, out)));
  });
  std::vector<uint8_t> last(70000);
  ExpectOk(self.Run(Message(SHERD_RECV, peer, INT32_MAX, last)));
  EXPECT_TRUE(last == Bytes(peer, 99, 70000));
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::vector<uint8_t> in(sizes[i]);
    ExpectOk(self.Run(Message(SHERD_RECV, peer, 5, in)));
    EXPECT_TRUE(in == data(peer, i)) << sizes[i] << " bytes";
  }
  sender.join();
  other_tag.join();
}

void CheckMessagesBesideCollectives(PluginRank& self) {
  constexpr int kRounds = 20;
  const auto size = [](int i) { return i % 2 == 0 ? 100 : 200000 + i; };
  std::thread messages([&] {
    if (self.rank() > 1) return;
    for (int i = 0; i < kRounds; ++i) {
      std::vector<uint8_t> data(size(i));
      if (self.rank() == 0) data = Bytes(0, i, size(i));
      ExpectOk(self.Run(Message(self.rank() == 0 ? SHERD_SEND : SHERD_RECV,
                                1 - self.rank(), i % 3, data)));
      EXPECT_TRUE(data == Bytes(0, i, size(i))) << "message " << i;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const uint64_t count = 1 + i * 5000;
    std::vector<int32_t> values = Data(self.rank(), count);
    sherd_op_v0 op = Reduction(SHERD_ALL_REDUCE, count);
    op.in = op.out = values.data();
    ExpectOk(self.Run(op));
    EXPECT_TRUE(values == Sum(self.size(), count));
  }
  messages.join();
}

}  // namespace sherd::testing
