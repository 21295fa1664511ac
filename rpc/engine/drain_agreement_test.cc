#include "sherd/rpc/engine/drain_agreement.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sherd/core/base/knobs.h"
#include "sherd/rpc/engine/call_codec.h"

namespace sherd::internal {
namespace {

// Workers that exchange requests and drain messages in a random order, requests
// and drain messages overtaking one another, and die at random points. As on
// the wire, a death is noticed by the workers that are linked with the dead
// one: rank 0, and those that have exchanged a message with it; or when one is
// sent to it.
class Simulation {
 public:
  Simulation(int size, uint64_t seed)
      : size_(size), random_(seed), workers_(static_cast<size_t>(size)) {
    for (int r = 0; r < size; ++r) {
      workers_[r].agreement = std::make_unique<DrainAgreement>(r, size);
      workers_[r].sent.resize(static_cast<size_t>(size));
      workers_[r].received.resize(static_cast<size_t>(size));
      if (r > 0) Link(0, r);
    }
  }

  // One random step; false if nothing is left to do.
  bool Step() {
    std::vector<std::function<void()>> steps;
    for (int r = 0; r < size_; ++r) {
      Worker& worker = workers_[r];
      if (worker.dead) continue;
      if (!worker.joined) {
        steps.push_back([this, r] { Join(r); });
        if (requests_left_ > 0) steps.push_back([this, r] { Request(r); });
      } else if (!worker.agreement->over()) {
        steps.push_back([this, r] { Advance(r); });
      }
      // Handlers end, or call others first.
      if (worker.running > 0) {
        steps.push_back([this, r] { EndHandler(r); });
        if (requests_left_ > 0) steps.push_back([this, r] { Request(r); });
      }
      if (deaths_left_ > 0) steps.push_back([this, r] { Kill(r); });
    }
    for (auto& [pair, queue] : drains_) {
      if (!queue.empty()) {
        steps.push_back([this, pair = pair] { DrainArrives(pair); });
      }
    }
    for (auto& [pair, count] : requests_) {
      if (count > 0) {
        steps.push_back([this, pair = pair] { RequestArrives(pair); });
      }
    }
    if (steps.empty()) return false;
    steps[random_() % steps.size()]();
    CheckSafety();
    for (const Worker& worker : workers_) {
      if (!worker.dead && !worker.agreement->over()) return true;
    }
    return false;
  }

