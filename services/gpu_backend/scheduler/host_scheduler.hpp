// host_scheduler.hpp: the core on a thread of its own, with an engine thread that computes the steps.
//
//   scheduler thread: run() ... launch -> mailbox -> engine thread: next_launch, compute, complete
//
// The scheduler thread never spins for long: with a step in flight it waits for `complete`, and looks
// at the ring every `flying_rest`; with nothing to do it sleeps longer and longer, up to `idle_rest`.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "check.hpp"
#include "foresight.hpp"
#include "host_platform.hpp"
#include "setup.hpp"

namespace hostless {

struct Launch {
  uint64_t step;
  uint32_t kind, graph, size;  // size: the shape the graph was captured for
};

class HostScheduler {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kFirstRest{50}, kFlyingRest{1000}, kWaitingRest{500}, kIdleRest{5000};
  static constexpr uint32_t kSpins = 16;

  // The ring stays the caller's and outlives this. `launch_window`: launches an execution (B4), 0 no bound.
  HostScheduler(void* ring, uint64_t ring_bytes, Settings settings, const GraphSizes& graphs, uint32_t launch_window)
      : settings_(with_ring(ring, ring_bytes, settings)),
        core_(zeroed((check_settings(settings_, graphs), core_bytes(settings_, graphs)))),
        engine_(zeroed(engine_geometry(settings_).size_bytes)),
        launch_window_(launch_window),
        window_(launch_window),
        platform_(*this) {
    set_up_core(core_.get(), settings_, graphs);
    *reinterpret_cast<EngineMemory*>(engine_.get()) = engine_geometry(settings_);
    context_ = std::make_unique<Context<Platform>>(platform_, core_.get(), ring, engine_.get());
  }
  ~HostScheduler() { halt(); }

  HostScheduler(const HostScheduler&) = delete;
  HostScheduler& operator=(const HostScheduler&) = delete;

  // --- the loop, on its own thread, or turn by turn with a given clock ---

