// assembly.hpp: which step comes next, its inputs, and its launch (B3, B6, B8).
//
// A prefill step pauses the decodes; it is taken when (B6) a prefill is pending, it has a lane and
// pages (admission gave them, counting those freed by the step that just ended), and the launch
// window has room for the prefill and the decode that resumes after it. Decodes never wait for more
// than one prefill step, except, where so set, for the further chunks of one prompt.
//
// Or, where mixed_tokens says how large such a step may be, decodes never wait: all that run take part in
// the prefill step, behind the prompts, with one token each.
#pragma once
#include "chunks.hpp"
#include "publish.hpp"
#include "sampling.hpp"

namespace hostless {

struct NextStep {
  static constexpr uint32_t nothing = 0, prefill = 1, decode = 2, relaunch = 3;
};

// Thread 0.
template <class P>
HOSTLESS_FN uint32_t choose_step(Context<P>& c) {
  const bool prefills = c.s.prefilling.count > 0;
  const bool decodes = c.s.running.count > 0;
  if (!prefills && !decodes) return NextStep::nothing;
  const uint32_t window = c.p.window_left();
  if (window == 0) return NextStep::relaunch;
  if (!decodes) return NextStep::prefill;
  const bool enters = c.s.settings.mixed_tokens != 0 || (!c.s.decode_owed && window >= 2);
  return prefills && enters ? NextStep::prefill : NextStep::decode;
}

// Sequence `index` of the step computes `count` tokens of the lane, placed from `token_begin` on.
template <class P>
HOSTLESS_FN void seat(Context<P>& c, uint32_t index, uint32_t lane, uint32_t token_begin, uint32_t count) {
  Lane& l = c.lanes[lane];
  const Request& r = c.requests[l.slot];
  StepSequence& q = c.sequences[index];
  const uint32_t sampled = r.computed + count == total_tokens(r);
  q = StepSequence{lane,
                   token_begin,
                   count,
                   r.computed,
                   sampled,
                   r.record.temperature,
                   r.record.top_p,
                   r.record.top_k,
                   uniform(r.record.seed, r.generated),
                   l.slot,
                   r.record.generation,
                   hands_over(r)};
  l.flying = count;
  l.sampled = sampled;
  c.flight_lanes[index] = lane;
}

// What the step that boards has left for prompts beside its decodes.
template <class P>
HOSTLESS_FN PromptRoom prompt_room(const Context<P>& c) {
  const Settings& g = c.s.settings;
  const uint32_t decodes = c.s.flight.decodes;
  uint32_t tokens = decodes != 0 ? g.mixed_tokens - decodes : g.step_tokens;
  if (g.prefill_chunk != 0 && g.prefill_chunk < tokens) tokens = g.prefill_chunk;
  const bool whole = g.prefill_chunk == 0 && g.attention_quota_fs == 0 && decodes == 0;
  return {tokens, g.attention_quota_fs, whole};
}

// Thread 0: seats prompts, or chunks of them, in order of arrival, while they fit.
template <class P>
HOSTLESS_FN void seat_prefills(Context<P>& c) {
  const uint32_t* lanes = c.list(c.s.prefilling);
  Flight& flight = c.s.flight;
  PromptRoom room = prompt_room(c);
  for (uint32_t i = 0; i < c.s.prefilling.count; ++i) {
    Request& r = c.requests[c.lanes[lanes[i]].slot];
    const uint32_t left = total_tokens(r) - r.computed, count = room.take(c.s.settings, r.computed, left);
    if (count == 0) break;
    seat(c, i, lanes[i], flight.tokens, count);
    if (r.report.prefill_ns == 0) r.report.prefill_ns = c.s.now_ns;
    ++r.report.prefill_chunks;
    flight.tokens += count;
    flight.samples += c.lanes[lanes[i]].sampled;
    ++flight.sequences;
    if (count < left) break;
  }
}

// Thread 0: who flies in the step that was chosen.
template <class P>
HOSTLESS_FN void board(Context<P>& c, StepKind kind) {
  CoreState& s = c.s;
  const bool prefills = kind == StepKind::prefill;
  const uint32_t decodes = prefills && s.settings.mixed_tokens == 0 ? 0 : s.running.count;
  s.flight = Flight{static_cast<uint32_t>(kind), 0, 0, 0, decodes, 0, s.now_ns};
  if (prefills) seat_prefills(c);
  s.flight.sequences += decodes;
  s.flight.tokens += decodes;
  s.flight.samples += decodes;
  if (decodes != 0) s.decode_owed = 0;
  if (decodes != s.running.count) bump(c.p, s.counters.pauses);
}

// Pauses or resumes a running sequence: a state only, the work is in the choice of the step.
template <class P>
HOSTLESS_FN void set_running(Context<P>& c, uint32_t lane, SlotState state) {
  const uint32_t slot = c.lanes[lane].slot;
  if (c.requests[slot].state != state) announce(c, slot, state);
}

// By the one thread that has the decode: the last token of a sequence that runs.
template <class P>
HOSTLESS_FN void seat_decode(Context<P>& c, uint32_t index, uint32_t lane, uint32_t token_begin) {
  seat(c, index, lane, token_begin, 1);
  c.tokens[token_begin] = c.requests[c.lanes[lane].slot].last_token;  // whoever runs has sampled one
  set_running(c, lane, SlotState::decode_processing);
}

// The whole team: the prompts' tokens, the decodes behind them, padding; and the pause of decodes that don't fly.
template <class P>
HOSTLESS_FN void assemble(Context<P>& c) {
  const Flight flight = c.s.flight;
  const uint32_t prompts = flight.sequences - flight.decodes, first_token = flight.tokens - flight.decodes;
  for (uint32_t i = 0; i < prompts; ++i) {
    const StepSequence& q = c.sequences[i];
    const Request& r = c.requests[q.slot];
    for (uint32_t t = c.p.thread(); t < q.token_count; t += c.p.threads())
      c.tokens[q.token_begin + t] = token_at(c, r, q.position + t);
  }
  for_each(c.p, c.s.settings.lanes, [&](uint32_t i) {
    if (i >= flight.sequences) c.sequences[i].token_count = 0;
    if (i >= c.s.running.count) return;
    const uint32_t lane = c.list(c.s.running)[i];
    if (i < flight.decodes) return seat_decode(c, prompts + i, lane, first_token + i);
    set_running(c, lane, SlotState::decode_paused);
  });
}

// The whole team: assembles the step and launches the smallest captured graph that holds it.
template <class P>
HOSTLESS_FN void fly(Context<P>& c, StepKind kind) {
  assemble(c);
  lead(c.p, [&] {
    const Flight& flight = c.s.flight;
    StepHeader& step = c.engine.step;
    step.step = ++c.s.steps;
    step.kind = flight.kind;
    step.sequence_count = flight.sequences;
    step.token_count = flight.tokens;
    step.graph = kind == StepKind::prefill ? c.prefill_graphs[flight.tokens] : c.decode_graphs[flight.sequences];
    c.p.store_relaxed(&step.error, 0u);
    c.p.launch(step.graph, step.step);
    bump(c.p, kind == StepKind::prefill ? c.s.counters.prefill_launches : c.s.counters.decode_launches);
    if (flight.decodes != 0 && flight.decodes != flight.sequences) bump(c.p, c.s.counters.mixed_launches);
  });
}

}  // namespace hostless
