// context.hpp: the three memories, seen by one thread of the team.
//
//   core    CoreState and its arrays, private to the scheduler; its first hot_bytes may be a memory apart
//   ring    shared with front ends (ring.hpp): believe nothing read from it before it is checked
//   engine  shared with graphs and the KV agent (step.hpp)
//   agent   the KV agent's part of engine memory, where that is a memory of its own: same layout
#pragma once
#include "platform.hpp"
#include "state.hpp"

namespace hostless {

template <class P>
struct Context {
  P& p;
  CoreState& s;
  // core
  Request* requests;
  Phase* phases;
  Lane* lanes;
  uint32_t *free_lanes, *flight_lanes, *page_refs, *free_pages;
  uint32_t *events, *announced, *expecting, *found, *found_sequences, *found_order;
  uint32_t *decode_graphs, *prefill_graphs, *graph_sizes;
  // ring
  RingHeader& ring;
  uint64_t* words;
  uint32_t* cancels;
  RequestRecord* records;
  SlotReport* reports;
  uint32_t *prompt, *token;
  // engine
  EngineMemory& engine;
  StepSequence* sequences;
  uint32_t *tokens, *out_tokens, *block_tables;
  // agent
  EngineMemory& agent;
  uint64_t *layers_ready, *load_done;
  KvOrder* orders;

  HOSTLESS_FN uint32_t* list(const LaneList& l) const { return at<uint32_t>(&s, l.offset); }
  HOSTLESS_FN uint32_t* block_table(uint32_t lane) const {
    return block_tables + uint64_t{lane} * s.settings.lane_pages;
  }
  HOSTLESS_FN KvOrder& order(uint64_t index) const { return orders[index & (s.settings.order_capacity - 1)]; }

  template <class T>
  HOSTLESS_FN static T* at(void* base, uint64_t offset) {
    return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
  }

  // The ring's geometry comes from the settings, never from its header, which front ends can write.
  HOSTLESS_FN Context(P& platform, void* core, void* ring_memory, void* engine_memory)
      : Context(platform, core, core, ring_memory, engine_memory, engine_memory) {}
  HOSTLESS_FN Context(P& platform, void* hot, void* core, void* ring_memory, void* engine_memory, void* agent_memory)
      : p(platform),
        s(*static_cast<CoreState*>(hot)),
        ring(*static_cast<RingHeader*>(ring_memory)),
        engine(*static_cast<EngineMemory*>(engine_memory)),
        agent(*static_cast<EngineMemory*>(agent_memory)) {
    requests = at<Request>(core, s.requests_offset);
    phases = at<Phase>(core, s.phases_offset);
    lanes = at<Lane>(hot, s.lanes_offset);
    free_lanes = at<uint32_t>(hot, s.free_lanes_offset);
    flight_lanes = at<uint32_t>(hot, s.flight_lanes_offset);
    page_refs = at<uint32_t>(core, s.page_refs_offset);
    free_pages = at<uint32_t>(core, s.free_pages_offset);
    events = at<uint32_t>(core, s.events_offset);
    announced = at<uint32_t>(core, s.announced_offset);
    expecting = at<uint32_t>(core, s.expecting_offset);
    found = at<uint32_t>(core, s.found_offset);
    found_sequences = at<uint32_t>(core, s.found_sequences_offset);
    found_order = at<uint32_t>(core, s.found_order_offset);
    decode_graphs = at<uint32_t>(hot, s.decode_graphs_offset);
    prefill_graphs = at<uint32_t>(core, s.prefill_graphs_offset);
    graph_sizes = at<uint32_t>(core, s.graph_sizes_offset);

    RingHeader geometry{};
    lay_out(geometry, RingGeometry{s.settings.slots, s.settings.prompt_words, s.settings.token_words});
    words = at<uint64_t>(ring_memory, geometry.words_offset);
    cancels = at<uint32_t>(ring_memory, geometry.cancels_offset);
    records = at<RequestRecord>(ring_memory, geometry.records_offset);
    reports = at<SlotReport>(ring_memory, geometry.reports_offset);
    prompt = at<uint32_t>(ring_memory, geometry.prompt_offset);
    token = at<uint32_t>(ring_memory, geometry.token_offset);

    sequences = at<StepSequence>(engine_memory, engine.sequences_offset);
    tokens = at<uint32_t>(engine_memory, engine.tokens_offset);
    out_tokens = at<uint32_t>(engine_memory, engine.out_tokens_offset);
    block_tables = at<uint32_t>(engine_memory, engine.block_tables_offset);
    layers_ready = at<uint64_t>(agent_memory, engine.layers_ready_offset);
    load_done = at<uint64_t>(agent_memory, engine.load_done_offset);
    orders = at<KvOrder>(agent_memory, engine.orders_offset);
  }
};

// Tokens that a request has: its prompt and what was generated. The next one is sampled after all of
// them are in its pages, so a decode step computes the last of them.
HOSTLESS_FN uint32_t total_tokens(const Request& r) { return r.record.prompt_count + r.generated; }

HOSTLESS_FN uint32_t hands_over(const Request& r) { return r.record.flags & kHandOver ? 1 : 0; }

HOSTLESS_FN constexpr uint32_t pages_for(uint64_t tokens) {
  return static_cast<uint32_t>((tokens + kPageTokens - 1) / kPageTokens);
}

// Token at `position` of a request. The arenas are the front end's to spoil: an id that the model
// lacks becomes 0, so that garbage costs its owner an answer and nobody a fault. The newest token may not
// be in its arena yet.
template <class P>
HOSTLESS_FN uint32_t token_at(const Context<P>& c, const Request& r, uint32_t position) {
  const RequestRecord& q = r.record;
  if (r.generated != 0 && position + 1 == q.prompt_count + r.generated) return r.last_token;
  const uint32_t id = position < q.prompt_count ? c.prompt[q.prompt_begin + position]
                                                : c.token[q.token_begin + (position - q.prompt_count)];
  return id < c.s.settings.vocab_size ? id : 0;
}

}  // namespace hostless
