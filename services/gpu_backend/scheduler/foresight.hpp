// foresight.hpp: the step after the one in flight, as it will be unless something comes between. Host code.
//
// For a loop on the host that queues a step before it has read the last one's tokens. It is a guess that the
// real step is compared with: stop tokens, cancels and new prompts make another one of it.
#pragma once
#include "context.hpp"
#include "sampling.hpp"

namespace hostless {

struct Foreseen {
  StepSequence sequence;
  uint32_t source;  // index in the step in flight of the sequence whose token comes first here; kNone: `token`
  uint32_t token;
};

// The step that follows is a decode, as far as can be told.
template <class P>
bool foresees_decode(const Context<P>& c) {
  const CoreState& s = c.s;
  if (s.flight.kind == 0) return false;
  const bool prefills = s.flight.kind == static_cast<uint32_t>(StepKind::prefill);
  const uint32_t whole = s.flight.samples - s.flight.decodes;  // prompts that are computed with this step
  const bool owed = prefills && s.settings.mixed_tokens == 0 && (s.settings.decode_between_chunks || whole > 0);
  return s.prefilling.count == whole || owed;
}

// Seats the lane's next token. False where its page is not there yet; true, and nothing seated, where it ends.
template <class P>
bool foresee_lane(const Context<P>& c, uint32_t lane, uint32_t source, uint32_t& count, Foreseen* out) {
  const Lane& l = c.lanes[lane];
  const Request& r = c.requests[l.slot];
  const bool flies = source != kNone;
  const uint32_t generated = r.generated + flies, position = r.computed + l.flying;
  if (generated == r.record.max_tokens || l.cancelled) return true;
  if (position / kPageTokens >= l.page_count) return false;
  const StepSequence q{lane,
                       count,
                       1,
                       position,
                       1,
                       r.record.temperature,
                       r.record.top_p,
                       r.record.top_k,
                       uniform(r.record.seed, generated),
                       l.slot,
                       r.record.generation,
                       hands_over(r)};
  out[count++] = Foreseen{q, source, r.last_token};
  return true;
}

// Between two turns. `out` has room for all lanes; returns how many sequences the next step has, 0 if it can't
// be told.
template <class P>
uint32_t foresee(const Context<P>& c, Foreseen* out) {
  if (!foresees_decode(c)) return 0;
  uint32_t count = 0;
  for (uint32_t i = 0; i < c.s.running.count; ++i) {
    const uint32_t lane = c.list(c.s.running)[i];
    if (c.lanes[lane].flying == 0 && !foresee_lane(c, lane, kNone, count, out)) return 0;
  }
  for (uint32_t i = 0; i < c.s.flight.sequences; ++i) {
    const uint32_t lane = c.flight_lanes[i];
    if (c.lanes[lane].sampled && !foresee_lane(c, lane, i, count, out)) return 0;
  }
  return count;
}

}  // namespace hostless
