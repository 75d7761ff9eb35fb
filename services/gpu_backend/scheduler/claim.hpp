// claim.hpp: from a doorbell to a request in the queue (B1, B2, B7).
//
// One line holds all doorbells. Only when one has rung is that front end's slot range scanned, by the
// whole team. What is found is claimed in the front end's own order of submission (FCFS).
//
// Nothing that a front end writes is believed: ranges are checked against its lease in 64-bit
// arithmetic, on a private copy of the record.
#pragma once
#include "publish.hpp"

namespace hostless {

constexpr uint64_t kRescanFirst = 20'000, kRescanMost = 100'000'000;  // ns

// Is [begin, begin + count) inside [outer, outer + room)?
HOSTLESS_FN constexpr bool inside(uint64_t begin, uint64_t count, uint64_t outer, uint64_t room) {
  return begin >= outer && begin + count <= outer + room;
}

HOSTLESS_FN bool lease_holds(const Settings& g, const FrontEndLease& lease) {
  return inside(lease.slot_begin, lease.slot_count, 0, g.slots) &&
         inside(lease.prompt_begin, lease.prompt_count, 0, g.prompt_words) &&
         inside(lease.token_begin, lease.token_count, 0, g.token_words);
}

// The ranges alone: `active` is the host's to change at any time.
template <class P>
HOSTLESS_FN FrontEndLease lease_ranges(const Context<P>& c, uint32_t f) {
  const FrontEndLease& l = c.ring.leases[f];
  return {0, l.slot_begin, l.slot_count, l.prompt_begin, l.prompt_count, l.token_begin, l.token_count, 0};
}

template <class P>
HOSTLESS_FN LeaseState lease_state(const Context<P>& c, uint32_t f) {
  return static_cast<LeaseState>(c.p.load_acquire(&c.ring.leases[f].active));
}

// Does the record hold together? (Prompt ids are checked apart.) NaN fails every comparison.
HOSTLESS_FN Finish judge(const Settings& g, const FrontEndLease& lease, const RequestRecord& q, uint32_t generation) {
  const uint64_t total = uint64_t{q.prompt_count} + q.max_tokens;
  const bool holds = q.generation == generation && generation != 0 && q.prompt_count >= 1 && q.max_tokens >= 1 &&
                     total <= g.max_context &&
                     inside(q.prompt_begin, q.prompt_count, lease.prompt_begin, lease.prompt_count) &&
                     inside(q.token_begin, q.max_tokens, lease.token_begin, lease.token_count) &&
                     q.temperature >= 0.0f && q.temperature <= 100.0f && q.top_p > 0.0f && q.top_p <= 1.0f &&
                     q.stop_count <= kStopIds && (q.flags & ~static_cast<uint32_t>(kRecordFlagsKnown)) == 0 &&
                     q.cached_tokens % kPageTokens == 0 && q.cached_tokens < q.prompt_count;
  if (!holds) return Finish::bad_record;
  // The last token's KV is never computed.
  return pages_for(total - 1) > g.pages ? Finish::too_large : Finish::none;
}

// Thread 0: must this front end's range be scanned now? A doorbell that counts submits which do not
// show up is looked after ever more rarely.
template <class P>
HOSTLESS_FN bool scan_due(Context<P>& c, uint32_t f) {
  FrontEndScan& e = c.s.front_ends[f];
  const uint64_t bell = c.p.doorbell(c.ring, f);
  const bool rung = bell != e.seen;
  if (!rung && (bell <= e.claimed || c.s.now_ns < e.next_ns)) return false;
  if (lease_state(c, f) != LeaseState::leased) return false;
  e.lease = lease_ranges(c, f);
  if (!lease_holds(c.s.settings, e.lease)) return false;
  e.seen = bell;
  if (rung) e.wait_ns = kRescanFirst;
  e.next_ns = c.s.now_ns + e.wait_ns;
  e.wait_ns = e.wait_ns * 2 < kRescanMost ? e.wait_ns * 2 : kRescanMost;
  bump(c.p, c.s.counters.scans);
  return true;
}

HOSTLESS_FN bool is_pending(uint64_t word) {
  return word_state(word) == SlotState::prefill_pending || word_state(word) == SlotState::kv_pending;
}

// The team looks at all words of a range (B2), several a thread at once: none of the looks waits for
// another. Those that are pending are looked at again, to see what was written before them.
template <class P, class F>
HOSTLESS_FN void scan_words(Context<P>& c, uint32_t begin, uint32_t count, F pending) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t stride = c.p.threads();
  for (uint32_t first = c.p.thread(); first < count; first += kAtOnce * stride) {
    uint64_t words[kAtOnce];
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t i = first + k * stride;
      words[k] = c.p.load_relaxed(&c.words[begin + (i < count ? i : first)]);
    }
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t slot = begin + first + k * stride;
      if (first + k * stride < count && is_pending(words[k]) && is_pending(c.p.load_acquire(&c.words[slot])))
        pending(slot);
    }
  }
  c.p.barrier();
}

