// landing.hpp: a step has ended (B5): take its tokens, find who has finished, tell the front ends.
//
// The team handles the sequences in parallel; thread 0 sees only those with an event: a prefill, a
// page that has filled, a page that is needed, or the end.
#pragma once
#include "eviction.hpp"

namespace hostless {

HOSTLESS_FN bool stops(const RequestRecord& q, uint32_t token) {
  const uint32_t first = q.flags & kIgnoreEos ? 1 : 0, count = q.stop_count;
  bool found = false;
  for (uint32_t i = 0; i < kStopIds; ++i) found |= i >= first && i < count && q.stop_ids[i] == token;
  return found;
}

// How a request ends with this token, which becomes its `count`-th.
template <class P>
HOSTLESS_FN Finish end_with(const Context<P>& c, const RequestRecord& q, uint32_t token, uint32_t count) {
  const bool stopped = stops(q, token), full = count == q.max_tokens && !(q.flags & kHandOver);
  if (token >= c.s.settings.vocab_size) return Finish::engine_error;
  if (stopped) return Finish::stop;
  return full ? Finish::length : Finish::none;
}

template <class P>
HOSTLESS_FN bool lacks_page(const Context<P>& c, const Request& r) {
  return r.computed / kPageTokens >= c.lanes[r.lane].page_count;
}

// By the one thread that has the sequence: layers that it waited for did not come (D6), so nothing of this step counts
// for it. It is computed from its first token on, once.
template <class P>
HOSTLESS_FN void miss(Context<P>& c, uint32_t lane) {
  Lane& l = c.lanes[lane];
  Request& r = c.requests[l.slot];
  r.computed = r.offered = r.report.cached_tokens = 0;
  r.finish = l.cancelled ? Finish::cancelled : r.missed ? Finish::kv_lost : Finish::none;
  r.missed = 1;
  l.flying = l.sampled = 0;
  c.p.store_relaxed(&c.layers_ready[lane], uint64_t{0});
  c.events[c.p.fetch_add(&c.s.event_count, 1)] = l.slot;
}

// By the one thread that has the sequence: its token is kept and counted, a stop token too. All that it must
// know is read before anything is decided, so that no read waits for another.
template <class P>
HOSTLESS_FN void land_sequence(Context<P>& c, uint32_t index, bool failed) {
  const uint32_t lane = c.flight_lanes[index];
  Lane& l = c.lanes[lane];
  Request& r = c.requests[l.slot];
  const uint32_t token = c.p.load_relaxed(&c.out_tokens[index]);
  const uint32_t before = r.computed, count = r.generated + 1;
  const bool persist = r.persist, first = r.report.first_token_ns == 0;
  const Finish with_token = end_with(c, r.record, token, count);
  const bool prefill = index < c.s.flight.sequences - c.s.flight.decodes;
  if (prefill && !failed && c.p.load_acquire(&c.layers_ready[lane]) & kLayersFailed) return miss(c, lane);

  const uint32_t computed = failed ? before : before + l.flying;
  const bool samples = !failed && l.sampled, takes = samples && with_token != Finish::engine_error;
  Finish finish = failed ? Finish::engine_error : samples ? with_token : Finish::none;
  if (finish == Finish::none && l.cancelled) finish = Finish::cancelled;
  r.computed = computed;
  l.flying = 0;
  if (takes) {
    r.last_token = token;
    r.generated = count;
    if (first) r.report.first_token_ns = c.s.now_ns;
  }
  if (finish == Finish::none && samples) announce(c, l.slot, SlotState::decode_processing);
  const bool offers = persist && before / kPageTokens != computed / kPageTokens;
  if (finish == Finish::none && !prefill && !offers && computed / kPageTokens < l.page_count) return;
  r.finish = finish;
  c.events[c.p.fetch_add(&c.s.event_count, 1)] = l.slot;
}

// Thread 0: a prompt is computed whose decoding is another engine's (D3). The lane is on no list.
template <class P>
HOSTLESS_FN void hand_over(Context<P>& c, uint32_t slot) {
  if (!post_send(c, slot)) return end_held(c, slot, Finish::kv_lost);
  join_list(c, Phase::loading, c.requests[slot].lane);
  announce(c, slot, SlotState::decode_paused);
}

// Thread 0.
template <class P>
HOSTLESS_FN void settle(Context<P>& c, uint32_t slot) {
  Request& r = c.requests[slot];
  offer_blocks(c, slot);
  if (r.finish != Finish::none) return end_request(c, slot, r.finish);
  const uint32_t lane = r.lane;
  if (c.phases[slot] == Phase::prefilling) {
    if (!c.lanes[lane].sampled) return;
    leave_list(c, Phase::prefilling, lane);
    if (r.record.flags & kHandOver) return hand_over(c, slot);
    join_list(c, Phase::running, lane);
  }
  if (!lacks_page(c, r)) return;
  c.s.free_page_count > 0 ? append_page(c, lane) : starve(c, lane);
}

// The whole team, when look has seen that the step is done: takes its tokens. They are shown by `publish`,
// later in the turn.
template <class P>
HOSTLESS_FN void land(Context<P>& c, bool failed) {
  for_each(c.p, c.s.flight.sequences, [&](uint32_t i) { land_sequence(c, i, failed); });
}

// Thread 0, after `land`: what happened to those with an event, and whether the running decodes are owed
// a step now.
template <class P>
HOSTLESS_FN void settle_all(Context<P>& c, bool failed) {
  CoreState& s = c.s;
  for (uint32_t i = 0; i < s.event_count; ++i) settle(c, c.events[i]);
  if (s.flight.kind == static_cast<uint32_t>(StepKind::prefill))
    s.decode_owed = s.settings.decode_between_chunks || s.flight.samples > s.flight.decodes || failed;
  s.landed = s.flight;
  s.flight.kind = 0;
}

// Thread 0, when there is time: the step that landed, in numbers.
template <class P>
HOSTLESS_FN void account(Context<P>& c, bool failed) {
  const Flight& landed = c.s.landed;
  if (failed) return;
  bump(c.p, c.s.counters.prompt_tokens, landed.tokens - landed.decodes);
  bump(c.p, c.s.counters.generated_tokens, landed.samples);
}

// The whole team, while decodes fly: requests that will need a page after this step get one now, if there is one to
// spare; so that landing need not see to each of them.
template <class P>
HOSTLESS_FN void grow_ahead(Context<P>& c) {
  lead(c.p, [&] { c.s.event_count = 0; });
  const uint32_t prompts = c.s.flight.sequences - c.s.flight.decodes;
  for_each(c.p, c.s.flight.decodes, [&](uint32_t i) {
    const uint32_t lane = c.flight_lanes[prompts + i];
    const Request& r = c.requests[c.lanes[lane].slot];
    if ((r.computed + 1) / kPageTokens < c.lanes[lane].page_count || r.generated + 1 >= r.record.max_tokens) return;
    c.events[c.p.fetch_add(&c.s.event_count, 1)] = lane;
  });
  lead(c.p, [&] {
    if (c.s.starved.count != 0) return;
    for (uint32_t i = 0; i < c.s.event_count && c.s.free_page_count > 0; ++i) append_page(c, c.events[i]);
  });
}

}  // namespace hostless
