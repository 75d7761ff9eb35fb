// publish.hpp: what front ends see of a request, and how a request ends.
//
// A front end that sees a count in a slot word may read that many tokens; one that sees
// decode_completed may read the report. So the word is always written last, with release.
//
// Words are announced where things happen, and written together by `publish`, once the next step has
// been launched: front ends may be far away, and no step waits for them. Of several announcements of a
// slot only the last is seen.
#pragma once
#include "lanes.hpp"
#include "orders.hpp"
#include "queue.hpp"

namespace hostless {

// By the one thread that has the slot. The request holds a lane, and does so until `publish`.
template <class P>
HOSTLESS_FN void announce(Context<P>& c, uint32_t slot, SlotState state) {
  Request& r = c.requests[slot];
  if (state != r.state && transition_owner(r.state, state) != Owner::scheduler)
    c.p.fetch_add(&c.s.illegal_transitions, 1);
  r.state = state;
  if (r.announced == Announced::no) r.announced = Announced::by_lane;
}

// Thread 0: of a request that has no lane, or may lose it.
template <class P>
HOSTLESS_FN void announce_listed(Context<P>& c, uint32_t slot, SlotState state) {
  announce(c, slot, state);
  Request& r = c.requests[slot];
  if (r.announced == Announced::listed) return;
  r.announced = Announced::listed;
  c.announced[c.s.announced_count++] = slot;
}

// By the one thread that has the slot: token, report, word. Between two calls at most one token is sampled.
template <class P>
HOSTLESS_FN void show(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  r.announced = Announced::no;
  if (r.shown != r.generated) {
    r.shown = r.generated;
    c.token[r.record.token_begin + r.generated - 1] = r.last_token;
  }
  if (r.state == SlotState::decode_completed) {
    r.report.finished_ns = c.s.now_ns;
    c.reports[slot] = r.report;
  }
  c.p.store_release(&c.words[slot], slot_word(r.state, r.finish, r.record.generation, r.generated));
}

// The whole team: writes every word that was announced. Orders go first: afterwards the arenas of ended
// requests are their front ends' again.
template <class P>
HOSTLESS_FN void publish(Context<P>& c) {
  flush_orders(c);
  const uint32_t listed = c.s.announced_count;
  for_each(c.p, c.s.settings.lanes, [&](uint32_t lane) {
    const uint32_t slot = c.lanes[lane].slot;
    if (slot == kNone || c.lanes[lane].abandoned) return;
    if (c.requests[slot].announced == Announced::by_lane) show(c, slot);
  });
  if (listed == 0) return;
  for_each(c.p, listed, [&](uint32_t i) { show(c, c.announced[i]); });
  lead(c.p, [&] { c.s.announced_count = 0; });
}

template <class P>
HOSTLESS_FN bool cancel_asked(const Context<P>& c, uint32_t slot) {
  return c.p.load_relaxed(&c.cancels[slot]) == c.requests[slot].record.generation;
}

template <class P>
HOSTLESS_FN bool is_flying(const Context<P>& c, uint32_t slot) {
  const uint32_t lane = c.requests[slot].lane;
  return lane != kNone && c.lanes[lane].flying != 0;
}

// Thread 0: the agent may still write into the lane's pages, so lane and pages, on the list of loading ones, outlive
// the request.
template <class P>
HOSTLESS_FN void abandon_load(Context<P>& c, uint32_t slot, uint32_t how) {
  Request& r = c.requests[slot];
  c.lanes[r.lane].abandoned = how;
  r.owes_end = 0;  // now owed for the lane
  r.lane = kNone;
}

// Thread 0: a request that holds nothing any more ends.
template <class P>
HOSTLESS_FN void close_request(Context<P>& c, uint32_t slot, Finish finish) {
  Request& r = c.requests[slot];
  r.finish = finish;
  if (r.owes_end) {
    r.owes_end = 0;
    post_end(c, slot, r.record.generation);
  }
  c.phases[slot] = Phase::idle;
  bump(c.p, c.s.counters.finished);
  if (finish == Finish::cancelled) bump(c.p, c.s.counters.cancelled);
  if (finish == Finish::engine_error) bump(c.p, c.s.counters.engine_errors);
  announce_listed(c, slot, SlotState::decode_completed);
}

// Thread 0: a request whose lane is on no list ends.
template <class P>
HOSTLESS_FN void end_held(Context<P>& c, uint32_t slot, Finish finish) {
  const uint32_t lane = c.requests[slot].lane;
  if (agent_writes(c, lane)) {
    push_lane(c, c.s.loading, lane);
    abandon_load(c, slot, Abandoned::answered);
  } else {
    release_lane(c, lane);
    c.requests[slot].lane = kNone;
  }
  close_request(c, slot, finish);
}

// Thread 0: the request leaves everything that it holds, and ends.
template <class P>
HOSTLESS_FN void end_request(Context<P>& c, uint32_t slot, Finish finish) {
  const Phase phase = c.phases[slot];
  switch (phase) {
    case Phase::waiting: dequeue(c, slot); break;
    case Phase::expecting: leave_expecting(c, slot); break;
    case Phase::loading: abandon_load(c, slot, Abandoned::unanswered); break;
    default: leave_list(c, phase, c.requests[slot].lane); return end_held(c, slot, finish);
  }
  close_request(c, slot, finish);
}

// The whole team: ends all requests that `chosen` names; it is asked of every slot in
// [begin, begin + count) that has a request which is not in flight. Returns how many ended.
template <class P, class F>
HOSTLESS_FN uint32_t end_chosen(Context<P>& c, uint32_t begin, uint32_t count, Finish finish, F chosen) {
  lead(c.p, [&] { c.s.event_count = 0; });
  for_each(c.p, count, [&](uint32_t i) {
    const uint32_t slot = begin + i;
    if (c.phases[slot] == Phase::idle || is_flying(c, slot) || !chosen(slot)) return;
    c.events[c.p.fetch_add(&c.s.event_count, 1)] = slot;
  });
  return static_cast<uint32_t>(leader(c.p, [&] {
    for (uint32_t i = 0; i < c.s.event_count; ++i) end_request(c, c.events[i], finish);
    return c.s.event_count;
  }));
}

}  // namespace hostless