  void start() {
    if (thread_.joinable()) throw std::logic_error("the scheduler thread runs already");
    thread_ = std::thread([this] {
      std::unique_lock<std::mutex> turn(turn_mutex_);
      while (run(*context_) == Turn::relaunch) window_ = launch_window_;
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
      launched_.notify_all();
      changed_.notify_all();
    });
  }
  Turn turn(uint64_t now_ns) {
    if (thread_.joinable()) throw std::logic_error("turn() is for a scheduler without a thread");
    given_now_ = now_ns;
    const Turn result = hostless::turn(*context_);
    if (result == Turn::relaunch) window_ = launch_window_;
    return result;
  }
  void command(Command command) {
    HostAtomics::store_release(&state().command, static_cast<uint32_t>(command));
    poke();
  }
  // Waits until the loop has stopped; false if it has not by then (a step in flight is awaited).
  bool join(double timeout_s) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      if (!changed_.wait_until(lock, after(timeout_s), [this] { return ended_ || !thread_.joinable(); })) return false;
    }
    if (thread_.joinable()) thread_.join();
    return true;
  }

  bool ended() {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

  // --- the engine's side ---

  std::optional<Launch> next_launch(double timeout_s) {
    std::unique_lock<std::mutex> lock(mutex_);
    launched_.wait_until(lock, after(timeout_s), [this] { return mailbox_.has_value() || ended_; });
    return std::exchange(mailbox_, std::nullopt);
  }
  // After out_tokens are written. `error` is not 0 if the step could not be computed.
  void complete(uint64_t step, uint32_t error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (step != last_launched_) throw std::invalid_argument("complete(): no such step is in flight");
    StepHeader& header = engine().step;
    HostAtomics::store_relaxed(&header.error, error);
    HostAtomics::store_release(&header.done_step, step);
    landed_ = true;
    changed_.notify_all();
  }

  // --- the KV agent's side ---

  // Orders [released, head) may be read.
  uint64_t orders_head() { return HostAtomics::load_acquire(&engine().orders_head); }
  // Orders before `tail` are done with; the pages of their stores may be reused.
  void release_orders(uint64_t tail) {
    if (tail > orders_head()) throw std::invalid_argument("release_orders(): there are no such orders yet");
    HostAtomics::store_release(&engine().orders_tail, tail);
    poke();
  }
  // After the pages are filled: this many of the blocks asked for, from the first on.
  void answer_load(uint32_t slot, uint32_t generation, uint32_t blocks) {
    if (slot >= settings_.slots) throw std::invalid_argument("answer_load(): there is no such slot");
    HostAtomics::store_release(&context_->load_done[slot], load_answer(generation, blocks));
    poke();
  }

  // Something came that the loop should see before its rest is over.
  void poke() {
    std::lock_guard<std::mutex> lock(mutex_);
    poked_ = true;
    changed_.notify_all();
  }

  // --- what others may look at ---

  // Calls look() while the loop rests.
  template <class F>
  auto between_turns(F look) {
    std::lock_guard<std::mutex> lock(visitor_mutex_);
    HostAtomics::store_release(&visitors_, 1u);
    std::lock_guard<std::mutex> turn(turn_mutex_);
    HostAtomics::store_release(&visitors_, 0u);
    return look();
  }

  Counters counters() {
    Counters copy;
    auto* from = reinterpret_cast<uint64_t*>(&state().counters);
    auto* to = reinterpret_cast<uint64_t*>(&copy);
    for (size_t i = 0; i < sizeof(Counters) / sizeof(uint64_t); ++i) to[i] = HostAtomics::load_relaxed(from + i);
    return copy;
  }
  // Empty if all is well.
  std::string check() {
    return between_turns([this] { return Check<Platform>(*context_).run(); });
  }
  // The step after the one in flight (foresight.hpp); empty if it can't be told.
  std::vector<Foreseen> foresee() {
    return between_turns([this] {
      std::vector<Foreseen> seen(settings_.lanes);
      seen.resize(hostless::foresee(*context_, seen.data()));
      return seen;
    });
  }
  const Settings& settings() const { return settings_; }
  EngineMemory& engine() { return *reinterpret_cast<EngineMemory*>(engine_.get()); }
  CoreState& state() { return *reinterpret_cast<CoreState*>(core_.get()); }

 private:
  using Platform = HostPlatform<HostScheduler>;
  friend Platform;

  // --- what the platform asks for; called by the thread that runs the loop ---

  uint64_t clock_ns() const {
    if (given_now_ != 0) return given_now_;
    return static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  }
  void launch(uint32_t graph, uint64_t step) {
    if (launch_window_ != 0) --window_;
    std::lock_guard<std::mutex> lock(mutex_);
    landed_ = false;
    last_launched_ = step;
    mailbox_ = Launch{step, engine().step.kind, graph, context_->graph_sizes[graph]};
    launched_.notify_all();
  }
  uint32_t window_left() const { return launch_window_ == 0 ? kNone : window_; }
  void rest(Turn turn) {
    if (turn == Turn::progress) {
      quiet_ = 0;
      if (HostAtomics::load_acquire(&visitors_) == 0) return;
    }
    turn_mutex_.unlock();
    while (HostAtomics::load_acquire(&visitors_) != 0) std::this_thread::yield();
    if (turn != Turn::progress) sleep(turn);
    turn_mutex_.lock();
  }
  void sleep(Turn turn) {
    const bool flying = turn == Turn::flying;
    std::chrono::microseconds most = turn == Turn::waiting ? kWaitingRest : kIdleRest;
    std::chrono::microseconds length = kFlyingRest;
    if (flying) {
      quiet_ = 0;
    } else if (quiet_++ < kSpins) {
      return std::this_thread::yield();
    } else {
      length = std::min(most, kFirstRest * (1u << std::min(quiet_ - kSpins, 10u)));
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_until(lock, Clock::now() + length, [&] { return poked_ || (flying && landed_); });
    poked_ = false;
  }

  // --- set-up ---

  static Clock::time_point after(double seconds) {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<char, Free>;
  static Memory zeroed(uint64_t bytes) {
    Memory memory(static_cast<char*>(std::aligned_alloc(64, align64(bytes))));
    if (!memory) throw std::bad_alloc();
    std::memset(memory.get(), 0, align64(bytes));
    return memory;
  }
  void halt() {
    if (!thread_.joinable()) return;
    command(Command::stop);
    {
      std::lock_guard<std::mutex> lock(mutex_);  // nobody will compute a step that is in flight now
      StepHeader& header = engine().step;
      HostAtomics::store_relaxed(&header.error, 1u);
      HostAtomics::store_release(&header.done_step, last_launched_);
      landed_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  const Settings settings_;
  const Memory core_, engine_;
  const uint32_t launch_window_;
  uint32_t window_, quiet_ = 0;
  uint64_t given_now_ = 0;  // 0: the real clock
  Platform platform_;
  std::unique_ptr<Context<Platform>> context_;
  std::thread thread_;
  std::mutex turn_mutex_;     // held by the loop except while it rests
  std::mutex visitor_mutex_;  // one visitor at a time
  uint32_t visitors_ = 0;

  std::mutex mutex_;  // what follows
  std::condition_variable launched_, changed_;
  std::optional<Launch> mailbox_;
  uint64_t last_launched_ = 0;
  bool landed_ = false, poked_ = false, ended_ = false;
};

}  // namespace hostless
