// watcher.hpp: the warp that looks out for the scheduler's team.
//
// The watcher is a ninth warp. It reads, over and over, the words that others write and each turn looks
// at (doorbells, leases, the tail of the orders, the host's command), and keeps what it saw in shared
// memory. A read of host memory takes over a microsecond; so the team never waits for one. What the watcher
// saw is a reason to look, and no more: what a word announces is read after the word itself, with acquire.
// It holds still while the team is between two steps: a fence of the team would wait for the watcher's reads.
#pragma once
#include "device_platform.hpp"

namespace hostless {

__device__ inline const uint64_t* watched_word(const Mission& m, uint32_t index) {
  const auto& ring = *static_cast<const RingHeader*>(m.ring);
  if (index < Watched::leases) return &ring.doorbells[index];
  if (index < Watched::command) return reinterpret_cast<const uint64_t*>(&ring.leases[index - Watched::leases]);
  if (index == Watched::command) return &m.control->command;
  if (index == Watched::orders_tail) return &static_cast<const EngineMemory*>(m.agent)->orders_tail;
  return &m.control->host_beat;
}

struct Watcher {
  Board& board;
  const CoreState& state;
  const Mission& mission;
  const uint32_t lane = threadIdx.x % 32;
  uint64_t last = 0, next_report = 0, host_moved = 0, last_host_beat = 0;
  uint32_t version = 0;

  __device__ uint64_t first_look() const {
    if (Tuning::keeps_board && kept.looked) return lane < Watched::count ? kept.seen[lane] : 0;
    return load(Watched::count);
  }
  // The lanes below `count` read their words, by one load of the warp.
  __device__ uint64_t load(uint32_t count) const {
    return lane < count ? DevicePlatform::load_relaxed(watched_word(mission, lane)) : 0;
  }
  // A lease's word also holds its first slot.
  __device__ void note(uint64_t value, uint32_t count, bool first = false) {
    if (lane >= Watched::leases && lane < Watched::command) value &= 0xffffffff;
    const bool changed = lane < count && (first || value != last);
    if (changed) {
      tell(board.seen[lane], value);
      last = value;
    }
    if (!__any_sync(0xffffffff, changed && lane != Watched::host_beat)) return;
    __syncwarp();
    ++version;
    if (lane == 0) tell(board.version, version, cuda::memory_order_release);
  }

  // The counters, one a lane, for whoever reads them on the host.
  __device__ void report(uint64_t now) {
    constexpr uint32_t count = sizeof(Counters) / sizeof(uint64_t);
    static_assert(count <= 32);
    const auto* from = reinterpret_cast<const uint64_t*>(&state.counters);
    auto* to = reinterpret_cast<uint64_t*>(&mission.control->counters);
    if (lane < count) DevicePlatform::store_relaxed(to + lane, DevicePlatform::load_relaxed(from + lane));
    if (lane == 0) DevicePlatform::store_relaxed(&mission.control->device_ns, now);
    next_report = now + mission.report_ns;
  }

  __device__ void end(Ending why) {
    if (look_at(board.ending) == 0) tell(board.ending, static_cast<uint32_t>(why));
  }
  // Lane 0: a card that hangs is worse than a scheduler that ends.
  __device__ void guard(uint64_t now) {
    if (mission.deadline_ns != 0 && now > mission.deadline_ns) {
      if (now > mission.deadline_ns + kGrace) __trap();
      end(Ending::deadline);
    }
    if (mission.host_patience_ns == 0) return;
    const uint64_t beat = look_at(board.seen[Watched::host_beat]);
    if (beat != last_host_beat || host_moved == 0) {
      last_host_beat = beat;
      host_moved = now;
    } else if (now - host_moved > mission.host_patience_ns) {
      end(Ending::orphaned);
    }
  }

  // Doorbells all the time, everything else now and then; first: a look at everything.
  // One read of host memory on its way, never more: with three, each kernel of a graph ended late, and a step took
  // 8 to 29 % longer.
  __device__ void run(uint64_t first) {
    note(first, Watched::count, true);
    __syncthreads();  // the team waits for it
    uint32_t leaves = 0;
    for (uint32_t round = 0; leaves == 0; ++round) {
      hold_still();
      const bool all = round % Tuning::house_rounds == 0;
      if (all) keep_house();
      const uint32_t count = all ? Watched::count : Watched::leases;
      note(load(count), count);
      leaves = look_at(board.leaves, cuda::memory_order_acquire);
    }
    if (leaves == Board::kForGood) report(device_ns());
    if (Tuning::keeps_board && lane < Watched::count) {
      kept.seen[lane] = last;
      kept.looked = 1;
    }
  }
  __device__ void hold_still() const {
    if (look_at(board.hurries) == 0) return;
    const uint64_t until = device_ns() + kLongestHurry;
    while (look_at(board.hurries) != 0 && device_ns() < until) __nanosleep(20);
  }
  __device__ void keep_house() {
    const uint64_t now = __shfl_sync(0xffffffff, device_ns(), 0);
    if (now >= next_report) report(now);
    if (lane == 0) guard(now);
    __syncwarp();
  }
};

}  // namespace hostless
