// eviction.hpp: when a decode needs a page and none is free.
//
// The request with the least computed work gives up lane and pages and goes back into the queue, in
// decode_paused, at its arrival number; later it prefills its prompt and all it had generated, and
// goes on with the same tokens. Called by thread 0, with nothing in flight.
//
// Why this always makes progress: order the held requests by computed tokens, then by arrival. The
// greatest of them is never evicted, and needs no one's leave to be decoded but a page, for which all
// others yield. It computes a token a step, so within max_context steps it ends; until then whoever
// overtook it is the greatest. While the head of the queue waits nobody new comes in, so the held
// requests run out and the head is admitted.
#pragma once
#include "publish.hpp"

namespace hostless {

template <class P>
HOSTLESS_FN bool less_work(const Context<P>& c, uint32_t lane, uint32_t than) {
  const Request& a = c.requests[c.lanes[lane].slot];
  const Request& b = c.requests[c.lanes[than].slot];
  return a.computed != b.computed ? a.computed < b.computed : a.arrival > b.arrival;
}

// Of those whose pages nobody but a step writes.
template <class P>
HOSTLESS_FN uint32_t least_work(const Context<P>& c, const LaneList& l, uint32_t least) {
  const uint32_t* lanes = c.list(l);
  for (uint32_t i = 0; i < l.count; ++i)
    if (!agent_writes(c, lanes[i]) && (least == kNone || less_work(c, lanes[i], least))) least = lanes[i];
  return least;
}

template <class P>
HOSTLESS_FN uint32_t most_work(const Context<P>& c, const LaneList& l) {
  const uint32_t* lanes = c.list(l);
  uint32_t most = lanes[0];
  for (uint32_t i = 1; i < l.count; ++i)
    if (less_work(c, most, lanes[i])) most = lanes[i];
  return most;
}

template <class P>
HOSTLESS_FN void evict(Context<P>& c, uint32_t lane) {
  const uint32_t slot = c.lanes[lane].slot;
  Request& r = c.requests[slot];
  leave_list(c, c.phases[slot], lane);
  release_lane(c, lane);
  r.lane = kNone;
  r.computed = 0;
  ++r.report.preemptions;
  bump(c.p, c.s.counters.preemptions);
  enqueue(c, slot);
  announce_listed(c, slot, SlotState::decode_paused);
}

// Thread 0: a decode's next token needs a page that its lane lacks.
template <class P>
HOSTLESS_FN void starve(Context<P>& c, uint32_t lane) {
  const uint32_t slot = c.lanes[lane].slot;
  leave_list(c, c.phases[slot], lane);
  join_list(c, Phase::starved, lane);
  announce(c, slot, SlotState::decode_paused);
}

// Serves the starved, most work first. Stops where waiting is better than evicting (pages come back
// as the agent moves on), or where the last candidate is the one that must never be evicted.
template <class P>
HOSTLESS_FN void feed_starved(Context<P>& c) {
  CoreState& s = c.s;
  while (s.starved.count > 0) {
    const uint32_t lane = most_work(c, s.starved);
    if (s.free_page_count > 0) {
      append_page(c, lane);
      leave_list(c, Phase::starved, lane);
      join_list(c, Phase::running, lane);
      continue;
    }
    if (s.leaving_pages > 0 && agent_moves(c)) return;
    if (s.starved.count + s.running.count + s.prefilling.count == 1) return;
    evict(c, least_work(c, s.prefilling, least_work(c, s.running, least_work(c, s.starved, kNone))));
  }
}

}  // namespace hostless
