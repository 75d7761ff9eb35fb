// setup.hpp: the core's memory before its first turn. Host code.
#pragma once
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "state.hpp"

namespace hostless {

// Sizes of the captured graphs, ascending; the last of each is the largest shape, the fallback (B8).
struct GraphSizes {
  std::vector<uint32_t> decode;   // sequences
  std::vector<uint32_t> prefill;  // tokens
};

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument("scheduler settings: " + what);
}

inline void check_sizes(const std::vector<uint32_t>& sizes, uint32_t largest, const std::string& name) {
  require(!sizes.empty() && sizes.back() >= largest,
          name + " must end with the largest shape, " + std::to_string(largest));
  for (size_t i = 0; i < sizes.size(); ++i)
    require(sizes[i] > (i == 0 ? 0 : sizes[i - 1]), name + " must ascend from at least 1");
}

// Whether chunks.hpp stays within 64 bits, whatever the prompt.
inline bool attention_bounded(const Settings& g) {
  const double most = g.max_context, pairs = most * most;
  return static_cast<double>(g.attention_request_fs) + static_cast<double>(g.attention_token_fs) * most +
             static_cast<double>(g.attention_pair_fs) * pairs <
         9e18;
}

inline void check_settings(const Settings& g, const GraphSizes& graphs) {
  require(g.slots >= 1 && g.prompt_words >= 1 && g.token_words >= 1, "the ring has no slots or no arenas");
  require(g.lanes >= 1 && g.lanes <= g.slots, "lanes must be between 1 and the ring's slots");
  require(g.step_tokens >= g.lanes, "step_tokens must be at least lanes, or a decode step would not fit");
  require(g.pages >= 1, "pages must be at least 1");
  require(g.max_context >= 2 && uint64_t{g.lane_pages} * kPageTokens >= g.max_context,
          "max_context must be at least 2 and lane_pages must hold it");
  require(g.vocab_size >= 1, "vocab_size must be at least 1");
  require(g.order_capacity >= 1 && (g.order_capacity & (g.order_capacity - 1)) == 0,
          "order_capacity must be a power of two");
  require(uint64_t{g.step_tokens} < (1u << 26), "step_tokens must be under 2^26");
  require(g.mixed_tokens == 0 || (g.mixed_tokens >= g.lanes && g.mixed_tokens <= g.step_tokens),
          "mixed_tokens must be 0, or at least lanes and at most step_tokens");
  require(g.attention_quota_fs == 0 || attention_bounded(g),
          "attention times are so long that they overflow at max_context");
  check_sizes(graphs.decode, g.lanes, "decode_graphs");
  check_sizes(graphs.prefill, g.step_tokens, "prefill_graphs");
}

// Settings with the geometry of the ring in `memory`, which must fit them.
inline Settings with_ring(void* memory, uint64_t bytes, Settings g) {
  const auto& ring = *static_cast<const RingHeader*>(memory);
  require(reinterpret_cast<uintptr_t>(memory) % 64 == 0, "the ring is not 64-byte aligned");
  require(bytes >= sizeof(RingHeader) && ring.magic == kRingMagic && ring.version == kRingVersion,
          "this memory holds no ring of this version");
  RingHeader expected{};
  require(lay_out(expected, RingGeometry{ring.slot_count, ring.prompt_words, ring.token_words}) <= bytes,
          "the ring's memory is smaller than its header says");
  require(ring.max_context == g.max_context && ring.vocab_size == g.vocab_size && ring.page_count == g.pages,
          "max_context, vocab_size or pages differ from what the ring tells front ends");
  g.slots = ring.slot_count;
  g.prompt_words = ring.prompt_words;
  g.token_words = ring.token_words;
  g.lane_pages = (g.max_context + kPageTokens - 1) / kPageTokens;
  return g;
}

// table[n] = index of the smallest graph that holds n.
inline void fill_table(uint32_t* table, uint32_t largest, const std::vector<uint32_t>& sizes, uint32_t first_index) {
  uint32_t graph = 0;
  for (uint32_t n = 0; n <= largest; ++n) {
    if (n > sizes[graph]) ++graph;
    table[n] = first_index + graph;
  }
}

inline uint64_t core_bytes(const Settings& g, const GraphSizes& graphs) {
  CoreState s{};
  s.settings = g;
  s.decode_graph_count = static_cast<uint32_t>(graphs.decode.size());
  s.prefill_graph_count = static_cast<uint32_t>(graphs.prefill.size());
  return lay_out(s);
}

// Fills zeroed memory of `core_bytes`. Graph indices: decode graphs first, then prefill graphs.
inline void set_up_core(void* memory, const Settings& g, const GraphSizes& graphs) {
  check_settings(g, graphs);
  CoreState& s = *new (memory) CoreState{};
  s.settings = g;
  s.decode_graph_count = static_cast<uint32_t>(graphs.decode.size());
  s.prefill_graph_count = static_cast<uint32_t>(graphs.prefill.size());
  lay_out(s);
  auto array = [&](uint64_t offset) { return reinterpret_cast<uint32_t*>(static_cast<char*>(memory) + offset); };
  s.mode = EngineState::starting;
  s.waiting_head = s.waiting_tail = kNone;
  for (uint32_t i = 0; i < g.lanes; ++i) {
    array(s.free_lanes_offset)[i] = g.lanes - 1 - i;
    reinterpret_cast<Lane*>(array(s.lanes_offset))[i].slot = kNone;
  }
  for (uint32_t i = 0; i < g.pages; ++i) array(s.free_pages_offset)[i] = g.pages - 1 - i;
  s.free_lane_count = g.lanes;
  s.free_page_count = g.pages;
  for (uint32_t i = 0; i < g.slots; ++i) reinterpret_cast<Request*>(array(s.requests_offset))[i].lane = kNone;
  fill_table(array(s.decode_graphs_offset), g.lanes, graphs.decode, 0);
  fill_table(array(s.prefill_graphs_offset), g.step_tokens, graphs.prefill, s.decode_graph_count);
  uint32_t* sizes = array(s.graph_sizes_offset);
  std::memcpy(sizes, graphs.decode.data(), graphs.decode.size() * 4);
  std::memcpy(sizes + graphs.decode.size(), graphs.prefill.data(), graphs.prefill.size() * 4);
}

// Fills zeroed memory of lay_out(EngineMemory) bytes.
inline EngineMemory engine_geometry(const Settings& g) {
  EngineMemory m{};
  m.lanes = g.lanes;
  m.step_tokens = g.step_tokens;
  m.lane_pages = g.lane_pages;
  m.pages = g.pages;
  m.slots = g.slots;
  m.order_capacity = g.order_capacity;
  lay_out(m);
  return m;
}

}  // namespace hostless
