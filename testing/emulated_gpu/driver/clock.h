#ifndef SHERD_TESTING_EMULATED_GPU_DRIVER_CLOCK_H_
#define SHERD_TESTING_EMULATED_GPU_DRIVER_CLOCK_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sherd::testing {

// A vector clock. A lane is a sequence of operations of which each happens
// before the next: a stream, or one branch of a graph. A clock has for each
// lane the position, counted from 1, up to which it is known to have happened.
//
// Source. Mattern, "Virtual time and global states of distributed systems",
// 1989.
class Clock {
 public:
  uint64_t Of(size_t lane) const {
    return lane < places_.size() ? places_[lane] : 0;
  }

  void Advance(size_t lane, uint64_t place) {
    if (places_.size() <= lane) places_.resize(lane + 1, 0);
    places_[lane] = std::max(places_[lane], place);
  }

  void Join(const Clock& other) {
    if (places_.size() < other.places_.size()) {
      places_.resize(other.places_.size(), 0);
    }
    for (size_t lane = 0; lane < other.places_.size(); ++lane) {
      places_[lane] = std::max(places_[lane], other.places_[lane]);
    }
  }

 private:
  std::vector<uint64_t> places_;
};

}  // namespace sherd::testing

#endif  // SHERD_TESTING_EMULATED_GPU_DRIVER_CLOCK_H_
