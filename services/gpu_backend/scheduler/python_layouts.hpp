// python_layouts.hpp: what both native modules tell Python of the core's structs, and take from it.
#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>

#include "state.hpp"
#include "struct_layout.hpp"

namespace hostless {

// By the names of state.hpp's Settings, without what comes from the ring. A key that is missing raises KeyError.
inline Settings settings_from(nanobind::dict given) {
  Settings g{};
#define SETTING(name) g.name = nanobind::cast<decltype(g.name)>(given[#name])
  SETTING(lanes), SETTING(step_tokens), SETTING(pages), SETTING(order_capacity);
  SETTING(max_context), SETTING(vocab_size), SETTING(prefill_chunk), SETTING(decode_between_chunks);
  SETTING(mixed_tokens), SETTING(attention_quota_fs), SETTING(attention_request_fs);
  SETTING(attention_token_fs), SETTING(attention_pair_fs);
  SETTING(kv_orders), SETTING(store_limit), SETTING(sweep_ns), SETTING(watchdog_ns), SETTING(agent_patience_ns);
#undef SETTING
  return g;
}

inline nanobind::dict counters_layout() {
  using C = Counters;
  return StructLayout(sizeof(C)) FIELD(C, turns) FIELD(C, scans) FIELD(C, claims) FIELD(C, refused) FIELD(C, finished)
      FIELD(C, cancelled) FIELD(C, prefill_launches) FIELD(C, mixed_launches) FIELD(C, decode_launches)
          FIELD(C, relaunches) FIELD(C, prompt_tokens) FIELD(C, cached_tokens) FIELD(C, generated_tokens)
              FIELD(C, pauses) FIELD(C, preemptions) FIELD(C, engine_errors) FIELD(C, loads) FIELD(C, blocks_offered)
                  FIELD(C, blocks_dropped) FIELD(C, waiting) FIELD(C, loading) FIELD(C, expecting) FIELD(C, prefilling)
                      FIELD(C, running) FIELD(C, starved) FIELD(C, free_lanes) FIELD(C, free_pages)
                          FIELD(C, orders_open) FIELD(C, illegal_transitions)
                              .dict();
}

inline nanobind::dict by_name(const Counters& counters) {
  const nanobind::dict layout = counters_layout();
  const nanobind::list names(layout["names"]), offsets(layout["offsets"]);
  nanobind::dict all;
  for (size_t i = 0; i < nanobind::len(names); ++i) {
    const auto offset = nanobind::cast<size_t>(offsets[i]);
    all[names[i]] = *reinterpret_cast<const uint64_t*>(reinterpret_cast<const char*>(&counters) + offset);
  }
  return all;
}

// Where things are in engine memory, and how many there are.
inline nanobind::dict engine_layout(const EngineMemory& m) {
  nanobind::dict at;
#define AT(name) at[#name] = m.name
  AT(lanes), AT(step_tokens), AT(lane_pages), AT(pages), AT(slots), AT(order_capacity), AT(size_bytes);
  AT(sequences_offset), AT(tokens_offset), AT(out_tokens_offset), AT(block_tables_offset);
  AT(load_done_offset), AT(layers_ready_offset), AT(orders_offset);
#undef AT
  at["step_offset"] = offsetof(EngineMemory, step);
  at["orders_head_offset"] = offsetof(EngineMemory, orders_head);
  at["orders_tail_offset"] = offsetof(EngineMemory, orders_tail);
  return at;
}

}  // namespace hostless
