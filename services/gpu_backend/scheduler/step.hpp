// step.hpp: engine memory, which the scheduler core and the captured graphs share (B8).
//
// The core fills a step's inputs, launches a graph, and polls `done_step`. No host code plans a
// step: block tables, positions and sampling inputs are all here, in device memory on a GPU.
// One allocation, offsets in EngineMemory, laid out by `lay_out`.
#pragma once
#include "ring.hpp"

namespace hostless {

enum class StepKind : uint32_t { prefill = 1, decode = 2 };

// One sequence of a step. The step's tokens of sequence i are
// tokens[token_begin, token_begin + token_count), at positions position, position + 1, ...
struct StepSequence {
  uint32_t lane;         // row of the block table
  uint32_t token_begin;
  uint32_t token_count;  // 0: padding, nothing is computed or written
  uint32_t position;     // = tokens of this sequence whose KV is in its pages already
  uint32_t sample;       // 1: out_tokens[i] gets a token sampled after the last one
  float temperature;     // 0: greedy
  float top_p;
  uint32_t top_k;
  float uniform;         // in [0, 1): drawn from (seed, index of the new token); independent of neighbours
  uint32_t slot;         // with its generation: for whoever has to know whose it is, and for traces
  uint32_t generation;
  uint32_t hands_over;   // 1: a prompt whose KV goes to another engine, as its layers are computed (D6)
};
static_assert(sizeof(StepSequence) == 48);

struct StepHeader {
  uint64_t step;            // number of this step, from 1
  uint32_t kind;            // StepKind
  uint32_t sequence_count;
  uint32_t token_count;
  uint32_t graph;           // index that the graph table gave
  uint8_t pad0[40];
  // written by the graph
  uint64_t done_step;       // = step, released after out_tokens: the completion flag (B5)
  uint32_t error;           // 0, or the engine could not compute this step
  uint32_t reserved;
  uint8_t pad1[48];
};
static_assert(sizeof(StepHeader) == 128);

// --- orders to the KV agent (host code beside the engine; never on the token path) ---

enum class KvOrderKind : uint32_t {
  load = 1,   // fill the lane's first block_count pages, of which kv_reads are read here; answer in load_done[slot]
  store = 2,  // page holds block `first_block` of the slot, whose tokens are given; copy it out
  end = 3,    // the slot is finished or gone: forget its key chain
  // Between two engines, both under the name `transfer`:
  receive = 4,  // a prompt of block_count blocks is prefilled elsewhere, the first first_block of them are stored
                // (kv_reads of them read here); answer with the first token + 1 once all are in the buffer,
                // or with 0. A load of the same slot then fills its pages from the buffer
  send = 5,  // the lane's first block_count pages hold the prompt, first_block of them from the store; tokens[0]
             // was sampled: hand them over; answer with block_count, or less
  prefill = 6,  // a prompt of block_count blocks, none of them stored, is going to be computed, then sent; no answer
};

// Single producer (core), single consumer (agent). The consumer frees an order by moving orders_tail
// past it; a store's page may be reused from then on. A load or send is answered later, always, through
// load_done; a receive too, unless the slot's end comes first.
struct KvOrder {
  uint32_t kind;
  uint32_t slot;
  uint32_t generation;
  uint32_t lane;
  uint32_t first_block;
  uint32_t block_count;
  uint32_t page;
  uint32_t reserved;
  uint64_t kv_reads;
  uint8_t kv_root[16];
  uint32_t tokens[kPageTokens];
  uint64_t transfer;
};
static_assert(sizeof(KvOrder) == 320);

struct EngineMemory {
  uint32_t lanes;  // most sequences in a step
  uint32_t step_tokens;  // most tokens in a step
  uint32_t lane_pages;  // columns of the block table = pages of max_context
  uint32_t pages;  // KV pages of the engine
  uint32_t slots;
  uint32_t order_capacity;  // a power of two
  uint64_t sequences_offset, tokens_offset, out_tokens_offset, block_tables_offset;
  uint64_t orders_offset, load_done_offset, layers_ready_offset;
  uint64_t size_bytes;
  uint8_t pad0[128 - 24 - 64];
  StepHeader step;
  uint64_t orders_head;  // written by the core
  uint8_t pad1[56];
  uint64_t orders_tail;  // written by the agent
  uint8_t pad2[56];
};
static_assert(sizeof(EngineMemory) == 384);

// load_done[slot]: | blocks loaded or sent, or first token + 1:32 | generation:32 |, written by the agent.
HOSTLESS_FN constexpr uint64_t load_answer(uint32_t generation, uint32_t blocks) {
  return static_cast<uint64_t>(generation) | (static_cast<uint64_t>(blocks) << 32);
}

// layers_ready[lane]: | failed:1 | open:1 | 0:30 | layers:32 |, how far the KV before a step's position is in the
// lane's pages (D6). A load may be answered when its first layer is there; the step then waits for each layer as it
// gets to it. Written by the agent, after the layer's bytes; 0 from the taking of the lane on.
//   open     layers [0, layers) are there, the agent may write the others at any time: the lane is kept for it
//   failed   they won't come, nothing is written any more: what the step computes of this lane doesn't count
//   neither  nothing is written any more, and nothing is waited for
constexpr uint64_t kLayersFailed = 1ULL << 63, kLayersOpen = 1ULL << 62;

HOSTLESS_FN uint64_t lay_out(EngineMemory& m) {
  uint64_t at = sizeof(EngineMemory);
  m.sequences_offset = at;
  at = align64(at + sizeof(StepSequence) * static_cast<uint64_t>(m.lanes));
  m.tokens_offset = at;
  at = align64(at + 4ULL * m.step_tokens);
  m.out_tokens_offset = at;
  at = align64(at + 4ULL * m.lanes);
  m.block_tables_offset = at;
  at = align64(at + 4ULL * m.lanes * m.lane_pages);
  m.layers_ready_offset = at;
  at = align64(at + 8ULL * m.lanes);
  m.load_done_offset = at;
  at = align64(at + 8ULL * m.slots);
  m.orders_offset = at;
  at = align64(at + sizeof(KvOrder) * static_cast<uint64_t>(m.order_capacity));
  m.size_bytes = at;
  return at;
}

}  // namespace hostless
