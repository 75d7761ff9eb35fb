// How long a link's queue delays what goes over it, told by how long transfers take.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

namespace hostless {

// The least of the last few transfers is the queue's part; what others took longer is the processors'.
class QueueDelay {
 public:
  QueueDelay() { took_.fill(kNever); }

  // Over what a transfer takes on an idle link, as far as one has been seen.
  double of(double took_s) {
    took_[next_++ % took_.size()] = took_s;
    const double least = *std::min_element(took_.begin(), took_.end());
    idle_s_ = std::min(idle_s_, least);
    return least - idle_s_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  std::array<double, 8> took_;
  size_t next_ = 0;
  double idle_s_ = kNever;
};

}  // namespace hostless