// Fills found_order with the range's pending slots, in order of their records' sequence numbers:
// distances from far behind what was claimed, so that they may wrap round and garbage still has an
// order. Each thread ranks its own finds; nothing is sorted by one thread alone.
template <class P>
HOSTLESS_FN uint32_t find_pending(Context<P>& c, uint32_t f) {
  const FrontEndLease& lease = c.s.front_ends[f].lease;
  const uint32_t origin = static_cast<uint32_t>(c.s.front_ends[f].claimed) - 0x80000000u;
  lead(c.p, [&] { c.s.found_count = 0; });
  scan_words(c, lease.slot_begin, lease.slot_count, [&](uint32_t slot) {
    if (c.phases[slot] != Phase::idle) return;  // a front end spoilt the word of its running request
    const uint32_t at = c.p.fetch_add(&c.s.found_count, 1);
    c.found[at] = slot;
    c.found_sequences[at] = c.records[slot].sequence - origin;
  });
  const auto count = static_cast<uint32_t>(leader(c.p, [&] { return c.s.found_count; }));
  for_each(c.p, count, [&](uint32_t i) {
    uint32_t rank = 0;
    for (uint32_t j = 0; j < count; ++j)
      rank += c.found_sequences[j] < c.found_sequences[i] ||
              (c.found_sequences[j] == c.found_sequences[i] && c.found[j] < c.found[i]);
    c.found_order[rank] = c.found[i];
  });
  return count;
}

// Takes the slot from the front end; false if it was not to be had. A kv_pending slot keeps its word until the
// prompt's KV has come from a prefill engine.
template <class P>
HOSTLESS_FN bool take_slot(Context<P>& c, uint32_t f, uint32_t slot) {
  const uint64_t word = c.p.load_acquire(&c.words[slot]);
  const uint32_t generation = word_generation(word);
  const bool receives = word_state(word) == SlotState::kv_pending;
  if (!receives && word_state(word) != SlotState::prefill_pending) return false;
  const SlotState state = receives ? SlotState::kv_pending : SlotState::prefill_processing;
  if (!c.p.compare_exchange(&c.words[slot], word, slot_word(state, Finish::none, generation, 0))) return false;
  ++c.s.front_ends[f].claimed;
  bump(c.p, c.s.counters.claims);
  Request& r = c.requests[slot];
  r = Request{};
  r.record = c.records[slot];
  r.report.generation = generation;
  r.report.claimed_ns = c.s.now_ns;
  r.state = state;
  r.receives = receives;
  r.lane = r.previous = r.next = kNone;
  return true;
}

// Of a request that two engines share: one prefills and samples one token, the other has at least one more to sample.
template <class P>
HOSTLESS_FN Finish judge_shared(const Context<P>& c, uint32_t slot) {
  const Request& r = c.requests[slot];
  const bool sends = r.record.flags & kHandOver;
  if (!sends && !r.receives) return Finish::none;
  const bool holds = sends != bool{r.receives != 0} && c.s.settings.kv_orders && r.record.transfer != 0 &&
                     (sends ? r.record.max_tokens == 1 : r.record.max_tokens >= 2);
  if (!holds) return Finish::bad_record;
  return answer_owed(c, slot) ? Finish::kv_lost : Finish::none;
}

// Thread 0: what is to become of a request whose record reads like this.
template <class P>
HOSTLESS_FN Finish verdict(const Context<P>& c, uint32_t f, uint32_t slot) {
  const Request& r = c.requests[slot];
  const Finish judged = judge(c.s.settings, c.s.front_ends[f].lease, r.record, r.report.generation);
  if (judged != Finish::none) return judged;
  if (const Finish shared = judge_shared(c, slot); shared != Finish::none) return shared;
  if (c.s.mode == EngineState::failed) return Finish::engine_error;
  return c.s.mode == EngineState::serving ? Finish::none : Finish::draining;
}

template <class P>
HOSTLESS_FN void claim(Context<P>& c, uint32_t f, uint32_t slot) {
  if (!leader(c.p, [&] { return take_slot(c, f, slot); })) return;
  Request& r = c.requests[slot];
  auto finish = static_cast<Finish>(leader(c.p, [&] { return static_cast<uint64_t>(verdict(c, f, slot)); }));
  if (finish == Finish::none) {
    bool unknown_id = false;
    for (uint32_t i = c.p.thread(); i < r.record.prompt_count; i += c.p.threads())
      unknown_id |= c.prompt[r.record.prompt_begin + i] >= c.s.settings.vocab_size;
    if (c.p.any(unknown_id)) finish = Finish::bad_record;
  }
  lead(c.p, [&] {
    r.record.generation = r.report.generation;
    if (finish == Finish::none && r.receives && !post_receive(c, slot)) finish = Finish::kv_lost;
    r.finish = finish;
    if (finish != Finish::none) {
      bump(c.p, c.s.counters.refused);
      return announce_listed(c, slot, SlotState::decode_completed);
    }
    for (const uint8_t byte : r.record.kv_root) r.persist |= byte != 0;
    r.persist &= c.s.settings.kv_orders != 0 && !(r.record.flags & kNoPersist);
    r.arrival = c.s.arrivals++;
    r.receives ? join_expecting(c, slot) : enqueue(c, slot);
  });
}

// The whole team: claims everything that has come. Returns how many slots were seen.
template <class P>
HOSTLESS_FN uint32_t claim_pending(Context<P>& c) {
  const uint64_t due = leader(c.p, [&] {
    uint64_t mask = 0;
    for (uint32_t f = 0; f < kFrontEnds; ++f) mask |= uint64_t{scan_due(c, f)} << f;
    return mask;
  });
  uint32_t seen = 0;
  for (uint32_t f = 0; f < kFrontEnds; ++f) {
    if (!(due >> f & 1)) continue;
    const uint32_t count = find_pending(c, f);
    for (uint32_t i = 0; i < count; ++i) claim(c, f, c.found_order[i]);
    seen += count;
  }
  return seen;
}

}  // namespace hostless
