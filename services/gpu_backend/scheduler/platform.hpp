// platform.hpp: what the scheduler core asks of the world it runs in.
//
// The core is executed by a team of threads that walk through the same code together: 256 threads
// of one block on a GPU (B1), one thread on a host. A Platform is one of those threads:
//
//   thread(), threads()          its index in the team, and the team's size
//   barrier()                    all threads wait here; what they wrote is visible to each other afterwards
//   any(bool)                    barrier that tells all whether any thread said true
//   broadcast(u64)               barrier that gives all thread 0's value
//   fetch_add(u32*, n)           atomic within the team
//   load_acquire, load_relaxed, store_release, store_relaxed, compare_exchange
//                                atomic towards the front end, the agent and the engine (system scope)
//   doorbell(ring, f), lease(ring, f), orders_tail(agent), command(core)
//                                words that others write and every turn looks at. They may be seen a
//                                moment late, so that where they lie far away nobody waits for them
//   step_done(header, step)      whether the graph of this step is done; then what it wrote is there to
//                                load_relaxed
//   clock_ns()                   unix time
//   launch(graph, step)          starts a captured graph, fire-and-forget (B3)
//   window_left()                launches that this parent execution may still make (B4)
//   rest(turn)                   called between turns by `run`: backs off as `turn` tells
//
// Two rules keep the team together. Branches depend only on values that every thread sees alike.
// State is written either inside `leader` by thread 0, or inside `for_each` by the one thread that
// has the index.
#pragma once
#include "ring.hpp"

namespace hostless {

// What a turn of the loop came to.
enum class Turn : uint32_t {
  progress = 0,  // something happened: turn again at once
  flying = 1,    // a step is in flight
  waiting = 2,   // requests are held, but all wait for the KV agent
  idle = 3,      // nothing to do
  relaunch = 4,  // the launch window is spent: call `run` again in a new parent execution
  stopped = 5,   // by command; every request has ended
};

// Thread 0 decides, all learn the result.
template <class P, class F>
HOSTLESS_FN uint64_t leader(P& p, F decide) {
  uint64_t value = 0;
  if (p.thread() == 0) value = static_cast<uint64_t>(decide());
  return p.broadcast(value);
}

// Thread 0 acts, all see what it did.
template <class P, class F>
HOSTLESS_FN void lead(P& p, F act) {
  if (p.thread() == 0) act();
  p.barrier();
}

// The team shares the indices [0, count); all are done when it returns.
template <class P, class F>
HOSTLESS_FN void for_each(P& p, uint32_t count, F act) {
  for (uint32_t i = p.thread(); i < count; i += p.threads()) act(i);
  p.barrier();
}

// Counters and gauges have one writer, thread 0, and readers anywhere.
template <class P>
HOSTLESS_FN void set(P& p, uint64_t& counter, uint64_t value) {
  p.store_relaxed(&counter, value);
}
template <class P>
HOSTLESS_FN void bump(P& p, uint64_t& counter, uint64_t by = 1) {
  p.store_relaxed(&counter, counter + by);
}

}  // namespace hostless
