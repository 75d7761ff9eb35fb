// lanes.hpp: lanes (rows of the block table), and the list that each held lane is on.
//
// A lane is free, or on exactly one of loading, prefilling, running, starved: the phase of its
// request, except that an abandoned lane is on loading without one. Called by thread 0.
#pragma once
#include "pages.hpp"

namespace hostless {

template <class P>
HOSTLESS_FN void push_lane(Context<P>& c, LaneList& l, uint32_t lane) {
  c.lanes[lane].place = l.count;
  c.list(l)[l.count++] = lane;
}

// Keeps the list in order of arrival: prefills are served first come, first served.
template <class P>
HOSTLESS_FN void insert_lane(Context<P>& c, LaneList& l, uint32_t lane) {
  uint32_t* lanes = c.list(l);
  const uint64_t arrival = c.requests[c.lanes[lane].slot].arrival;
  uint32_t i = l.count++;
  for (; i > 0 && c.requests[c.lanes[lanes[i - 1]].slot].arrival > arrival; --i) {
    lanes[i] = lanes[i - 1];
    c.lanes[lanes[i]].place = i;
  }
  lanes[i] = lane;
  c.lanes[lane].place = i;
}

// O(1); the last lane takes the empty place.
template <class P>
HOSTLESS_FN void remove_lane(Context<P>& c, LaneList& l, uint32_t lane) {
  uint32_t* lanes = c.list(l);
  const uint32_t place = c.lanes[lane].place;
  lanes[place] = lanes[--l.count];
  c.lanes[lanes[place]].place = place;
}

// As remove_lane, for the list that is in order.
template <class P>
HOSTLESS_FN void extract_lane(Context<P>& c, LaneList& l, uint32_t lane) {
  uint32_t* lanes = c.list(l);
  --l.count;
  for (uint32_t i = c.lanes[lane].place; i < l.count; ++i) {
    lanes[i] = lanes[i + 1];
    c.lanes[lanes[i]].place = i;
  }
}

// Does the agent still owe an answer for an earlier request of this slot? Answers are told apart by slot.
template <class P>
HOSTLESS_FN bool answer_owed(const Context<P>& c, uint32_t slot) {
  const uint32_t* loading = c.list(c.s.loading);
  for (uint32_t i = 0; i < c.s.loading.count; ++i)
    if (c.lanes[loading[i]].slot == slot) return true;
  return false;
}

// May the agent still write layers of an answered load into the lane's pages (D6)?
template <class P>
HOSTLESS_FN bool agent_writes(const Context<P>& c, uint32_t lane) {
  return c.p.load_acquire(&c.layers_ready[lane]) & kLayersOpen;
}

template <class P>
HOSTLESS_FN uint32_t take_lane(Context<P>& c, uint32_t slot) {
  const uint32_t lane = c.free_lanes[--c.s.free_lane_count];
  c.p.store_relaxed(&c.layers_ready[lane], uint64_t{0});
  c.lanes[lane] = Lane{slot, c.requests[slot].record.generation, 0, 0, 0, 0, 0, 0};
  c.requests[slot].lane = lane;
  return lane;
}

template <class P>
HOSTLESS_FN void append_page(Context<P>& c, uint32_t lane) {
  c.block_table(lane)[c.lanes[lane].page_count++] = take_page(c);
}

// Gives back the lane and its pages. It is on no list any more.
template <class P>
HOSTLESS_FN void release_lane(Context<P>& c, uint32_t lane) {
  Lane& l = c.lanes[lane];
  const uint32_t* table = c.block_table(lane);
  for (uint32_t i = 0; i < l.page_count; ++i) lane_drops_page(c, table[i]);
  l = Lane{kNone, 0, 0, 0, 0, 0, 0, 0};
  c.free_lanes[c.s.free_lane_count++] = lane;
}

// Takes a request out of the list of its phase.
template <class P>
HOSTLESS_FN void leave_list(Context<P>& c, Phase phase, uint32_t lane) {
  switch (phase) {
    case Phase::loading: return remove_lane(c, c.s.loading, lane);
    case Phase::prefilling: return extract_lane(c, c.s.prefilling, lane);
    case Phase::running: return remove_lane(c, c.s.running, lane);
    case Phase::starved: return remove_lane(c, c.s.starved, lane);
    case Phase::idle:
    case Phase::waiting:
    case Phase::expecting: return;
  }
}

template <class P>
HOSTLESS_FN void join_list(Context<P>& c, Phase phase, uint32_t lane) {
  c.phases[c.lanes[lane].slot] = phase;
  switch (phase) {
    case Phase::loading: return push_lane(c, c.s.loading, lane);
    case Phase::prefilling: return insert_lane(c, c.s.prefilling, lane);
    case Phase::running: return push_lane(c, c.s.running, lane);
    case Phase::starved: return push_lane(c, c.s.starved, lane);
    case Phase::idle:
    case Phase::waiting:
    case Phase::expecting: return;
  }
}

}  // namespace hostless
