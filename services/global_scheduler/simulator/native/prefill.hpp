// prefill.hpp: prefill engines of a group step together: chunks by quota (D13), layers loaded while others are
// computed (D6), results pushed to the decode engine's DRAM (D1, D2). Without layerwise prefill a step first loads
// whole contexts into HBM, then computes, and HBM holds them until they have been pushed.
#pragma once
#include <functional>

#include "series.hpp"
#include "world.hpp"

namespace hostless::sim {

void decode_arrive(World& w, uint32_t request);  // decode.hpp: the whole prompt's KV is in the decode engine's DRAM

// D13: how many tokens of each waiting request, in order, an engine takes into its next step: at most as many
// answers as requests, each positive; only the last may be less than what the request wants.
using ChunkChooser =
    std::function<std::vector<int32_t>(const std::vector<int32_t>& cached, const std::vector<int32_t>& wanted)>;

namespace prefill {

constexpr size_t kLooked = 64;  // waiting requests that D13 is shown

struct Chunks {
  ChunkChooser choose;
  Imbalance attention;
  std::vector<int32_t> cached, wanted;
};

inline double attention_s(const PrefillCost& cost, int32_t have, int32_t chunk) {
  const double context = have + 0.5 * chunk;
  return chunk * (cost.pair_s * context + cost.selected_s * std::min(context, cost.selected));
}

inline void push(World& w, uint32_t id, int32_t tokens) {
  Request& r = w.requests[id];
  const Engine &from = w.engines[r.prefill], &to = w.engines[r.decode];
  if (w.move(Motion::push, id, r.prefill, tokens, {{from.nic_out, 1}, {to.nic_in, 1}, {w.nodes[to.node].dram, 1}}))
    ++r.pushes;
}

// From either side's DRAM into prefill HBM; the group's step waits for it. What was read here (D1) goes on to the
// decode engine's DRAM the first time, layer by layer, so both legs move at one pace.
inline void load(World& w, Group& group, uint32_t id, int32_t near, int32_t far, bool onward) {
  const Request& r = w.requests[id];
  const Engine &here = w.engines[r.prefill], &there = w.engines[r.decode];
  const uint32_t near_dram = w.nodes[here.node].dram, far_dram = w.nodes[there.node].dram;
  if (onward)
    group.flows += w.move(Motion::load, id, r.prefill, near,
                          {{near_dram, 1}, {here.nic_out, 2}, {here.nic_in, 1}, {there.nic_in, 1}, {far_dram, 1}});
  else
    group.flows += w.move(Motion::load, id, r.prefill, near, {{near_dram, 1}, {here.nic_out, 1}, {here.nic_in, 1}});
  group.flows += w.move(Motion::load, id, r.prefill, far, {{far_dram, 1}, {there.nic_out, 1}, {here.nic_in, 1}});
}

// Puts the chunk of one request into the running step.
inline void take(World& w, Group& group, Engine& engine, uint32_t id, int32_t chunk) {
  Request& r = w.requests[id];
  r.chunk = chunk;
  engine.batch.push_back(id);
  ++w.ledger.chunks;
  if (w.config.layerwise) {
    load(w, group, id, r.near_tokens, r.cached - r.near_tokens + r.computed, r.computed == 0);
    const uint32_t before = r.pushes;
    push(w, id, chunk);
    group.flows += r.pushes - before;
  } else if (!r.in_hbm) {
    r.in_hbm = true;
    engine.hbm_free -= r.prompt;
    load(w, group, id, r.near_tokens, r.cached - r.near_tokens, false);
  }
}

// Fills an engine's part of the next step; returns its tokens.
inline int32_t plan(World& w, Group& group, Engine& engine, Chunks& chunks) {
  chunks.cached.clear();
  chunks.wanted.clear();
  int64_t room = engine.hbm_free;
  for (size_t i = 0; i < std::min(engine.waiting.size(), kLooked); ++i) {
    const Request& r = w.requests[engine.waiting[i]];
    if (!w.config.layerwise && !r.in_hbm && (room -= r.prompt) < 0) break;
    chunks.cached.push_back(r.cached + r.computed);
    chunks.wanted.push_back(r.miss() - r.computed);
  }
  engine.attention = 0;
  if (chunks.wanted.empty()) return 0;
  const std::vector<int32_t> taken = chunks.choose(chunks.cached, chunks.wanted);
  if (taken.empty() || taken.size() > chunks.wanted.size()) throw std::logic_error("a step must take something");
  int32_t tokens = 0;
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i] <= 0 || taken[i] > chunks.wanted[i]) throw std::logic_error("a chunk is not within its request");
    take(w, group, engine, engine.waiting[i], taken[i]);
    engine.attention += attention_s(w.config.prefill, chunks.cached[i], taken[i]);
    tokens += taken[i];
  }
  return tokens;
}

