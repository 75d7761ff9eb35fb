// stress.cpp: front ends, scheduler, engine and KV agent, each on a thread of its own.
//
//   stress host|team SEED REQUESTS
//
// host: the scheduler as it serves (HostScheduler). team: the core walked by three threads together, as
// on a GPU, with its launch window. Built with ThreadSanitizer and with AddressSanitizer by the tests.
// Every token is checked, every request ends, and in the end nothing is held.
#include <set>

#include "front_end.hpp"
#include "team.hpp"

using namespace toy;

namespace {

// Plays the store: whatever is asked for it has, or says that it hasn't.
template <class Scheduler>
class Agent {
 public:
  Agent(Scheduler& s, Engine& e, uint64_t seed) : scheduler(s), engine(e), random(seed) {}

  bool serve() {
    const uint64_t head = scheduler.orders_head();
    const bool some = taken != head;
    for (; taken != head; ++taken) {
      EngineMemory& m = scheduler.engine();
      auto* orders = reinterpret_cast<KvOrder*>(reinterpret_cast<char*>(&m) + m.orders_offset);
      take(orders[taken & (m.order_capacity - 1)]);
      if (random() % 4 == 0) scheduler.release_orders(taken + 1);
    }
    scheduler.release_orders(taken);
    return some;
  }
  void finish() const { expect(known.empty(), "the agent was not told of an end"); }

 private:
  // Of a prompt of `transfer` tokens, whose seed the lease tells.
  static uint32_t first_token(const KvOrder& order) {
    return expected(order.kv_reads - 1, static_cast<uint32_t>(order.transfer), 1, kVocabulary)[0];
  }
  void take(const KvOrder& order) {
    const auto request = std::pair(order.slot, order.generation);
    switch (static_cast<KvOrderKind>(order.kind)) {
      case KvOrderKind::load: {
        known.insert(request);
        const auto blocks = static_cast<uint32_t>(random() % (order.block_count + 1));
        EngineMemory& m = scheduler.engine();
        auto* table = reinterpret_cast<uint32_t*>(reinterpret_cast<char*>(&m) + m.block_tables_offset);
        for (uint32_t i = 0; i < blocks * kPageTokens; ++i)
          engine.page(table[order.lane * m.lane_pages + i / kPageTokens])[i % kPageTokens] =
              prompt_token(order.kv_reads - 1, i);
        return scheduler.answer_load(order.slot, order.generation, blocks);
      }
      case KvOrderKind::store:
        known.insert(request);
        for (uint32_t i = 0; i < kPageTokens; ++i)
          expect(engine.page(order.page)[i] == order.tokens[i], "a store's page holds other tokens than it says");
        return;
      case KvOrderKind::receive: {
        known.insert(request);
        const bool comes = random() % 8 && order.transfer <= kMostPrompt;
        return scheduler.answer_load(order.slot, order.generation, comes ? first_token(order) + 1 : 0);
      }
      case KvOrderKind::send:
        known.insert(request);
        return scheduler.answer_load(order.slot, order.generation, random() % 8 ? order.block_count : 0);
      case KvOrderKind::prefill: known.insert(request); return;
      case KvOrderKind::end: expect(known.erase(request) == 1, "an end of a request that the agent doesn't know");
    }
  }

  Scheduler& scheduler;
  Engine& engine;
  std::mt19937_64 random;
  uint64_t taken = 0;
  std::set<std::pair<uint32_t, uint32_t>> known;
};

template <class Scheduler>
void stress(Scheduler& scheduler, const Ring& ring, uint64_t seed, uint32_t requests) {
  Engine engine(scheduler.engine());
  FrontEnd first(ring, 0, 2, seed, true), second(ring, 1, 2, seed + 1, true);
  Agent<Scheduler> agent(scheduler, engine, seed + 2);
  std::atomic<bool> serving{true};
  scheduler.start();
  std::thread computes([&] {
    std::mt19937_64 random(seed + 3);
    while (serving.load())
      if (const auto launch = scheduler.next_launch(0.01)) {
        if constexpr (requires { scheduler.foresee(); }) (void)scheduler.foresee();
        engine.step();
        scheduler.complete(launch->step, random() % 300 == 0);
      }
  });
  std::thread stores([&] {
    while (serving.load())
      if (!agent.serve()) std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  std::thread other([&] { second.run(requests / 2); });
  first.run(requests - requests / 2);
  other.join();
  scheduler.command(Command::stop);
  scheduler.join(60);
  serving = false;
  computes.join();
  stores.join();
  agent.serve();
  agent.finish();
  const std::string wrong = scheduler.check();
  expect(wrong.empty(), wrong);
  const Counters n = scheduler.counters();
  expect(n.running + n.waiting + n.prefilling + n.loading + n.starved == 0, "requests are left");
  std::printf("%llu tokens, %llu claims, %llu preemptions, %llu loads, %llu stores, %llu dropped, %llu relaunches\n",
              n.generated_tokens + 0ULL, n.claims + 0ULL, n.preemptions + 0ULL, n.loads + 0ULL, n.blocks_offered + 0ULL,
              n.blocks_dropped + 0ULL, n.relaunches + 0ULL);
}

}  // namespace

int main(int count, char** arguments) {
  expect(count == 4, "usage: stress host|team SEED REQUESTS");
  const bool team = std::string(arguments[1]) == "team";
  const uint64_t seed = std::strtoull(arguments[2], nullptr, 10);
  const auto requests = static_cast<uint32_t>(std::strtoul(arguments[3], nullptr, 10));
  Settings g{};
  g.slots = 32;
  g.prompt_words = 32 * kMostPrompt;
  g.token_words = 32 * kMostTokens;
  g.lanes = 6;
  g.step_tokens = 256;
  g.lane_pages = 5;
  g.pages = 9;
  g.order_capacity = 32;
  g.max_context = 320;
  g.vocab_size = kVocabulary;
  g.prefill_chunk = seed % 2 ? 48 : 0;
  g.decode_between_chunks = 1;
  g.mixed_tokens = seed % 3 ? 0 : 64;
  g.kv_orders = 1;
  g.store_limit = 8;
  g.agent_patience_ns = 1'000'000'000;
  const GraphSizes graphs{{1, 2, 4, 6}, {64, 128, 256}};
  Ring ring({g.slots, g.prompt_words, g.token_words}, g);
  if (team) {
    TeamScheduler scheduler(ring.memory, g, graphs, 3);
    stress(scheduler, ring, seed, requests);
  } else {
    HostScheduler scheduler(ring.memory, ring.bytes, g, graphs, 120);
    stress(scheduler, ring, seed, requests);
  }
}
