// simulation.hpp: the loop. Whatever happens at one instant happens before rates are settled for the next.
#pragma once
#include "agents.hpp"
#include "decode.hpp"
#include "prefill.hpp"
#include "reading.hpp"

namespace hostless::sim {

class Simulation : public World {
 public:
  Simulation(const Config& settings, Trace turns, ChunkChooser choose)
      : reads(settings.series_s, settings.prefill_nodes + settings.decode_nodes) {
    config = settings;
    trace = std::move(turns);
    chunks.choose = std::move(choose);
    chunks.attention = Imbalance(settings.series_s);
    build(settings.prefill_nodes, settings.prefill_group, true, settings.prefill_kv_tokens);
    build(settings.decode_nodes, settings.decode_group, false, settings.decode_kv_tokens);
    for (auto* loads : {&load_requests, &load_tokens, &load_reads}) loads->resize(engines.size());
    load_changed.resize(engines.size());
    lanes.resize(engines.size() * kMotions);
  }

  // Runs until something is due after `until`, or everything is over. Returns whether anything is left to happen.
  bool advance(double until) {
    net.settle(now);
    for (;;) {
      const double next = std::min(events.empty() ? kUnlimited : events.next(), net.next());
      if (next > until || next == kUnlimited) {
        if (until != kUnlimited && until > now) now = until;
        return next != kUnlimited;
      }
      now = next;
      while (!events.empty() && events.next() <= now) happen(events.pop());
      while (net.next() <= now) arrive(net.next_flow());
      net.settle(now);
    }
  }

  // The first moment at which something happens; infinity when nothing will.
  double next() {
    net.settle(now);
    return std::min(events.empty() ? kUnlimited : events.next(), net.next());
  }

  // Of the hit, `near_tokens` come from the prefill engine's node and the rest from the decode engine's; what of either
  // part is held there is not read.
  void place(uint32_t id, uint32_t prefill, uint32_t decode, int32_t near_tokens, int32_t near_held, int32_t far_held) {
    Request& r = requests[id];
    if (near_held < 0 || far_held < 0 || near_held > near_tokens || far_held > r.cached - near_tokens)
      throw std::invalid_argument("more is held than there is of the hit");
    r.prefill = prefill;
    r.decode = decode;
    r.near_tokens = near_tokens;
    r.near_held = near_held;
    r.far_held = far_held;
    ledger.reused_tokens += static_cast<uint64_t>(near_held + far_held);
    r.placed = now;
    ++ledger.placed;
    load(prefill, 1, r.prompt, 0);
    load(decode, 1, r.prompt, 0);
    reading::ask(*this, id);
  }

  Agents agents;
  prefill::Chunks chunks;
  NodeSeries reads;

 private:
  void build(uint32_t count, uint32_t group_size, bool is_prefill, int64_t kv_tokens) {
    const uint32_t first = static_cast<uint32_t>(engines.size());
    for (uint32_t n = 0; n < count; ++n) {
      Node node;
      node.storage_in = net.add_link(config.storage_read);
      node.storage_out = net.add_link(config.storage_write);
      node.dram = net.add_link(config.dram);
      for (uint32_t i = 0; i < config.engines_per_node; ++i) {
        Engine engine;
        engine.node = static_cast<uint32_t>(nodes.size());
        engine.group = static_cast<uint32_t>(groups.size()) + (n * config.engines_per_node + i) / group_size;
        engine.nic_out = net.add_link(config.compute_nic);
        engine.nic_in = net.add_link(config.compute_nic);
        engine.hbm_free = kv_tokens;
        engines.push_back(std::move(engine));
      }
      nodes.push_back(std::move(node));
    }
    for (uint32_t e = first; e < engines.size(); ++e) {
      if (engines[e].group == groups.size()) {
        Group group;
        group.first = e;
        group.prefill = is_prefill;
        groups.push_back(std::move(group));
      }
      ++groups.back().count;
    }
  }

  void happen(const Event& event) {
    switch (event.kind) {
      case Timer::agent: agents::arrive(*this, agents, event.subject); break;
      case Timer::prefill_computed: prefill::computed(*this, event.subject); break;
      case Timer::prefill_step: prefill::step_over(*this, event.subject, chunks); break;
      case Timer::decode_step: decode::step_over(*this, event.subject); break;
    }
  }

  uint32_t engine_of(Motion motion, uint32_t subject) const {
    if (motion == Motion::persist) return subject;  // the request may be gone
    return motion == Motion::load || motion == Motion::push ? requests[subject].prefill : requests[subject].decode;
  }

  void arrive(uint32_t flow) {
    const double bytes = net.bytes(flow), began = net.began(flow);
    const uint64_t tag = net.finish(flow);
    const Motion motion = static_cast<Motion>(tag >> 32);
    const uint32_t subject = static_cast<uint32_t>(tag);
    ledger.bytes_moved[tag >> 32] += static_cast<uint64_t>(bytes);
    if (motion != Motion::read) next_in_lane(engine_of(motion, subject), motion);
    switch (motion) {
      case Motion::read:
        reads.add(began, now, engines[reading::reader(*this, subject)].node, bytes);
        reading::finished(*this, subject);
        break;
      case Motion::load: prefill::transfer_done(*this, engines[requests[subject].prefill].group); break;
      case Motion::push: prefill::pushed(*this, subject, chunks); break;
      case Motion::handover: decode::arrived_in_hbm(*this, subject); break;
      case Motion::evict:
      case Motion::persist: break;
    }
  }
};

inline void prefill_arrive(World& w, uint32_t id) {
  Simulation& simulation = static_cast<Simulation&>(w);
  Engine& engine = w.engines[w.requests[id].prefill];
  engine.waiting.push_back(id);
  prefill::start(w, engine.group, simulation.chunks);
}

inline void turn_over(World& w, uint32_t id) { agents::finish_turn(w, static_cast<Simulation&>(w).agents, id); }

}  // namespace hostless::sim
