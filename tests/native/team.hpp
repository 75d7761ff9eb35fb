// team.hpp: the core run by several host threads at once, as a block of a GPU runs it.
//
// What ThreadSanitizer finds here would be a race between threads of the block there.
#pragma once
#include <atomic>
#include <barrier>
#include <chrono>
#include <optional>
#include <thread>

#include "check.hpp"
#include "host_platform.hpp"
#include "host_scheduler.hpp"

namespace toy {

using namespace hostless;

struct Team {
  explicit Team(uint32_t size) : barrier(size), size(size) {}
  std::barrier<> barrier;
  const uint32_t size;
  uint64_t shared = 0;          // written by thread 0 between two barriers
  std::atomic<bool> any{false};
  std::atomic<uint64_t> launched{0};
};

struct TeamPlatform : HostAtomics {
  Team& team;
  const uint32_t index;
  uint32_t launches = 0;
  TeamPlatform(Team& t, uint32_t i) : team(t), index(i) {}

  uint32_t thread() const { return index; }
  uint32_t threads() const { return team.size; }
  void barrier() { team.barrier.arrive_and_wait(); }
  bool any(bool value) {
    if (value) team.any.store(true, std::memory_order_relaxed);
    barrier();
    const bool result = team.any.load(std::memory_order_relaxed);
    barrier();
    if (index == 0) team.any.store(false, std::memory_order_relaxed);
    barrier();
    return result;
  }
  uint64_t broadcast(uint64_t value) {
    barrier();
    if (index == 0) team.shared = value;
    barrier();
    return team.shared;
  }
  static uint64_t clock_ns() {
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
  }
  void launch(uint32_t, uint64_t step) {
    ++launches;
    team.launched.store(step, std::memory_order_release);
  }
  uint32_t window_left() const { return 120 - launches; }  // B4
  void rest(Turn) { std::this_thread::yield(); }
};

// The parts of HostScheduler that a test drives, over a team.
class TeamScheduler {
 public:
  TeamScheduler(char* ring, const Settings& settings, const GraphSizes& graphs, uint32_t threads)
      : core_(core_bytes(settings, graphs) / 8),
        engine_(engine_geometry(settings).size_bytes / 8),
        ring_(ring),
        team_(threads) {
    set_up_core(core_.data(), settings, graphs);
    engine() = engine_geometry(settings);
  }

  void start() {
    for (uint32_t i = 0; i < team_.size; ++i) threads_.emplace_back([this, i] { work(i); });
  }
  void command(Command command) { HostAtomics::store_release(&state().command, static_cast<uint32_t>(command)); }
  bool join(double) {
    for (std::thread& thread : threads_) thread.join();
    return true;
  }
  std::optional<Launch> next_launch(double) {
    const uint64_t step = team_.launched.load(std::memory_order_acquire);
    if (step == last_taken_) {
      std::this_thread::yield();
      return std::nullopt;
    }
    last_taken_ = step;
    return Launch{step, 0, 0, 0};
  }
  void complete(uint64_t step, uint32_t error) {
    HostAtomics::store_relaxed(&engine().step.error, error);
    HostAtomics::store_release(&engine().step.done_step, step);
  }
  uint64_t orders_head() { return HostAtomics::load_acquire(&engine().orders_head); }
  void release_orders(uint64_t tail) { HostAtomics::store_release(&engine().orders_tail, tail); }
  void answer_load(uint32_t slot, uint32_t generation, uint32_t blocks) {
    auto* answers = reinterpret_cast<uint64_t*>(reinterpret_cast<char*>(&engine()) + engine().load_done_offset);
    HostAtomics::store_release(&answers[slot], load_answer(generation, blocks));
  }
  std::string check() {  // after join
    TeamPlatform platform(team_, 0);
    Context<TeamPlatform> context(platform, core_.data(), ring_, engine_.data());
    return Check<TeamPlatform>(context).run();
  }
  Counters counters() { return state().counters; }  // after join
  EngineMemory& engine() { return *reinterpret_cast<EngineMemory*>(engine_.data()); }

 private:
  CoreState& state() { return *reinterpret_cast<CoreState*>(core_.data()); }
  void work(uint32_t index) {
    Turn result;
    do {
      TeamPlatform fresh(team_, index);  // with a fresh launch window
      Context<TeamPlatform> context(fresh, core_.data(), ring_, engine_.data());
      result = run(context);
    } while (result == Turn::relaunch);
  }

  std::vector<uint64_t> core_, engine_;
  char* ring_;
  Team team_;
  uint64_t last_taken_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace toy
