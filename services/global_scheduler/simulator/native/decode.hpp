// decode.hpp: decode engines of a group step together; a request enters when HBM has room for it and its KV has been
// copied there (D3), grows by a token a step, and is preempted, the last to join first, when HBM runs out.
#pragma once
#include "world.hpp"

namespace hostless::sim {

void turn_over(World& w, uint32_t request);  // agents.hpp

namespace decode {

inline void copy(World& w, Motion motion, uint32_t id) {
  const Request& r = w.requests[id];
  const Engine& engine = w.engines[r.decode];
  const Use way[] = {{w.nodes[engine.node].dram, 1}, {engine.nic_out, 1}, {engine.nic_in, 1}};
  const bool moves = w.move(motion, id, r.decode, r.context(), {way[0], way[1], way[2]});
  if (!moves && motion == Motion::handover) w.engines[r.decode].joining.push_back(id);
}

inline void start(World& w, uint32_t id) {
  Group& group = w.groups[id];
  if (group.stepping) return;
  const DecodeCost& cost = w.config.decode;
  double slowest = 0;
  size_t running = 0;
  for (uint32_t e = group.first; e < group.first + group.count; ++e) {
    Engine& engine = w.engines[e];
    for (uint32_t request : engine.joining) {
      engine.batch.push_back(request);
      engine.context += w.requests[request].context();
    }
    engine.joining.clear();
    const double batch = static_cast<double>(engine.batch.size()), context = static_cast<double>(engine.context);
    running += engine.batch.size();
    slowest = std::max(slowest, batch * cost.engine_token_s + context * cost.context_s +
                                    std::min(context, batch * cost.selected) * cost.selected_s);
  }
  if (running == 0) return;
  group.stepping = true;
  ++w.ledger.decode_steps;
  const double even = static_cast<double>(running) / group.count * cost.group_token_s;
  w.events.set(w.now + cost.step_s + std::max(cost.weight_s, even) + slowest, Timer::decode_step, id);
}

inline void admit(World& w, uint32_t id) {
  Engine& engine = w.engines[id];
  while (!engine.waiting.empty()) {
    const uint32_t request = engine.waiting.front();
    const int32_t context = w.requests[request].context();
    if (engine.hbm_free < context + 1) return;
    engine.waiting.pop_front();
    engine.hbm_free -= context;
    w.load(id, 0, 0, 0);
    copy(w, Motion::handover, request);
  }
}

inline void arrived_in_hbm(World& w, uint32_t id) {
  const uint32_t engine = w.requests[id].decode;
  w.engines[engine].joining.push_back(id);
  start(w, w.engines[engine].group);
}

inline void give_back(Engine& engine, const Request& r) {
  engine.context -= r.context();
  engine.hbm_free += r.context();
}

// An engine always keeps one request: the policy places none that is too large to run alone.
inline void preempt(World& w, Engine& engine) {
  while (engine.hbm_free < 0 && engine.batch.size() > 1) {
    const uint32_t id = engine.batch.back();
    engine.batch.pop_back();
    give_back(engine, w.requests[id]);
    engine.waiting.push_front(id);
    copy(w, Motion::evict, id);
    ++w.ledger.preemptions;
  }
}

// A token for each; answers that became complete leave the batch and are gathered in `done`.
inline void decode_token(World& w, Engine& engine, std::vector<uint32_t>& done) {
  const int64_t batch = static_cast<int64_t>(engine.batch.size());
  engine.context += batch;
  engine.hbm_free -= batch;
  w.ledger.generated_tokens += static_cast<uint64_t>(batch);
  const size_t before = done.size();
  for (uint32_t request : engine.batch) {
    Request& r = w.requests[request];
    if (++r.decoded == 2) r.second = w.now;
    if (r.decoded == r.output) done.push_back(request);
  }
  if (done.size() == before) return;
  std::erase_if(engine.batch,
                [&w](uint32_t request) { return w.requests[request].decoded == w.requests[request].output; });
  for (size_t i = before; i < done.size(); ++i) give_back(engine, w.requests[done[i]]);
}

inline void step_over(World& w, uint32_t id) {
  Group& group = w.groups[id];
  group.stepping = false;
  w.done.clear();
  for (uint32_t e = group.first; e < group.first + group.count; ++e)
    if (!w.engines[e].batch.empty()) decode_token(w, w.engines[e], w.done);
  for (uint32_t request : w.done) {
    const Request& r = w.requests[request];
    w.load(r.decode, -1, -r.prompt, 0);
    turn_over(w, request);
  }
  for (uint32_t e = group.first; e < group.first + group.count; ++e) {
    preempt(w, w.engines[e]);
    admit(w, e);
  }
  start(w, id);
}

}  // namespace decode

inline void decode_arrive(World& w, uint32_t id) {
  Request& r = w.requests[id];
  if (r.output == 1) {
    w.load(r.decode, -1, -r.prompt, 0);
    turn_over(w, id);
    return;
  }
  w.engines[r.decode].waiting.push_back(id);
  decode::admit(w, r.decode);
  decode::start(w, w.engines[r.decode].group);
}

}  // namespace hostless::sim
