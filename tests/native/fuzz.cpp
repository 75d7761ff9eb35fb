// fuzz.cpp: whatever a front end or an agent writes, the scheduler neither faults nor loses anything.
//
//   fuzz SEED ROUNDS
//
// Garbage goes everywhere that others can write: header, leases, doorbells, slot words, cancels, records,
// prompts, tokens, load answers, the tail of the orders. After each turn the books must add up; in the end,
// when the leases end, all that was held is free. Built with AddressSanitizer and UBSan by the tests.
#include <cstddef>
#include <memory>
#include <random>

#include "check.hpp"
#include "host_platform.hpp"
#include "toy.hpp"

using namespace toy;

namespace {

constexpr uint32_t kSlots = 16, kPrompts = 2048, kTokens = 2048;

struct Clock : SingleThread {
  uint64_t now = 1;
  uint64_t clock_ns() { return now += 10'000'000; }
  static void launch(uint32_t, uint64_t) {}
  static uint32_t window_left() { return kNone; }
  static void rest(Turn) {}
};

class Fuzz {
 public:
  static inline uint64_t claims = 0, generated = 0;

  explicit Fuzz(uint64_t seed)
      : random(seed),
        g(settings(seed)),
        ring({kSlots, kPrompts, kTokens}, g),
        core(core_bytes(g, graphs()) / 8),
        memory(engine_geometry(g).size_bytes / 8),
        engine(*reinterpret_cast<EngineMemory*>(memory.data())) {
    set_up_core(core.data(), g, graphs());
    engine = engine_geometry(g);
    computes = std::make_unique<Engine>(engine);
    grant();
  }

  void run(uint32_t rounds) {
    while (rounds-- > 0) {
      const uint64_t dice = random() % 16;
      if (dice < 4) submit();
      if (dice < 2) spoil_ring();
      if (dice == 4) ring.cancels()[random() % kSlots] = word_generation(ring.words()[random() % kSlots]);
      if (dice == 5) ring.header().leases[random() % kFrontEnds].active = static_cast<uint32_t>(random() % 4);
      if (dice == 6) grant();
      if (dice == 7) ring.prompt()[random() % kPrompts] = any_word();
      if (dice == 8) ring.token()[random() % kTokens] = any_word();
      if (dice == 9) engine.orders_tail = random() % 4 ? engine.orders_head - random() % 4 : random();
      if (dice == 10)
        context().load_done[random() % kSlots] = load_answer(static_cast<uint32_t>(random() % 8), any_word());
      if (dice > 10 && random() % 8) land();
      for (uint64_t turns = random() % 3; turns > 0; --turns) turn();
    }
    finish();
  }

 private:
  static GraphSizes graphs() { return {{4}, {128}}; }
  static Settings settings(uint64_t seed) {
    Settings s{};
    s.slots = kSlots;
    s.prompt_words = kPrompts;
    s.token_words = kTokens;
    s.lanes = 4;
    s.step_tokens = 128;
    s.lane_pages = 4;
    s.pages = 7;
    s.order_capacity = 8;
    s.max_context = 256;
    s.vocab_size = kVocabulary;
    s.prefill_chunk = seed % 2 ? 32 : 0;
    s.mixed_tokens = seed % 3 ? 0 : 40;
    if (seed % 5 == 0) s.attention_quota_fs = 1000, s.attention_request_fs = 10, s.attention_pair_fs = 1;
    s.kv_orders = 1;
    s.store_limit = 4;
    s.agent_patience_ns = 50'000'000;
    return s;
  }
  uint32_t any_word() {
    const uint32_t worst[] = {0, 1, 2, 63, 64, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff, 0x7fc00000, 0x3f800000};
    return random() % 3 ? worst[random() % 11] : static_cast<uint32_t>(random());
  }
  Context<Clock> context() { return {clock, core.data(), ring.memory, memory.data()}; }

