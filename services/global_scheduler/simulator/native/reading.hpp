// reading.hpp: hits come from the store into DRAM, a node's reads in order of arrival, a few at a time (D1, D2, D9).
#pragma once
#include "world.hpp"

namespace hostless::sim {

void prefill_arrive(World& w, uint32_t request);  // prefill.hpp: the whole hit is in DRAM

namespace reading {

constexpr uint32_t kNear = 1u << 31;  // part of a flow's subject: read on the prefill engine's node

inline uint32_t reader(const World& w, uint32_t subject) {
  const Request& r = w.requests[subject & ~kNear];
  return subject & kNear ? r.prefill : r.decode;
}

inline int32_t part(const World& w, uint32_t subject) {
  const Request& r = w.requests[subject & ~kNear];
  return subject & kNear ? r.near_tokens - r.near_held : r.cached - r.near_tokens - r.far_held;
}

void finished(World& w, uint32_t subject);

inline void start(World& w, uint32_t node_id) {
  Node& node = w.nodes[node_id];
  while (node.reading < w.config.reads_in_flight && !node.queue.empty()) {
    const uint32_t subject = static_cast<uint32_t>(node.queue.front());
    node.queue.pop_front();
    ++node.reading;
    const bool moves =
        w.move(Motion::read, subject, reader(w, subject), part(w, subject), {{node.storage_in, 1}, {node.dram, 1}});
    if (!moves) finished(w, subject);
  }
}

// Queues both parts of a request's hit; without a hit the request is ready at once.
inline void ask(World& w, uint32_t id) {
  Request& r = w.requests[id];
  const uint32_t sides[] = {id | kNear, id};
  for (uint32_t side : sides) r.reads += part(w, side) > 0;
  if (r.reads == 0) {
    r.read = w.now;
    prefill_arrive(w, id);
    return;
  }
  const uint32_t places[] = {w.engines[r.prefill].node, w.engines[r.decode].node};
  for (int i = 0; i < 2; ++i) {
    if (part(w, sides[i]) == 0) continue;
    w.load(reader(w, sides[i]), 0, 0, part(w, sides[i]));
    w.nodes[places[i]].queue.push_back(sides[i]);
  }
  for (uint32_t place : places) start(w, place);
}

inline void finished(World& w, uint32_t subject) {
  const uint32_t id = subject & ~kNear, engine = reader(w, subject);
  Request& r = w.requests[id];
  Node& node = w.nodes[w.engines[engine].node];
  --node.reading;
  w.load(engine, 0, 0, -part(w, subject));
  w.ledger.read_tokens += static_cast<uint64_t>(part(w, subject));
  if (--r.reads == 0) {
    r.read = w.now;
    prefill_arrive(w, id);
  }
  start(w, w.engines[engine].node);
}

}  // namespace reading
}  // namespace hostless::sim