inline void transfers_done(World& w, uint32_t id);

inline void compute(World& w, uint32_t id) {
  Group& group = w.groups[id];
  group.loading = false;
  w.events.set(w.now + group.compute_s, Timer::prefill_computed, id);
}

// Starts the group's next step if any of its engines has something to do.
inline void start(World& w, uint32_t id, Chunks& chunks) {
  Group& group = w.groups[id];
  if (group.stepping) return;
  const PrefillCost& cost = w.config.prefill;
  group.flows = 0;
  double slowest = 0, most = 0, sum = 0;
  int64_t tokens = 0;
  for (uint32_t e = group.first; e < group.first + group.count; ++e) {
    Engine& engine = w.engines[e];
    const int32_t own = plan(w, group, engine, chunks);
    tokens += own;
    slowest = std::max(slowest, engine.attention + own * cost.engine_token_s);
    most = std::max(most, engine.attention);
    sum += engine.attention;
  }
  if (tokens == 0) return;
  const double even = static_cast<double>(tokens) / group.count * cost.group_token_s;
  group.compute_s = cost.step_s + std::max(cost.weight_s, slowest + even);
  group.stepping = true;
  group.computed = false;
  group.began = group.moved = w.now;
  ++w.ledger.prefill_steps;
  w.ledger.prefill_compute_s += group.compute_s;
  chunks.attention.add(w.now, most, sum / group.count);
  group.loading = !w.config.layerwise && group.flows > 0;
  if (!group.loading) compute(w, id);
}

// Compute and transfers overlap but for the one layer that the shorter of them can't hide.
inline void close(World& w, uint32_t id) {
  Group& group = w.groups[id];
  if (!group.computed || group.flows > 0) return;
  const double moving = group.moved - group.began;
  const double exposed = w.config.layerwise ? std::min(group.compute_s, moving) / w.config.layers : 0;
  w.events.set(w.now + exposed, Timer::prefill_step, id);
}

inline void computed(World& w, uint32_t id) {
  w.groups[id].computed = true;
  close(w, id);
}

inline void transfer_done(World& w, uint32_t id) {
  Group& group = w.groups[id];
  group.moved = w.now;
  if (--group.flows > 0) return;
  group.loading ? compute(w, id) : close(w, id);
}

inline void pass_on(World& w, uint32_t id) {
  Request& r = w.requests[id];
  if (r.in_hbm) w.engines[r.prefill].hbm_free += r.prompt;
  r.in_hbm = false;
  decode_arrive(w, id);
}

inline void pushed(World& w, uint32_t id, Chunks& chunks) {
  Request& r = w.requests[id];
  const uint32_t group = w.engines[r.prefill].group;
  const bool last = --r.pushes == 0 && r.computed == r.miss();
  if (last) pass_on(w, id);
  if (w.config.layerwise)
    transfer_done(w, group);
  else if (last)
    start(w, group, chunks);
}

inline void step_over(World& w, uint32_t id, Chunks& chunks) {
  Group& group = w.groups[id];
  group.stepping = false;
  w.ledger.prefill_step_s += w.now - group.began;
  for (uint32_t e = group.first; e < group.first + group.count; ++e) {
    Engine& engine = w.engines[e];
    for (uint32_t request : engine.batch) {
      Request& r = w.requests[request];
      r.computed += r.chunk;
      w.ledger.computed_tokens += static_cast<uint64_t>(r.chunk);
      if (r.computed < r.miss()) continue;
      engine.waiting.pop_front();  // chunks are taken in order, so whoever is complete is in front
      r.first = w.now;
      r.decoded = 1;
      w.load(e, -1, -r.prompt, 0);
      if (!w.config.layerwise) push(w, request, r.prompt);
      if (r.pushes == 0) pass_on(w, request);
    }
    engine.batch.clear();
  }
  start(w, id, chunks);
}

}  // namespace prefill
}  // namespace hostless::sim