  void grant() {
    for (uint32_t f = 0; f < 2; ++f) ring.header().leases[f] = ring.share(f, 2);
  }
  void submit() {
    const auto slot = static_cast<uint32_t>(random() % kSlots);
    uint64_t& word = ring.words()[slot];
    const SlotState state = word_state(word);
    if (random() % 8 && state != SlotState::empty && state != SlotState::decode_completed) return;
    RequestRecord& q = ring.records()[slot] = RequestRecord{};
    q.generation = next_generation(word_generation(word));
    q.sequence = static_cast<uint32_t>(++ring.header().doorbells[slot / (kSlots / 2)]);
    q.prompt_begin = slot * 128;
    q.prompt_count = 1 + static_cast<uint32_t>(random() % 128);
    q.token_begin = slot * 128;
    q.max_tokens = 1 + static_cast<uint32_t>(random() % 100);
    q.top_p = 1;
    q.cached_tokens = random() % 2 ? (q.prompt_count - 1) / 64 * 64 : 0;
    q.kv_reads = q.kv_root[3] = 1;
    q.transfer = random() % 2;
    if (q.transfer && random() % 2) q.flags = kHandOver, q.max_tokens = 1;
    for (uint32_t i = 0; random() % 64 && i < q.prompt_count; ++i)
      ring.prompt()[q.prompt_begin + i] = static_cast<uint32_t>(random() % kVocabulary);
    for (uint64_t spoilt = random() % 3; spoilt > 0; --spoilt)
      reinterpret_cast<uint32_t*>(&q)[random() % (sizeof q / 4)] = any_word();
    word = slot_word(random() % 16 ? SlotState::prefill_pending : SlotState::kv_pending, Finish::none, q.generation, 0);
  }
  // Anything at all, anywhere before the arenas but where the test itself looks things up.
  void spoil_ring() {
    RingHeader& h = ring.header();
    const uint64_t begin = offsetof(RingHeader, doorbells), end = h.prompt_offset;
    reinterpret_cast<uint32_t*>(ring.memory)[(begin + random() % (end - begin)) / 4] = any_word();
  }
  void land() {
    if (engine.step.done_step == engine.step.step) return;
    computes->step();
    if (random() % 16 == 0) context().out_tokens[random() % g.lanes] = any_word();
    engine.step.error = random() % 32 == 0;
    engine.step.done_step = engine.step.step;
  }
  void turn() {
    Context<Clock> c = context();
    hostless::turn(c);
    const std::string wrong = Check<Clock>(c).run();
    expect(wrong.empty(), wrong);
  }
  void finish() {
    grant();
    for (uint32_t f = 0; f < kFrontEnds; ++f) ring.header().leases[f].active = f < 2 ? 2 : 0;
    Context<Clock> c = context();
    for (uint32_t turns = 0; turns < 64; ++turns) {
      land();
      for (uint64_t i = c.s.orders_released; i != c.s.orders_reserved; ++i)
        if (c.order(i).kind == static_cast<uint32_t>(KvOrderKind::load))
          c.load_done[c.order(i).slot] = load_answer(c.order(i).generation, 0);
      for (uint32_t i = 0; i < c.s.loading.count; ++i) {
        const Lane& lane = c.lanes[c.list(c.s.loading)[i]];
        c.load_done[lane.slot] = load_answer(lane.generation, 0);
      }
      engine.orders_tail = engine.orders_head;
      turn();
    }
    expect(c.s.free_page_count == g.pages && c.s.free_lane_count == g.lanes, "pages or lanes were lost");
    claims += c.s.counters.claims, generated += c.s.counters.generated_tokens;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      expect(c.phases[slot] == Phase::idle, "a request was lost");
      expect(word_state(ring.words()[slot]) == SlotState::empty, "a slot of an ended lease is not empty");
    }
  }

  std::mt19937_64 random;
  const Settings g;
  Ring ring;
  std::vector<uint64_t> core, memory;
  EngineMemory& engine;
  std::unique_ptr<Engine> computes;
  Clock clock;
};

}  // namespace

int main(int count, char** arguments) {
  expect(count == 3, "usage: fuzz SEED ROUNDS");
  const uint64_t seed = std::strtoull(arguments[1], nullptr, 10);
  for (uint64_t i = 0; i < 40; ++i) Fuzz(seed + i).run(static_cast<uint32_t>(std::strtoul(arguments[2], nullptr, 10)));
  expect(Fuzz::claims > 1000 && Fuzz::generated > 1000, "the fuzz hardly got anything past the door");
  std::printf("%llu claims, %llu tokens\n", Fuzz::claims + 0ULL, Fuzz::generated + 0ULL);
}
