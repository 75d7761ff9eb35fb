// events.hpp: timers in order of time; ties in the order in which they were set, so that a run repeats to the bit.
#pragma once
#include <cstdint>
#include <queue>
#include <vector>

namespace hostless::sim {

enum class Timer : uint32_t {
  agent = 0,             // subject: agent; its next turn arrives
  prefill_computed = 1,  // subject: group; the step's arithmetic is over
  prefill_step = 2,      // subject: group; the step is over, its last layer's transfer included
  decode_step = 3,       // subject: group
};

struct Event {
  double time;
  uint64_t order;
  Timer kind;
  uint32_t subject;
};

class EventQueue {
 public:
  void set(double time, Timer kind, uint32_t subject) { heap_.push({time, order_++, kind, subject}); }
  bool empty() const { return heap_.empty(); }
  double next() const { return heap_.top().time; }
  uint64_t count() const { return order_; }
  Event pop() {
    Event event = heap_.top();
    heap_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> heap_;
  uint64_t order_ = 0;
};

}  // namespace hostless::sim