  bool AllOver() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& w) {
      return w.dead || w.agreement->over();
    });
  }
  void AllowDeaths(int count) { deaths_left_ = count; }

 private:
  struct Worker {
    std::unique_ptr<DrainAgreement> agreement;
    bool joined = false;
    bool dead = false;
    int running = 0;
    std::vector<uint64_t> sent, received;
  };

  void Join(int r) {
    workers_[r].joined = true;
    workers_[r].agreement->Join();
    Advance(r);
  }
  void Request(int r) {
    const int to = static_cast<int>(random_() % static_cast<uint64_t>(size_));
    if (to == r) return;
    if (workers_[to].dead) return Notice(r, to);
    Link(r, to);
    --requests_left_;
    ++workers_[r].sent[to];
    ++requests_[{r, to}];
  }
  void RequestArrives(std::pair<int, int> pair) {
    --requests_[pair];
    Worker& to = workers_[pair.second];
    if (to.dead) return;
    ++to.running;
    ++to.received[pair.first];
  }
  void EndHandler(int r) {
    --workers_[r].running;
    Advance(r);
  }
  void Advance(int r) {
    Worker& worker = workers_[r];
    Post(r, worker.agreement->Advance(
                [&](const std::set<int>& excluded) {
                  DrainCounts counts{.idle = worker.running == 0};
                  for (int w = 0; w < size_; ++w) {
                    if (excluded.contains(w)) continue;
                    counts.sent += worker.sent[w];
                    counts.received += worker.received[w];
                  }
                  return counts;
                },
                /*new_wave=*/true));
  }
  void DrainArrives(std::pair<int, int> pair) {
    const DrainHeader header = drains_[pair].front();
    drains_[pair].pop_front();
    Worker& to = workers_[pair.second];
    if (to.dead) return;
    if (header.kind == DrainKind::kGiveUp) {
      to.agreement->OnGone(pair.first, "died");
    } else {
      Post(pair.second, to.agreement->OnMessage(pair.first, header));
    }
    if (to.joined) Advance(pair.second);
  }
  void Post(int from, const DrainAgreement::Messages& messages) {
    for (const auto& message : messages) {
      if (workers_[message.to].dead) {
        Notice(from, message.to);
        continue;
      }
      Link(from, message.to);
      drains_[{from, message.to}].push_back(message.header);
    }
  }
  void Link(int a, int b) { links_.insert({std::min(a, b), std::max(a, b)}); }
  bool IsLinked(int a, int b) const {
    return links_.contains({std::min(a, b), std::max(a, b)});
  }
  // The end of a connection is the last message on it.
  void Notice(int worker, int dead) {
    drains_[{dead, worker}].push_back({.kind = DrainKind::kGiveUp});
  }
  void Kill(int r) {
    --deaths_left_;
    workers_[r].dead = true;
    for (int w = 0; w < size_; ++w) {
      requests_[{r, w}] = 0;
      if (w == r) continue;
      if (!IsLinked(r, w)) continue;
      // A part of its messages still arrives.
      auto& queue = drains_[{r, w}];
      queue.resize(random_() % (queue.size() + 1));
      Notice(w, r);
    }
  }
  void CheckSafety() const {
    const bool agreed =
        std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
          return !worker.dead && worker.agreement->agreed();
        });
    if (!agreed) return;
    for (const Worker& worker : workers_) {
      ASSERT_TRUE(worker.dead || (worker.joined && worker.running == 0));
    }
    for (const auto& [pair, count] : requests_) {
      ASSERT_TRUE(count == 0 || workers_[pair.second].dead);
    }
  }

  const int size_;
  std::mt19937_64 random_;
  std::vector<Worker> workers_;
  int requests_left_ = 30;
  int deaths_left_ = 0;
  std::set<std::pair<int, int>> links_;
  std::map<std::pair<int, int>, int> requests_;
  std::map<std::pair<int, int>, std::deque<DrainHeader>> drains_;
};

TEST(DrainAgreementTest, NoWorkerAgreesWhileACallIsLeftAndAllLeaveEventually) {
  const auto seed = static_cast<uint64_t>(
      GetIntKnob(Knob::kTestSeed, 0, INT64_MAX)
          .value()
          .value_or(static_cast<int64_t>(std::random_device()())));
  std::cout << "SHERD_TEST_SEED=" << seed << "\n";
  for (uint64_t c = 0; c < 1000; ++c) {
    SCOPED_TRACE(absl::StrCat("SHERD_TEST_SEED=", seed + c));
    std::mt19937_64 random(seed + c);
    const int size = 1 + static_cast<int>(random() % 5);
    Simulation simulation(size, seed + c);
    simulation.AllowDeaths(
        static_cast<int>(random() % static_cast<uint64_t>(size)));
    int steps = 0;
    while (simulation.Step() && ++steps < 100000) {
      if (::testing::Test::HasFatalFailure()) return;
    }
    ASSERT_TRUE(simulation.AllOver()) << "after " << steps << " steps";
  }
}

