// config.hpp: what a run is told: cluster, costs, behaviour. Bytes, seconds, tokens. Filled by simulator/cluster.py.
#pragma once
#include <cstdint>
#include <vector>

namespace hostless::sim {

// Seconds of a step of one lockstep group (costs.py derives them from the model's shape and the hardware).
struct PrefillCost {
  double step_s = 0;          // whatever the batch: launches, collectives' latency
  double weight_s = 0;        // reading the weights once; hidden by arithmetic when there is more of that
  double group_token_s = 0;   // a token's work that the group shares evenly (experts), per engine
  double engine_token_s = 0;  // a token's work on its own engine (projections)
  double pair_s = 0;          // a (query, context) pair of attention, or of the sparse attention's indexer
  double selected_s = 0;      // a (query, selected) pair of sparse attention
  double selected = 0;        // tokens that sparse attention selects
};

struct DecodeCost {
  double step_s = 0, weight_s = 0, group_token_s = 0, engine_token_s = 0;
  double context_s = 0;   // reading a token of context
  double selected_s = 0;  // reading a selected token
  double selected = 0;
};

struct Config {
  uint32_t prefill_nodes = 1, decode_nodes = 1, engines_per_node = 8;
  uint32_t prefill_group = 8, decode_group = 8;  // engines that step together (expert parallelism)
  double storage_read = 0, storage_write = 0;    // bytes/s of a node's storage NICs, each direction
  double dram = 0;                               // bytes/s of a node, both directions together
  double compute_nic = 0;                        // bytes/s of an engine's compute NICs, each direction
  uint32_t reads_in_flight = 8;                  // of a node; more wait in its read queue
  uint32_t loads_in_flight = 4;  // of a prefill engine's step; its other transfers go one at a time
  uint32_t block_tokens = 64, layers = 1;
  double kv_bytes = 0;  // a token's KV, all layers
  int64_t prefill_kv_tokens = 0, decode_kv_tokens = 0;  // HBM of an engine
  bool layerwise = true;  // D6
  bool free_io = false;   // the oracle: transfers take no time
  double series_s = 10;   // bin of the time series
  PrefillCost prefill;
  DecodeCost decode;
};

// A trajectory is a run of turns; agents replay trajectories.
struct Trace {
  std::vector<uint32_t> begin;  // [trajectories + 1] into the turns
  std::vector<int32_t> prompt, cached, output;
  std::vector<double> pause;  // seconds before a turn: the tool's time
};

}  // namespace hostless::sim
