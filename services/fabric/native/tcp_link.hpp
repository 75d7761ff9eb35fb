// The arbiter of a link, for the threads that send over it: who may not go yet waits for its event.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <system_error>

#include "arbiter.hpp"

namespace hostless {

using Clock = std::chrono::steady_clock;

inline double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// A place in the link's queue: one transfer at a time.
class Turn {
 public:
  Turn() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  }
  ~Turn() { ::close(event_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  int event() const { return event_; }

 private:
  friend class Link;
  void forget() {
    uint64_t count;
    (void)!::read(event_, &count, sizeof count);
  }
  int event_;
  bool granted_ = false;
  Traffic traffic_ = Traffic::model;
};

class Link {
 public:
  explicit Link(const ArbiterSettings& settings) : arbiter_(settings) {}

  uint64_t chunk() {
    std::lock_guard lock(mutex_);
    return arbiter_.chunk();
  }

  uint64_t window() {
    std::lock_guard lock(mutex_);
    return arbiter_.window();
  }

  // Whether the transfer may go at once. If not, `turn.event()` becomes readable when granted() may be true.
  bool ask(Turn& turn, Traffic traffic, uint64_t bytes) {
    std::lock_guard lock(mutex_);
    turn.granted_ = false;
    turn.traffic_ = traffic;
    queue(traffic).push_back(&turn);
    arbiter_.ask(traffic, bytes);
    serve(&turn);
    return turn.granted_;
  }

  bool granted(Turn& turn) {
    std::lock_guard lock(mutex_);
    if (turn.granted_) turn.forget();
    return turn.granted_;
  }

  // Gives up waiting. False: it was granted meanwhile, and is to be done().
  bool withdraw(Turn& turn) {
    std::lock_guard lock(mutex_);
    if (turn.granted_) {
      turn.forget();
      return false;
    }
    auto& waiting = queue(turn.traffic_);
    const auto place = std::find(waiting.begin(), waiting.end(), &turn);
    arbiter_.withdraw(turn.traffic_, static_cast<size_t>(place - waiting.begin()));
    waiting.erase(place);
    return true;
  }

  bool quiet() {
    std::lock_guard lock(mutex_);
    return arbiter_.quiet();
  }

  // Waits for a turn on the caller's thread. False: it did not come in time.
  bool take(Traffic traffic, uint64_t bytes, double timeout_s) {
    thread_local Turn turn;
    if (ask(turn, traffic, bytes)) return true;
    const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
    while (!granted(turn)) {
      const double left = seconds_between(Clock::now(), std::chrono::time_point_cast<Clock::duration>(end));
      pollfd event{turn.event(), POLLIN, 0};
      if (left <= 0 || ::poll(&event, 1, static_cast<int>(left * 1e3) + 1) == 0) return !withdraw(turn);
    }
    return true;
  }

  // `delay_s`: over that of an idle link; below 0: not known.
  void done(Traffic traffic, uint64_t bytes, double delay_s) {
    std::lock_guard lock(mutex_);
    arbiter_.done(traffic, bytes);
    if (delay_s >= 0) arbiter_.measured(delay_s, bytes);
    serve(nullptr);
  }

 private:
  std::deque<Turn*>& queue(Traffic traffic) { return waiting_[static_cast<uint32_t>(traffic)]; }

  void serve(const Turn* here) {
    while (const auto next = arbiter_.grant()) {
      Turn* turn = queue(*next).front();
      queue(*next).pop_front();
      turn->granted_ = true;
      const uint64_t one = 1;
      if (turn != here) (void)!::write(turn->event_, &one, sizeof one);  // can't be full: one grant a wait
    }
  }

  std::mutex mutex_;
  Arbiter arbiter_;
  std::deque<Turn*> waiting_[2];
};

}  // namespace hostless
