// core.hpp: the scheduler (B1-B6, B8). Start here.
//
// One turn of the loop, by the whole team:
//
//   look      heartbeat, clock, command; has the step in flight landed?         core.hpp
//   land      take tokens, free lanes and pages, order stores                   landing.hpp
//   admit     queue head -> lane and pages, evict if decodes starve             admission.hpp, eviction.hpp
//   fly       choose the step, assemble its inputs, launch its graph            assembly.hpp
//   publish   while the step runs: show tokens and words to front ends          publish.hpp
//   tend      then: scan for prompts, honour cancels and ended leases, take
//             the agent's answers, admit early                                  claim.hpp, departures.hpp
//
// so everything that need not stand between two steps is hidden behind one.
//
// One request through the phases of state.hpp, and the slot words that front ends see (ring.hpp):
//
//   idle -> [expecting ->] waiting -> [loading ->] prefilling -> running -> idle
//              ^                        |            |  \-> starved -> running
//              +------- evicted --------+------------+---------/
#pragma once
#include "admission.hpp"
#include "assembly.hpp"
#include "departures.hpp"
#include "landing.hpp"
#include "tuning.hpp"

namespace hostless {

// What `look` saw: one of the first four, and flags.
struct Sky {
  static constexpr uint32_t clear = 0, flying = 1, landed = 2, overdue = 3, bits = 3;
  static constexpr uint32_t stops = 4;   // the host wants the loop to end
  static constexpr uint32_t failed = 8;  // the step that landed could not be computed
  static constexpr uint32_t spent = 16;  // the launch window; a fresh execution lands the step
};

// Thread 0.
template <class P>
HOSTLESS_FN uint32_t look_up(Context<P>& c) {
  CoreState& s = c.s;
  if (s.flight.kind == 0) return Sky::clear;
  if (c.p.step_done(c.engine.step, s.steps)) {
    s.event_count = 0;
    return c.p.load_relaxed(&c.engine.step.error) != 0 ? Sky::landed | Sky::failed : Sky::landed;
  }
  const uint64_t allowed = s.settings.watchdog_ns;
  return allowed != 0 && s.now_ns - s.flight.launched_ns > allowed ? Sky::overdue : Sky::flying;
}

// Thread 0.
template <class P>
HOSTLESS_FN uint32_t look(Context<P>& c) {
  CoreState& s = c.s;
  s.now_ns = c.p.clock_ns();
  const auto command = static_cast<Command>(c.p.command(s));
  if (s.mode == EngineState::starting) set_mode(c, EngineState::serving);
  if (s.mode == EngineState::serving && command != Command::run) set_mode(c, EngineState::draining);
  const uint32_t sky = look_up(c) | (command == Command::stop ? Sky::stops : 0);
  if (Tuning::hands_over_unlanded && (sky & ~Sky::failed) == Sky::landed && c.p.window_left() == 0)
    return sky | Sky::spent;
  return sky;
}

template <class P>
HOSTLESS_FN void set_gauges(Context<P>& c) {
  Counters& n = c.s.counters;
  set(c.p, n.waiting, c.s.waiting_count);
  set(c.p, n.loading, c.s.loading.count);
  set(c.p, n.expecting, c.s.expecting_count);
  set(c.p, n.prefilling, c.s.prefilling.count);
  set(c.p, n.running, c.s.running.count);
  set(c.p, n.starved, c.s.starved.count);
  set(c.p, n.free_lanes, c.s.free_lane_count);
  set(c.p, n.free_pages, c.s.free_page_count);
  set(c.p, n.orders_open, c.s.orders_reserved - c.s.orders_released);
  set(c.p, n.illegal_transitions, c.s.illegal_transitions);
}

// What need not stand between two steps. Returns how much it found to do.
template <class P>
HOSTLESS_FN uint32_t tend(Context<P>& c) {
  uint32_t found = claim_pending(c);
  const bool sweeps = leader(c.p, [&] {
    if (c.s.now_ns < c.s.next_sweep_ns) return false;
    c.s.next_sweep_ns = c.s.now_ns + c.s.settings.sweep_ns;
    c.p.store_relaxed(&c.ring.heartbeat, c.s.counters.turns);
    set_gauges(c);
    return true;
  });
  if (sweeps) {
    end_leases(c);
    found += sweep_cancels(c);
  }
  found += static_cast<uint32_t>(leader(c.p, [&] {
    const uint64_t released = c.s.orders_released;
    collect_orders(c);
    const uint32_t taken = take_loads(c);
    admit(c);
    return taken + (c.s.orders_released - released);
  }));
  publish(c);
  return found;
}

// With nothing in flight, or a step that has landed: launches the next one, if there is one.
template <class P>
HOSTLESS_FN uint32_t depart(Context<P>& c, uint32_t seen) {
  const auto next = static_cast<uint32_t>(leader(c.p, [&] {
    if ((seen & Sky::bits) == Sky::landed) settle_all(c, seen & Sky::failed);
    feed_starved(c);
    admit(c);
    const uint32_t chosen = choose_step(c);
    if (chosen == NextStep::prefill) board(c, StepKind::prefill);
    if (chosen == NextStep::decode) board(c, StepKind::decode);
    return chosen;
  }));
  if (next == NextStep::prefill) fly(c, StepKind::prefill);
  if (next == NextStep::decode) fly(c, StepKind::decode);
  return next;
}

// Ends everything, pending slots too, and says so in the ring.
template <class P>
HOSTLESS_FN Turn stop(Context<P>& c) {
  claim_pending(c);
  end_all(c, Finish::draining);
  lead(c.p, [&] {
    set_mode(c, EngineState::stopped);
    set_gauges(c);
  });
  return Turn::stopped;
}

// One turn of the loop. May be called again and again, by the same instance or by a fresh one (B4).
template <class P>
HOSTLESS_FN Turn turn(Context<P>& c) {
  const auto seen = static_cast<uint32_t>(leader(c.p, [&] { return look(c); }));
  const uint32_t sky = seen & Sky::bits;
  if (Tuning::hands_over_unlanded && (seen & Sky::spent)) {
    lead(c.p, [&] { bump(c.p, c.s.counters.relaunches); });
    return Turn::relaunch;
  }
  if (sky == Sky::overdue) fail(c);
  if (sky == Sky::landed) land(c, seen & Sky::failed);
  if ((seen & Sky::stops) && sky != Sky::flying) {
    if (sky == Sky::landed) lead(c.p, [&] { settle_all(c, seen & Sky::failed); });
    return stop(c);
  }
  const uint32_t departed = sky == Sky::flying ? NextStep::nothing : depart(c, seen);
  const bool launched = departed == NextStep::prefill || departed == NextStep::decode;
  if (sky == Sky::landed || departed != NextStep::nothing) publish(c);
  if (launched && c.s.flight.decodes != 0) grow_ahead(c);
  if (departed == NextStep::relaunch) {
    lead(c.p, [&] {
      if (sky == Sky::landed) account(c, seen & Sky::failed);
      bump(c.p, c.s.counters.relaunches);
    });
    return Turn::relaunch;
  }
  const uint32_t found = tend(c);
  return static_cast<Turn>(leader(c.p, [&] {
    bump(c.p, c.s.counters.turns);
    if (sky == Sky::landed) account(c, seen & Sky::failed);
    if (sky != Sky::flying || found != 0) set_gauges(c);
    if (c.s.flight.kind != 0) return Turn::flying;
    if (found != 0 || sky == Sky::landed || c.s.prefilling.count != 0) return Turn::progress;
    const uint32_t others = c.s.waiting_count + c.s.expecting_count + c.s.loading.count + c.s.starved.count;
    return others != 0 ? Turn::waiting : Turn::idle;
  }));
}

// The loop. Returns Turn::stopped, or Turn::relaunch when the launch window is spent: then a fresh
// instance calls it again and carries on (B4).
template <class P>
HOSTLESS_FN Turn run(Context<P>& c) {
  for (;;) {
    const Turn result = turn(c);
    if (result == Turn::stopped || result == Turn::relaunch) return result;
    c.p.rest(result);
  }
}

}  // namespace hostless
