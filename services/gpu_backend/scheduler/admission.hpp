// admission.hpp: from the queue to a lane with pages, through the store if it holds a prefix.
//
// Strictly first come, first served: if the head does not fit, nothing behind it is looked at.
// Admission takes a lane and the pages of all tokens that the request has; whether it may pause the
// decodes for its prefill is decided later (assembly.hpp). Called by thread 0.
#pragma once
#include "publish.hpp"

namespace hostless {

// Loads can be asked once, before anything was computed, and not while the agent still owes an answer
// for an earlier request of the same slot.
template <class P>
HOSTLESS_FN bool wants_load(const Context<P>& c, uint32_t slot) {
  const Request& r = c.requests[slot];
  if (!c.s.settings.kv_orders || r.load_asked) return false;
  if (r.receives) return true;
  if (r.generated != 0 || r.record.cached_tokens == 0) return false;
  if (r.record.kv_reads == 0 && r.record.transfer == 0) return false;
  return !answer_owed(c, slot);
}

// Each running request keeps a claim on one page to grow into, so that a request which comes in (or
// comes back from eviction) doesn't cause the next eviction at once.
template <class P>
HOSTLESS_FN bool head_fits(const Context<P>& c) {
  const CoreState& s = c.s;
  if (s.waiting_count == 0 || s.free_lane_count == 0 || s.starved.count != 0) return false;
  const uint32_t needed = pages_for(total_tokens(c.requests[s.waiting_head]));
  return s.free_page_count >= uint64_t{needed} + s.running.count;
}

template <class P>
HOSTLESS_FN void admit(Context<P>& c) {
  while (head_fits(c)) {
    const uint32_t slot = c.s.waiting_head;
    dequeue(c, slot);
    const uint32_t lane = take_lane(c, slot);
    for (uint32_t left = pages_for(total_tokens(c.requests[slot])); left > 0; --left) append_page(c, lane);
    const bool loads = wants_load(c, slot) && post_load(c, slot);
    if (!loads && c.requests[slot].receives) announce(c, slot, SlotState::decode_paused);  // computed here instead
    if (!loads && hands_over(c.requests[slot])) post_prefill(c, slot);
    join_list(c, loads ? Phase::loading : Phase::prefilling, lane);
  }
}

// The pages of a prompt that was prefilled elsewhere: where all are filled it decodes, at its second token (D3);
// what is missing is computed here.
template <class P>
HOSTLESS_FN void take_received(Context<P>& c, uint32_t lane, uint32_t blocks) {
  const uint32_t slot = c.lanes[lane].slot;
  Request& r = c.requests[slot];
  const bool whole = blocks >= pages_for(r.record.prompt_count);
  r.computed = whole ? r.record.prompt_count : blocks * kPageTokens;
  r.offered = r.record.cached_tokens / kPageTokens;
  announce(c, slot, SlotState::decode_paused);
  join_list(c, whole ? Phase::running : Phase::prefilling, lane);
  offer_blocks(c, slot);
}

// The agent has answered for a lane with this many blocks; fewer than asked means more to compute.
template <class P>
HOSTLESS_FN void take_load(Context<P>& c, uint32_t lane, uint32_t blocks) {
  const uint32_t slot = c.lanes[lane].slot;
  remove_lane(c, c.s.loading, lane);
  if (c.lanes[lane].abandoned) {
    post_end(c, slot, c.lanes[lane].generation);
    return release_lane(c, lane);
  }
  Request& r = c.requests[slot];
  if (r.receives) return take_received(c, lane, blocks);
  if (r.generated != 0) {  // they were sent
    const bool sent = blocks == pages_for(r.record.prompt_count);
    return end_held(c, slot, sent ? Finish::handed_over : Finish::kv_lost);
  }
  const uint32_t asked = r.record.cached_tokens / kPageTokens;
  r.offered = blocks < asked ? blocks : asked;
  r.computed = r.offered * kPageTokens;
  r.report.cached_tokens = r.computed;
  bump(c.p, c.s.counters.cached_tokens, r.computed);
  join_list(c, Phase::prefilling, lane);
}

// The buffer has the prompt's KV, and this is the token that was sampled after it; or the KV won't come. From here on
// the request is like one that was evicted: it waits for a lane and pages.
template <class P>
HOSTLESS_FN void take_expected(Context<P>& c, uint32_t slot, uint32_t token_and_one) {
  if (token_and_one == 0 || token_and_one > c.s.settings.vocab_size) return end_request(c, slot, Finish::kv_lost);
  Request& r = c.requests[slot];
  leave_expecting(c, slot);
  r.last_token = token_and_one - 1;
  r.generated = 1;
  r.report.first_token_ns = c.s.now_ns;
  enqueue(c, slot);
}

// Looks for answers; returns how many came. A lane whose request has ended is held until the agent is off its pages.
template <class P>
HOSTLESS_FN uint32_t take_loads(Context<P>& c) {
  uint32_t taken = 0;
  for (uint32_t i = c.s.loading.count; i-- > 0;) {
    const uint32_t lane = c.list(c.s.loading)[i];
    const Lane& l = c.lanes[lane];
    const uint64_t answer = c.p.load_acquire(&c.load_done[l.slot]);
    const bool answered = static_cast<uint32_t>(answer) == l.generation || l.abandoned == Abandoned::answered;
    if (!answered || (l.abandoned != Abandoned::no && agent_writes(c, lane))) continue;
    take_load(c, lane, static_cast<uint32_t>(answer >> 32));
    ++taken;
  }
  for (uint32_t i = c.s.expecting_count; i-- > 0;) {
    const uint32_t slot = c.expecting[i];
    const uint64_t answer = c.p.load_acquire(&c.load_done[slot]);
    if (static_cast<uint32_t>(answer) != c.requests[slot].record.generation) continue;
    take_expected(c, slot, static_cast<uint32_t>(answer >> 32));
    ++taken;
  }
  return taken;
}

}  // namespace hostless
