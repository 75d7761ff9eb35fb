// state.hpp: everything the scheduler remembers, in one block of memory.
//
// Nothing lives in registers or on a stack between two turns, so a fresh instance of the scheduler
// carries on at the same logical point (B4). The block is private to the core: front ends see the
// ring, graphs and the KV agent see engine memory.
#pragma once
#include "step.hpp"

namespace hostless {

constexpr uint32_t kNone = 0xffffffff;

// Fixed before the first turn; `check_settings` (setup.hpp) says what must hold.
struct Settings {
  // geometry, repeated here because the ring's header is writable by front ends
  uint32_t slots, prompt_words, token_words;
  uint32_t lanes, step_tokens, lane_pages, pages, order_capacity;
  uint32_t max_context, vocab_size;
  // policy
  uint32_t prefill_chunk;          // most prompt tokens of a step; 0: whole prompts (B6)
  uint32_t decode_between_chunks;  // 1: running decodes get a step between two chunks of a prompt
  uint32_t mixed_tokens;           // most tokens of a step that prefills and decodes; 0: they take turns (B6)
  uint32_t kv_orders;              // 0: there is no KV agent
  uint32_t store_limit;            // most pages that unanswered store orders may hold
  uint64_t sweep_ns;               // between two looks at cancel flags and ended leases
  uint64_t watchdog_ns;            // a step in flight for longer fails the engine; 0: never
  uint64_t agent_patience_ns;      // pages are awaited from the agent only while it moves this often
  // Attention that the prompts of a step may cost, and the fit that predicts it (chunks.hpp); 0: no bound (D13)
  uint64_t attention_quota_fs, attention_request_fs, attention_token_fs, attention_pair_fs;
};

// Where a request is. Its slot word tells less: `waiting` shows as prefill_processing or, evicted,
// as decode_paused; `running` as decode_processing or, while others prefill, as decode_paused. One that is
// prefilled elsewhere shows as kv_pending until its pages are filled.
enum class Phase : uint8_t {
  idle = 0,        // no request
  waiting = 1,     // in the queue: no lane, no pages
  loading = 2,     // lane and pages held, the KV agent fills them, or hands them over (D3)
  prefilling = 3,  // lane and pages held, tokens to compute before the next one can be sampled
  running = 4,     // in the decode batch
  starved = 5,     // out of the batch until a page is free for its next token
  expecting = 6,   // its prompt is being prefilled elsewhere: no lane, no pages (D3)
};

// Whether the slot's word is to be written by the next `publish`, and who knows of it.
enum class Announced : uint8_t {
  no = 0,
  by_lane = 1,  // the request holds a lane, and is found through it
  listed = 2,   // on the list of announcements
};

struct Request {
  RequestRecord record;  // a private, validated copy: the ring's may change under us
  SlotReport report;
  uint64_t arrival;    // rank among all requests of this engine; kept when evicted
  uint32_t lane;       // kNone without one
  uint32_t generated;  // tokens sampled
  uint32_t shown;      // of them written to the token arena
  uint32_t last_token; // the newest of them
  uint32_t computed;   // leading tokens whose KV is in its pages
  uint32_t offered;    // leading blocks that came from the store or were offered to it
  uint32_t previous, next;  // in the waiting queue; kNone at its ends. Expecting: `next` is its place in that list
  SlotState state;     // as last announced
  Finish finish;
  uint8_t persist;     // 1: full blocks are offered to the store
  uint8_t owes_end;    // 1: the agent has had an order and must hear the end
  uint8_t load_asked;  // 1: at most one load a request
  Announced announced;
  uint8_t receives;    // 1: its prompt is prefilled elsewhere
  uint8_t missed;      // 1: layers that it waited for did not come, so it is computed from its first token on
};
static_assert(sizeof(Request) == 240);

struct Abandoned {
  static constexpr uint32_t no = 0;
  static constexpr uint32_t unanswered = 1;  // held until the agent has answered, and written the last layer
  static constexpr uint32_t answered = 2;    // held until it has written the last layer
};

// One sequence of the batch: a row of the block table.
struct Lane {
  uint32_t slot;        // kNone: free
  uint32_t generation;
  uint32_t page_count;  // of its row of the block table
  uint32_t place;       // its index in the list of its phase
  uint32_t flying;      // its tokens in the step in flight; 0: not in it
  uint32_t sampled;     // 1: that step samples a token for it
  uint32_t abandoned;   // Abandoned: its request has ended, and the agent may still write to its pages
  uint32_t cancelled;   // 1: its cancel flag was seen while it was in the step in flight
};
static_assert(sizeof(Lane) == 32);

// The step in flight: prompts, or chunks of them, first, then `decodes` running sequences of one token each.
struct Flight {
  uint32_t kind;  // StepKind, 0: nothing in flight
  uint32_t sequences, tokens, samples;
  uint32_t decodes;
  uint32_t reserved;
  uint64_t launched_ns;
};

struct FrontEndScan {
  FrontEndLease lease;  // a checked copy, of the last scan
  uint64_t seen;     // doorbell at the last scan
  uint64_t claimed;  // slots claimed from it
  uint64_t next_ns;  // not before then, unless the doorbell rings again
  uint64_t wait_ns;  // doubles with every scan that finds less than the doorbell counts
};

struct LaneList {
  uint64_t offset;
  uint32_t count;
  uint32_t reserved;
};

enum class Command : uint32_t { run = 0, drain = 1, stop = 2 };

// Counters only grow; gauges (from `waiting` on) are set once a turn. All are u64, read by name from Python.
struct Counters {
  uint64_t turns, scans, claims, refused, finished, cancelled;
  uint64_t prefill_launches, mixed_launches, decode_launches, relaunches;  // a mixed step is a prefill, too
  uint64_t prompt_tokens, cached_tokens, generated_tokens;
  uint64_t pauses, preemptions, engine_errors;
  uint64_t loads, blocks_offered, blocks_dropped;
  uint64_t waiting, loading, expecting, prefilling, running, starved, free_lanes, free_pages, orders_open,
      illegal_transitions;
};

struct CoreState {
  Settings settings;
  uint8_t pad0[128 - sizeof(Settings)];
  uint32_t command;  // Command, written by the host
  uint8_t pad1[60];

