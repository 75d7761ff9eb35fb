// departures.hpp: requests that end from outside: by their cancel flag, their front end's lease, the
// engine's stop or its failure. A request in the step in flight ends when the step lands.
#pragma once
#include "claim.hpp"

namespace hostless {

// The team notes the cancel flags of the step in flight, for its landing.
template <class P>
HOSTLESS_FN void note_cancels(Context<P>& c) {
  if (c.s.flight.kind == 0) return;
  for_each(c.p, c.s.flight.sequences, [&](uint32_t i) {
    Lane& lane = c.lanes[c.flight_lanes[i]];
    if (cancel_asked(c, lane.slot)) lane.cancelled = 1;
  });
}

// Honours cancel flags: at once where the request is not in the step in flight.
template <class P>
HOSTLESS_FN uint32_t sweep_cancels(Context<P>& c) {
  note_cancels(c);
  const bool any = leader(c.p, [&] {
    const CoreState& s = c.s;
    const uint32_t flying = s.flight.kind ? s.flight.sequences : 0;
    const uint32_t elsewhere = s.waiting_count + s.expecting_count + s.loading.count;
    return elsewhere + s.prefilling.count + s.running.count + s.starved.count > flying;
  });
  if (!any) return 0;
  return end_chosen(c, 0, c.s.settings.slots, Finish::cancelled, [&](uint32_t slot) { return cancel_asked(c, slot); });
}

// By the one thread that has the slot: whatever a vanished front end left behind, the slot is empty
// now, with its generation kept.
template <class P>
HOSTLESS_FN void clear_slot(Context<P>& c, uint32_t slot) {
  const uint64_t word = c.p.load_acquire(&c.words[slot]);
  const uint32_t generation = word_generation(word);
  if (word_state(word) == SlotState::empty) return;
  if (word_state(word) != SlotState::decode_completed)
    c.p.store_release(&c.words[slot], slot_word(SlotState::decode_completed, Finish::cancelled, generation, 0));
  c.p.store_release(&c.words[slot], slot_word(SlotState::empty, Finish::none, generation, 0));
}

// Cancels what an ended lease still runs; when nothing is left, empties its slots and frees its place.
template <class P>
HOSTLESS_FN void end_lease(Context<P>& c, uint32_t f) {
  const auto holds = static_cast<uint32_t>(leader(c.p, [&] {
    if (lease_state(c, f) != LeaseState::ended) return 2u;  // what `lease` told was over already
    c.s.front_ends[f].lease = lease_ranges(c, f);
    return uint32_t{lease_holds(c.s.settings, c.s.front_ends[f].lease)};
  }));
  if (holds == 2) return;
  const FrontEndLease lease = c.s.front_ends[f].lease;
  if (holds) {
    end_chosen(c, lease.slot_begin, lease.slot_count, Finish::cancelled, [](uint32_t) { return true; });
    bool runs = false;
    for (uint32_t i = c.p.thread(); i < lease.slot_count; i += c.p.threads()) {
      const uint32_t slot = lease.slot_begin + i;
      if (c.phases[slot] == Phase::idle) continue;
      runs = true;  // in the step in flight
      c.lanes[c.requests[slot].lane].cancelled = 1;
    }
    if (c.p.any(runs)) return;
    publish(c);  // nothing may be written to these slots once they are empty
    for_each(c.p, lease.slot_count, [&](uint32_t i) { clear_slot(c, lease.slot_begin + i); });
  }
  lead(c.p, [&] {
    c.s.front_ends[f] = FrontEndScan{};
    c.p.store_relaxed(&c.ring.doorbells[f], uint64_t{0});
    c.p.store_release(&c.ring.leases[f].active, static_cast<uint32_t>(LeaseState::free));
  });
}

template <class P>
HOSTLESS_FN void end_leases(Context<P>& c) {
  const uint64_t ended = leader(c.p, [&] {
    uint64_t mask = 0;
    for (uint32_t f = 0; f < kFrontEnds; ++f)
      mask |= uint64_t{c.p.lease(c.ring, f) == static_cast<uint32_t>(LeaseState::ended)} << f;
    return mask;
  });
  for (uint32_t f = 0; f < kFrontEnds; ++f)
    if (ended >> f & 1) end_lease(c, f);
}

// With nothing in flight.
template <class P>
HOSTLESS_FN void end_all(Context<P>& c, Finish finish) {
  end_chosen(c, 0, c.s.settings.slots, finish, [](uint32_t) { return true; });
  publish(c);
}

template <class P>
HOSTLESS_FN void set_mode(Context<P>& c, EngineState mode) {
  c.s.mode = mode;
  c.p.store_release(&c.ring.engine_state, static_cast<uint32_t>(mode));
}

// The step in flight is overdue: nothing is launched any more, and every request, now and later,
// ends with engine_error. A late completion finds nothing to complete.
template <class P>
HOSTLESS_FN void fail(Context<P>& c) {
  lead(c.p, [&] {
    set_mode(c, EngineState::failed);
    for (uint32_t i = 0; i < c.s.flight.sequences; ++i) c.lanes[c.flight_lanes[i]].flying = 0;
    c.s.flight.kind = 0;
  });
  end_all(c, Finish::engine_error);
}

}  // namespace hostless
