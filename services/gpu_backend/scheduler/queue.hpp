// queue.hpp: requests that wait for a lane and pages, in order of arrival (FCFS, B6).
//
// New arrivals go to the end. An evicted request goes back to the place that its arrival number
// gives, which is before everything that was never admitted: the walk from the head passes only
// over other evicted requests. Called by thread 0.
#pragma once
#include "context.hpp"

namespace hostless {

template <class P>
HOSTLESS_FN void enqueue(Context<P>& c, uint32_t slot) {
  CoreState& s = c.s;
  Request& r = c.requests[slot];
  uint32_t next = kNone;
  if (s.waiting_tail != kNone && c.requests[s.waiting_tail].arrival > r.arrival)
    for (next = s.waiting_head; c.requests[next].arrival < r.arrival;) next = c.requests[next].next;
  const uint32_t previous = next == kNone ? s.waiting_tail : c.requests[next].previous;
  r.previous = previous;
  r.next = next;
  (previous == kNone ? s.waiting_head : c.requests[previous].next) = slot;
  (next == kNone ? s.waiting_tail : c.requests[next].previous) = slot;
  ++s.waiting_count;
  c.phases[slot] = Phase::waiting;
}

// A request whose prompt is prefilled elsewhere waits apart, in no order, until its KV is there.
template <class P>
HOSTLESS_FN void join_expecting(Context<P>& c, uint32_t slot) {
  c.phases[slot] = Phase::expecting;
  c.requests[slot].next = c.s.expecting_count;
  c.expecting[c.s.expecting_count++] = slot;
}

template <class P>
HOSTLESS_FN void leave_expecting(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  const uint32_t last = c.expecting[--c.s.expecting_count];
  c.expecting[r.next] = last;
  c.requests[last].next = r.next;
  r.next = kNone;
}

template <class P>
HOSTLESS_FN void dequeue(Context<P>& c, uint32_t slot) {
  CoreState& s = c.s;
  Request& r = c.requests[slot];
  (r.previous == kNone ? s.waiting_head : c.requests[r.previous].next) = r.next;
  (r.next == kNone ? s.waiting_tail : c.requests[r.next].previous) = r.previous;
  r.previous = r.next = kNone;
  --s.waiting_count;
}

}  // namespace hostless