  Counters counters;
  uint64_t now_ns;  // at the start of this turn
  uint64_t steps, arrivals;
  uint64_t next_sweep_ns;
  EngineState mode;
  uint32_t decode_owed;  // 1: the next step is a decode, if anything runs
  Flight flight, landed;  // the step in flight, and the one before
  FrontEndScan front_ends[kFrontEnds];

  uint32_t waiting_head, waiting_tail, waiting_count;
  uint32_t free_lane_count, free_page_count;
  uint32_t leaving_pages;  // held by store orders only: free as soon as the agent has moved on
  LaneList loading, prefilling, running, starved;

  uint64_t orders_reserved;  // head of the order ring, unpublished orders included
  uint64_t orders_published;
  uint64_t orders_released;  // tail of the order ring, as far as its pages were taken back
  uint64_t agent_moved_ns;   // when orders_tail last moved, or the ring was last empty
  uint32_t ends_owed;        // requests that the agent must still hear the end of
  uint32_t stores_open;      // store orders that hold a page

  uint32_t event_count, found_count, announced_count;
  uint32_t expecting_count;
  uint32_t illegal_transitions;  // must stay 0
  uint32_t decode_graph_count, prefill_graph_count;

  uint64_t requests_offset, phases_offset, lanes_offset, free_lanes_offset, flight_lanes_offset;
  uint64_t page_refs_offset, free_pages_offset, events_offset, announced_offset, expecting_offset;
  uint64_t found_offset, found_sequences_offset, found_order_offset;
  uint64_t decode_graphs_offset, prefill_graphs_offset, graph_sizes_offset;
  uint64_t hot_bytes, size_bytes;
};

// Lays the arrays out behind the state and returns the bytes that the block needs. Settings and
// graph counts are set before. State and small arrays, which every step touches, come first: where there
// is a faster memory of some kilobytes, the first hot_bytes may live there, apart from the rest.
HOSTLESS_FN uint64_t lay_out(CoreState& s) {
  const Settings& g = s.settings;
  uint64_t at = align64(sizeof(CoreState));
  auto place = [&at](uint64_t& offset, uint64_t bytes) {
    offset = at;
    at = align64(at + bytes);
  };
  place(s.lanes_offset, sizeof(Lane) * uint64_t{g.lanes});
  place(s.free_lanes_offset, 4ULL * g.lanes);
  place(s.flight_lanes_offset, 4ULL * g.lanes);
  place(s.loading.offset, 4ULL * g.lanes);
  place(s.prefilling.offset, 4ULL * g.lanes);
  place(s.running.offset, 4ULL * g.lanes);
  place(s.starved.offset, 4ULL * g.lanes);
  place(s.decode_graphs_offset, 4ULL * (g.lanes + 1));
  s.hot_bytes = at;
  place(s.requests_offset, sizeof(Request) * uint64_t{g.slots});
  place(s.phases_offset, g.slots);
  place(s.page_refs_offset, 4ULL * g.pages);
  place(s.free_pages_offset, 4ULL * g.pages);
  place(s.events_offset, 4ULL * g.slots);
  place(s.announced_offset, 4ULL * g.slots);
  place(s.expecting_offset, 4ULL * g.slots);
  place(s.found_offset, 4ULL * g.slots);
  place(s.found_sequences_offset, 4ULL * g.slots);
  place(s.found_order_offset, 4ULL * g.slots);
  place(s.prefill_graphs_offset, 4ULL * (g.step_tokens + 1));
  place(s.graph_sizes_offset, 4ULL * (s.decode_graph_count + s.prefill_graph_count));
  return s.size_bytes = at;
}

}  // namespace hostless
