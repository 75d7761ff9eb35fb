// landing.hpp: a step has ended (B5): take its tokens, find who has finished, tell the front ends.
//
// The team handles the sequences in parallel; thread 0 sees only those with an event: a prefill, a
// page that has filled, a page that is needed, or the end.
#pragma once
#include "eviction.hpp"

namespace hostless {

HOSTLESS_FN bool stops(const RequestRecord& q, uint32_t token) {
  for (uint32_t i = q.flags & kIgnoreEos ? 1 : 0; i < q.stop_count; ++i)
    if (q.stop_ids[i] == token) return true;
  return false;
}

// A sampled token is kept and counted, the stop token too. Returns how the request ends with it.
template <class P>
HOSTLESS_FN Finish take_token(Context<P>& c, Request& r, uint32_t token) {
  if (token >= c.s.settings.vocab_size) return Finish::engine_error;
  r.last_token = token;
  ++r.generated;
  if (r.report.first_token_ns == 0) r.report.first_token_ns = c.s.now_ns;
  if (stops(r.record, token)) return Finish::stop;
  return r.generated == r.record.max_tokens ? Finish::length : Finish::none;
}

template <class P>
HOSTLESS_FN bool lacks_page(const Context<P>& c, const Request& r) {
  return r.computed / kPageTokens >= c.lanes[r.lane].page_count;
}

// By the one thread that has the sequence.
template <class P>
HOSTLESS_FN void land_sequence(Context<P>& c, uint32_t index, bool failed) {
  const uint32_t lane = c.flight_lanes[index];
  Lane& l = c.lanes[lane];
  Request& r = c.requests[l.slot];
  const uint32_t full = r.computed / kPageTokens;
  Finish finish = failed ? Finish::engine_error : Finish::none;
  if (!failed) {
    r.computed += l.flying;
    if (l.sampled) finish = take_token(c, r, c.out_tokens[index]);
    if (finish == Finish::none && l.cancelled) finish = Finish::cancelled;
  }
  l.flying = 0;
  const bool prefill = c.phases[l.slot] == Phase::prefilling;
  if (finish == Finish::none && l.sampled) announce(c, l.slot, SlotState::decode_processing);
  if (finish == Finish::none && !prefill && full == r.computed / kPageTokens && !lacks_page(c, r)) return;
  r.finish = finish;
  c.events[c.p.fetch_add(&c.s.event_count, 1)] = l.slot;
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
    join_list(c, Phase::running, lane);
  }
  if (!lacks_page(c, r)) return;
  c.s.free_page_count > 0 ? append_page(c, lane) : starve(c, lane);
}

// Thread 0: what the step came to, in numbers; and whether the running decodes are owed a step now.
template <class P>
HOSTLESS_FN void account(Context<P>& c, bool failed) {
  const Flight& flight = c.s.flight;
  Counters& n = c.s.counters;
  if (flight.kind == static_cast<uint32_t>(StepKind::prefill)) {
    c.s.decode_owed = c.s.settings.decode_between_chunks || flight.samples > 0 || failed;
    if (!failed) bump(c.p, n.prompt_tokens, flight.tokens);
  }
  if (!failed) bump(c.p, n.generated_tokens, flight.samples);
}

// The whole team. The tokens are shown by `publish`, later in the turn.
template <class P>
HOSTLESS_FN void land(Context<P>& c) {
  const bool failed = leader(c.p, [&] {
    c.s.event_count = 0;
    const bool error = c.p.load_relaxed(&c.engine.step.error) != 0;
    account(c, error);
    return error;
  });
  for_each(c.p, c.s.flight.sequences, [&](uint32_t i) { land_sequence(c, i, failed); });
  lead(c.p, [&] {
    for (uint32_t i = 0; i < c.s.event_count; ++i) settle(c, c.events[i]);
    c.s.flight.kind = 0;
  });
}

}  // namespace hostless
