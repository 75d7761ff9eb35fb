// tuning.hpp: ways in which the scheduler can be built, to be compared on a GPU (tests/gpu/scheduler/builds.py).
//
// A source that wants another one defines it before it includes anything. What is off here has not been measured.
#pragma once
#include "ring.hpp"

#ifndef HOSTLESS_HANDS_OVER_UNLANDED
#define HOSTLESS_HANDS_OVER_UNLANDED 0
#endif
#ifndef HOSTLESS_TAILS_EARLY
#define HOSTLESS_TAILS_EARLY 0
#endif
#ifndef HOSTLESS_STARTS_STILL
#define HOSTLESS_STARTS_STILL 0
#endif
#ifndef HOSTLESS_KEEPS_BOARD
#define HOSTLESS_KEEPS_BOARD 0
#endif
#ifndef HOSTLESS_HOUSE_ROUNDS
#define HOSTLESS_HOUSE_ROUNDS 16
#endif
#ifndef HOSTLESS_LONGEST_REST_NS
#define HOSTLESS_LONGEST_REST_NS 200'000
#endif

namespace hostless {

struct Tuning {
  // When the launch window is spent (B4), the fresh execution lands the step that has ended, not the old one: nothing
  // is looked at, decided and published twice between two steps.
  static constexpr bool hands_over_unlanded = HOSTLESS_HANDS_OVER_UNLANDED;
  // The tail launch is asked for while the window's last step flies.
  static constexpr bool tails_early = HOSTLESS_TAILS_EARLY;
  // A fresh execution's watcher holds still until the first launch.
  static constexpr bool starts_still = HOSTLESS_STARTS_STILL;
  // A fresh execution goes on from what the watcher of the last one saw, and waits for no first look.
  static constexpr bool keeps_board = HOSTLESS_KEEPS_BOARD;
  // Rounds of the watcher from one look at leases, orders and commands to the next; in between it sees doorbells only.
  static constexpr uint32_t house_rounds = HOSTLESS_HOUSE_ROUNDS;
  // While a step flies the team looks round at least so often: for cancels, say.
  static constexpr uint64_t longest_rest_ns = HOSTLESS_LONGEST_REST_NS;
};

}  // namespace hostless
