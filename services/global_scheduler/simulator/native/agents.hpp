// agents.hpp: agents replay trajectories turn after turn; a finished turn's full blocks go to the store (D4).
#pragma once
#include "world.hpp"

namespace hostless::sim {

struct Agent {
  uint32_t turn = 0, end = 0;  // indices into the trace
};

struct Agents {
  std::vector<Agent> all;
  std::vector<double> finished;  // seconds, by agent
  std::vector<TurnRecord> records;
  size_t unfinished = 0;
};

namespace agents {

inline void add(World& w, Agents& agents, double start, uint32_t trajectory) {
  const uint32_t id = static_cast<uint32_t>(agents.all.size());
  agents.all.push_back({w.trace.begin[trajectory], w.trace.begin[trajectory + 1]});
  agents.finished.push_back(0);
  ++agents.unfinished;
  w.events.set(start + w.trace.pause[agents.all[id].turn], Timer::agent, id);
}

// The agent's next turn joins the arrivals, which wait for a placement round.
inline void arrive(World& w, Agents& agents, uint32_t agent) {
  uint32_t id;
  if (w.free_requests.empty()) {
    id = static_cast<uint32_t>(w.requests.size());
    w.requests.emplace_back();
  } else {
    id = w.free_requests.back();
    w.free_requests.pop_back();
  }
  const uint32_t turn = agents.all[agent].turn;
  Request r;
  r.agent = agent;
  r.turn = turn;
  r.prompt = w.trace.prompt[turn];
  r.cached = w.trace.cached[turn];
  r.output = w.trace.output[turn];
  r.arrived = w.now;
  w.requests[id] = r;
  w.arrivals.push_back(id);
  Ledger& ledger = w.ledger;
  ++ledger.arrived;
  ledger.hit_tokens += static_cast<uint64_t>(r.cached);
  ledger.prompt_tokens += static_cast<uint64_t>(r.prompt);
  ledger.asked_tokens += static_cast<uint64_t>(r.output);
  // The last token is never written to the KV cache.
  ledger.blocks_filled += static_cast<uint64_t>((r.prompt + r.output - 1) / w.config.block_tokens) -
                          static_cast<uint64_t>(r.cached / w.config.block_tokens);
}

inline void persist(World& w, uint32_t id) {
  const Request& r = w.requests[id];
  const Engine& engine = w.engines[r.decode];
  const Node& node = w.nodes[engine.node];
  const int32_t size = static_cast<int32_t>(w.config.block_tokens);
  const int32_t blocks = (r.prompt + r.output - 1) / size - r.cached / size;
  w.ledger.blocks_stored += static_cast<uint64_t>(blocks);
  w.move(Motion::persist, r.decode, r.decode, static_cast<int64_t>(blocks) * size,
         {{node.storage_out, 1}, {node.dram, 2}, {engine.nic_out, 1}, {engine.nic_in, 1}});
}

inline void finish_turn(World& w, Agents& agents, uint32_t id) {
  const Request& r = w.requests[id];
  const int32_t after_second = r.output - 2;
  const auto seconds = [](double x) { return static_cast<float>(x); };
  agents.records.push_back({r.agent, r.turn, seconds(r.arrived), seconds(r.placed - r.arrived),
                            seconds(r.read - r.placed), seconds(r.first - r.arrived),
                            r.output > 1 ? seconds(r.second - r.first) : -1.0F,
                            after_second > 0 ? seconds((w.now - r.second) / after_second) : -1.0F, seconds(w.now)});
  persist(w, id);
  ++w.ledger.generated_tokens;  // the first, which the prefill engine sampled
  ++w.ledger.finished;
  Agent& agent = agents.all[r.agent];
  if (++agent.turn < agent.end) {
    w.events.set(w.now + w.trace.pause[agent.turn], Timer::agent, r.agent);
  } else {
    agents.finished[r.agent] = w.now;
    --agents.unfinished;
  }
  w.free_requests.push_back(id);
}

}  // namespace agents
}  // namespace hostless::sim