// The counts of one wave are of different moments: a request that was counted
// as sent, and another one as received, can add up while a handler runs.
TEST(DrainAgreementTest, OneBalancedWaveIsNotEnough) {
  DrainAgreement agreement(0, 3);
  agreement.Join();
  DrainCounts own;
  const auto look = [&](const std::set<int>&) { return own; };
  const auto report = [&](int from, uint64_t wave, DrainCounts counts) {
    agreement.OnMessage(from, {.kind = DrainKind::kReport,
                               .wave = wave,
                               .sent = counts.sent,
                               .received = counts.received});
    agreement.Advance(look, true);
  };
  agreement.Advance(look, true);
  // Worker 1 reports, and then receives a request of worker 2, whose handler
  // calls worker 0 and goes on after the answer.
  report(1, 1, {.idle = true});
  report(2, 1, {.idle = true, .sent = 1});
  own = {.idle = true, .received = 1};
  agreement.Advance(look, true);
  EXPECT_FALSE(agreement.agreed());
  for (uint64_t wave = 2; wave <= 3; ++wave) {
    EXPECT_FALSE(agreement.agreed());
    report(1, wave, {.idle = true, .sent = 1, .received = 1});
    report(2, wave, {.idle = true, .sent = 1});
  }
  EXPECT_TRUE(agreement.agreed());
}

TEST(DrainAgreementTest, AWorkerThatGivesUpIsNamedAndTheNextRankTakesOver) {
  DrainAgreement agreement(1, 2);
  agreement.Join();
  const auto idle = [](const std::set<int>&) {
    return DrainCounts{.idle = true};
  };
  EXPECT_TRUE(agreement.Advance(idle, true).empty());
  EXPECT_THAT(agreement.Missing(), ::testing::ElementsAre(0));
  agreement.OnMessage(0, {.kind = DrainKind::kGiveUp});
  agreement.Advance(idle, true);
  EXPECT_TRUE(agreement.over());
  EXPECT_EQ(agreement.lost().at(0), "it gave up");
}

// Only rank 0 is linked with all: the death of the next coordinator would
// remain unknown to workers that never sent it anything.
TEST(DrainAgreementTest, EachNewCoordinatorGetsOneMessageOfEachWorker) {
  DrainAgreement two(2, 4);
  const auto idle = [](const std::set<int>&) {
    return DrainCounts{.idle = true};
  };
  two.Join();
  EXPECT_TRUE(two.Advance(idle, true).empty());
  two.OnGone(0, "died");
  DrainAgreement::Messages messages = two.Advance(idle, true);
  ASSERT_THAT(messages, ::testing::SizeIs(1));
  EXPECT_EQ(messages[0].to, 1);
  EXPECT_EQ(messages[0].header.kind, DrainKind::kReport);
  EXPECT_EQ(messages[0].header.wave, uint64_t{0});
  EXPECT_TRUE(two.Advance(idle, true).empty());
  // It is the coordinator itself now.
  two.OnGone(1, "died");
  messages = two.Advance(idle, true);
  ASSERT_THAT(messages, ::testing::SizeIs(1));
  EXPECT_EQ(messages[0].to, 3);
  EXPECT_EQ(messages[0].header.kind, DrainKind::kWave);
}

TEST(DrainAgreementTest, AllLearnWhichWorkersTheCoordinatorLost) {
  DrainAgreement zero(0, 3);
  DrainAgreement one(1, 3);
  const auto idle = [](const std::set<int>&) {
    return DrainCounts{.idle = true};
  };
  zero.OnGone(2, "died");
  zero.Join();
  one.Join();
  for (int round = 0; round < 10 && !one.over(); ++round) {
    for (const auto& [to, header] : zero.Advance(idle, true)) {
      ASSERT_EQ(to, 1);
      for (const auto& answer : one.OnMessage(0, header)) {
        zero.OnMessage(1, answer.header);
      }
    }
    for (const auto& [to, header] : one.Advance(idle, true)) {
      ASSERT_EQ(to, 0);
      zero.OnMessage(1, header);
    }
  }
  EXPECT_TRUE(zero.over() && one.over());
  EXPECT_THAT(zero.lost(), ::testing::ElementsAre(::testing::Pair(2, "died")));
  EXPECT_THAT(one.lost(), ::testing::ElementsAre(
                              ::testing::Pair(2, "others have lost it")));
}

}  // namespace
}  // namespace sherd::internal
