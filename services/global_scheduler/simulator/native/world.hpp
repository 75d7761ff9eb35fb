// world.hpp: the simulated cluster's state, shared by reading, prefill, decode and agents.
#pragma once
#include <deque>
#include <vector>

#include "config.hpp"
#include "events.hpp"
#include "flows.hpp"

namespace hostless::sim {

enum class Motion : uint32_t {
  read = 0,     // store -> DRAM (D1, D2)
  load = 1,     // to a prefill engine's HBM, for the running step
  push = 2,     // prefill engine -> decode engine's DRAM
  handover = 3, // D3: DRAM -> HBM
  evict = 4,    // HBM -> DRAM of a preempted request
  persist = 5,  // D4: HBM -> DRAM -> store
};
constexpr uint32_t kMotions = 6;

constexpr uint64_t owner(Motion motion, uint32_t subject) { return (static_cast<uint64_t>(motion) << 32) | subject; }

struct Request {
  uint32_t agent = 0, turn = 0;       // turn: index into the trace
  uint32_t prefill = 0, decode = 0;   // engines
  uint32_t reads = 0, pushes = 0;     // not yet arrived
  int32_t prompt = 0, cached = 0, output = 0;
  int32_t near_tokens = 0;            // of the hit, brought by the prefill engine's node (D1)
  int32_t near_held = 0, far_held = 0;  // of the hit's two parts, what is held in DRAM there and not read
  int32_t computed = 0;               // of the miss
  int32_t chunk = 0;                  // of the running step
  int32_t decoded = 0;                // output tokens so far
  bool in_hbm = false;                // its hit is in prefill HBM (without layerwise only)
  double arrived = 0, placed = 0, read = 0, first = 0, second = 0;

  int32_t miss() const { return prompt - cached; }
  int32_t context() const { return prompt + decoded; }
};

// Transfers of one kind at one engine follow one another; only a step's loads move several at a time.
struct Transfer {
  Motion motion;
  uint32_t subject, uses;
  double bytes;
  Use use[Flow::kUses];
};

struct Lane {
  std::deque<Transfer> waiting;
  uint32_t moving = 0;
};

struct Node {
  uint32_t storage_in = 0, storage_out = 0, dram = 0;  // links
  std::deque<uint64_t> queue;  // reads that wait: | near side : 1 | request : 32 |
  uint32_t reading = 0;
};

struct Engine {
  uint32_t node = 0, group = 0;
  uint32_t nic_out = 0, nic_in = 0;  // links: what its compute NICs read from memory, and write to memory
  std::deque<uint32_t> waiting;      // prefill: hit is in DRAM; decode: waits for HBM
  std::vector<uint32_t> batch;       // of the running step, in order of joining
  std::vector<uint32_t> joining;     // decode: in HBM, in the next step's batch
  int64_t hbm_free = 0;
  int64_t context = 0;               // decode: of the batch
  double attention = 0;              // of the running step, seconds
};

struct Group {
  uint32_t first = 0, count = 0;  // engines
  bool prefill = false, stepping = false, computed = false, loading = false;
  uint32_t flows = 0;             // of the running step, still moving
  double compute_s = 0, began = 0, moved = 0;
};

// What must balance in the end. Bytes are counted when a flow ends.
struct Ledger {
  uint64_t bytes_started[kMotions] = {}, bytes_moved[kMotions] = {};
  uint64_t hit_tokens = 0, read_tokens = 0, reused_tokens = 0, prompt_tokens = 0, computed_tokens = 0;
  uint64_t asked_tokens = 0, generated_tokens = 0, blocks_filled = 0, blocks_stored = 0;
  double prefill_compute_s = 0, prefill_step_s = 0;  // of all groups' steps: arithmetic alone, and in all
  uint64_t arrived = 0, placed = 0, finished = 0, preemptions = 0, chunks = 0, prefill_steps = 0, decode_steps = 0;
};

// A finished turn, for the report.
struct TurnRecord {
  uint32_t agent, turn;
  float arrived, queued, read, ttft, ttst, tpot, finished;
};

struct World {
  Config config;
  Trace trace;
  EventQueue events;
  FlowNetwork net;
  std::vector<Node> nodes;
  std::vector<Engine> engines;
  std::vector<Group> groups;
  std::vector<Request> requests;
  std::vector<uint32_t> free_requests, arrivals, done;
  Ledger ledger;
  double now = 0;
  // An engine's load as it would report it (D9), and who changed since the last report.
  std::vector<int64_t> load_requests, load_tokens, load_reads;
  std::vector<uint8_t> load_changed;
  std::vector<uint32_t> changed;
  std::vector<Lane> lanes;  // [engine][motion]

  void load(uint32_t engine, int64_t requests_more, int64_t tokens_more, int64_t reads_more) {
    load_requests[engine] += requests_more;
    load_tokens[engine] += tokens_more;
    load_reads[engine] += reads_more;
    if (!load_changed[engine]) {
      load_changed[engine] = 1;
      changed.push_back(engine);
    }
  }

  // Starts a transfer, or queues it in the engine's lane; false when it takes no time (nothing to move, or the oracle).
  // A node's reads have their own queue (reading.hpp), so they have no lane.
  bool move(Motion motion, uint32_t subject, uint32_t engine, int64_t tokens, std::initializer_list<Use> way) {
    Transfer transfer{motion, subject, 0, static_cast<double>(tokens) * config.kv_bytes, {}};
    for (const Use& use : way) transfer.use[transfer.uses++] = use;
    const auto bytes = static_cast<uint64_t>(transfer.bytes);
    ledger.bytes_started[static_cast<uint32_t>(motion)] += bytes;
    if (config.free_io || bytes == 0) {
      ledger.bytes_moved[static_cast<uint32_t>(motion)] += bytes;
      return false;
    }
    Lane& own = lane(engine, motion);
    const uint32_t most = motion == Motion::load ? config.loads_in_flight : 1;
    if (own.moving >= most && motion != Motion::read) {
      own.waiting.push_back(transfer);
    } else {
      ++own.moving;
      start(transfer);
    }
    return true;
  }

  // The engine's transfer of this kind has ended: the next one starts.
  void next_in_lane(uint32_t engine, Motion motion) {
    Lane& own = lane(engine, motion);
    --own.moving;
    if (own.waiting.empty()) return;
    ++own.moving;
    start(own.waiting.front());
    own.waiting.pop_front();
  }

 private:
  Lane& lane(uint32_t engine, Motion motion) { return lanes[engine * kMotions + static_cast<uint32_t>(motion)]; }

  void start(const Transfer& transfer) {
    net.start(now, transfer.bytes, owner(transfer.motion, transfer.subject), transfer.use, transfer.uses);
  }
};

}  // namespace hostless::sim
