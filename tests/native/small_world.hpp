// small_world.hpp: a scheduler of 3 slots and 4 pages with everything around it, as a value.
//
// The world can be saved, restored, and told apart from others by `identity`. Its actions are all
// that can happen outside the scheduler, and a turn of the scheduler itself.
#pragma once
#include "check.hpp"
#include "claim.hpp"
#include "host_platform.hpp"
#include "toy.hpp"

namespace small {

using namespace hostless;

// A launch stays in flight until the world says that it has landed.
struct StillPlatform : SingleThread {
  static uint64_t clock_ns() { return 1'000'000'000; }
  static void launch(uint32_t, uint64_t) {}
  static uint32_t window_left() { return kNone; }
  static void rest(Turn) {}
};

// Pages in the end: 1, 2, 3, 4; all but the first grow into their last page while decoding.
// The last three are shared by two engines: this one decodes the first two of them, and prefills the third.
struct Kind {
  uint32_t prompt, most, cached;
  bool receives = false, sends = false;
};
constexpr Kind kKinds[] = {
    {1, 1, 0}, {63, 3, 0}, {127, 3, 64}, {191, 3, 0}, {64, 2, 0, true}, {127, 3, 64, true}, {127, 1, 64, false, true}};
constexpr uint32_t kKindCount = 7, kSlots = 3, kPages = 4, kStop = 7;

struct Shape {
  uint32_t lanes, prefill_chunk;
  bool orders;
  uint32_t submits, cancels, errors;  // how many of each may happen
  bool shared = false;                 // whether there are requests of two engines
  uint32_t mixed_tokens = 0;
};

class World {
 public:
  explicit World(const Shape& shape)
      : settings(make(shape)), ring({kSlots, kSlots * 192, kSlots * 4}, settings), left(shape) {
    core.resize(core_bytes(settings, graphs()) / 8);
    engine.resize(engine_geometry(settings).size_bytes / 8);
    set_up_core(core.data(), settings, graphs());
    memory() = engine_geometry(settings);
    ring.header().leases[0] = ring.share(0, 1);
  }

  // --- actions; false where one is not possible, or changes nothing ---

  bool submit(uint32_t kind) {  // to the first empty slot: slots are alike
    uint32_t slot = 0;
    while (slot < kSlots && word_state(ring.words()[slot]) != SlotState::empty) ++slot;
    if (left.submits == 0 || slot == kSlots) return false;
    if (left.shared ? kind == 0 || kind == 2 : kKinds[kind].receives || kKinds[kind].sends) return false;
    --left.submits;
    uint64_t& word = ring.words()[slot];
    RequestRecord& q = ring.records()[slot] = RequestRecord{};
    q.generation = next_generation(word_generation(word));
    q.sequence = static_cast<uint32_t>(++ring.header().doorbells[0]);
    q.prompt_begin = slot * 192;
    q.prompt_count = kKinds[kind].prompt;
    q.token_begin = slot * 4;
    q.max_tokens = kKinds[kind].most;
    q.top_p = 1;
    q.cached_tokens = kKinds[kind].cached;
    q.kv_reads = q.kv_root[0] = 1;
    q.transfer = kKinds[kind].receives || kKinds[kind].sends;
    if (kKinds[kind].sends) q.flags = kHandOver;
    q.stop_count = 1;
    q.stop_ids[0] = kStop;
    const SlotState state = kKinds[kind].receives ? SlotState::kv_pending : SlotState::prefill_pending;
    word = slot_word(state, Finish::none, q.generation, 0);
    return true;
  }
  bool cancel(uint32_t slot) {
    const uint64_t word = ring.words()[slot];
    const SlotState state = word_state(word);
    if (left.cancels == 0 || state == SlotState::empty || state == SlotState::decode_completed) return false;
    if (ring.cancels()[slot] == word_generation(word)) return false;
    --left.cancels;
    ring.cancels()[slot] = word_generation(word);
    return true;
  }
  bool release(uint32_t slot) {
    uint64_t& word = ring.words()[slot];
    if (word_state(word) != SlotState::decode_completed) return false;
    word = slot_word(SlotState::empty, Finish::none, word_generation(word), 0);
    return true;
  }
  bool land(uint32_t token, bool error) {
    StepHeader& step = memory().step;
    if (step.done_step == step.step || (error && left.errors == 0)) return false;
    left.errors -= error;
    for (uint32_t i = 0; i < settings.lanes; ++i) context().out_tokens[i] = token;
    step.error = error;
    step.done_step = step.step;
    return true;
  }
  bool answer(uint32_t blocks) {
    const uint64_t next = memory().orders_tail;
    if (next == memory().orders_head) return false;
    const KvOrder& order = context().order(next);
    const auto kind = static_cast<KvOrderKind>(order.kind);
    const bool asks = kind != KvOrderKind::store && kind != KvOrderKind::end;
    if (!asks && blocks != 0) return false;
    if (blocks != 0 && kind != KvOrderKind::receive) blocks = order.block_count;
    const bool late = kind == KvOrderKind::receive && context().phases[order.slot] != Phase::expecting;
    if (asks && !late) context().load_done[order.slot] = load_answer(order.generation, blocks);
    ++memory().orders_tail;
    return true;
  }
  bool turn() {
    const uint64_t before = identity();
    uint64_t words[kSlots];
    std::memcpy(words, ring.words(), sizeof words);
    Context<StillPlatform> c = context();
    hostless::turn(c);
    const std::string wrong = Check<StillPlatform>(c).run();
    toy::expect(wrong.empty(), wrong);
    for (uint32_t i = 0; i < kSlots; ++i) {
      const SlotState from = word_state(words[i]), to = word_state(ring.words()[i]);
      toy::expect(from == to || transition_owner(from, to) == Owner::scheduler, "an illegal edge");
      toy::expect(word_generation(words[i]) == word_generation(ring.words()[i]), "a generation changed");
    }
    return identity() != before;
  }

  // --- the world as a value ---

  using Snapshot = std::vector<char>;
  Snapshot save() const {
    Snapshot bytes(sizeof left + 8 * core.size() + 8 * engine.size() + ring_bytes());
    char* to = bytes.data();
    auto put = [&](const void* from, size_t n) { std::memcpy(to, from, n), to += n; };
    put(&left, sizeof left), put(core.data(), 8 * core.size()), put(engine.data(), 8 * engine.size());
    put(ring.memory, ring_bytes());
    return bytes;
  }
  void restore(const Snapshot& bytes) {
    const char* from = bytes.data();
    auto get = [&](void* to, size_t n) { std::memcpy(to, from, n), from += n; };
    get(&left, sizeof left), get(core.data(), 8 * core.size()), get(engine.data(), 8 * engine.size());
    get(ring.memory, ring_bytes());
  }

  // A hash of all that the future can depend on. Left out are counters and times, what ended requests
  // left behind, and the names of pages, which are alike.
  uint64_t identity() {
    Context<StillPlatform> c = context();
    uint64_t hash = 0;
    auto add = [&](auto... values) { ((hash = scramble(hash + 1) ^ static_cast<uint64_t>(values)), ...); };
    add(left.submits, left.cancels, left.errors, memory().step.done_step == memory().step.step, memory().step.error);
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      add(ring.words()[slot], ring.cancels()[slot] == word_generation(ring.words()[slot]), c.phases[slot]);
      if (is_pending(ring.words()[slot]) && c.phases[slot] == Phase::idle)
        add(ring.records()[slot].prompt_count, ring.records()[slot].sequence, ring.records()[slot].max_tokens);
      if (c.phases[slot] == Phase::idle) continue;
      const Request& r = c.requests[slot];
      add(r.record.prompt_count, r.record.max_tokens, r.state, r.receives, r.lane, r.generated, r.computed, r.offered,
          r.next, r.previous);
      add(r.persist, r.owes_end, r.load_asked, c.load_done[slot]);
      for (uint32_t other = 0; other < kSlots; ++other)
        add(c.phases[other] != Phase::idle && c.requests[other].arrival < r.arrival);
    }
    for (uint32_t lane = 0; lane < settings.lanes; ++lane) {
      const Lane& l = c.lanes[lane];
      add(l.slot, l.page_count, l.place, l.flying, l.sampled, l.abandoned, l.cancelled, l.generation);
      if (l.abandoned) add(c.load_done[l.slot]);
      add(lane < c.s.free_lane_count ? c.free_lanes[lane] : kNone);
      add(lane < c.s.flight.sequences && c.s.flight.kind ? c.flight_lanes[lane] : kNone);
    }
    const CoreState& s = c.s;
    add(s.flight.kind, s.flight.decodes, s.decode_owed);
    add(s.waiting_head, s.waiting_count, s.free_page_count, s.leaving_pages);
    add(ring.header().doorbells[0] - s.front_ends[0].claimed, ring.header().doorbells[0] == s.front_ends[0].seen);
    add(memory().orders_tail - s.orders_released, s.ends_owed);
    for (uint64_t i = s.orders_released; i != s.orders_reserved; ++i)
      add(c.order(i).kind, c.order(i).slot, c.order(i).generation, c.page_refs[c.order(i).page]);
    if (s.flight.kind && memory().step.done_step == memory().step.step) add(c.out_tokens[0]);
    return hash;
  }

  bool empty() {
    for (uint32_t slot = 0; slot < kSlots; ++slot)
      if (word_state(ring.words()[slot]) != SlotState::empty) return false;
    const CoreState& s = context().s;
    return s.free_page_count == kPages && s.free_lane_count == settings.lanes && s.orders_released == s.orders_reserved;
  }

 private:
  static GraphSizes graphs() { return {{1, 2, 3}, {192}}; }
  static Settings make(const Shape& shape) {
    Settings g{};
    g.slots = kSlots;
    g.prompt_words = kSlots * 192;
    g.token_words = kSlots * 4;
    g.lanes = shape.lanes;
    g.step_tokens = 192;
    g.lane_pages = g.pages = g.order_capacity = kPages;
    g.max_context = kPages * kPageTokens;
    g.vocab_size = toy::kVocabulary;
    g.prefill_chunk = shape.prefill_chunk;
    g.decode_between_chunks = 1;
    g.mixed_tokens = shape.mixed_tokens;
    g.kv_orders = shape.orders;
    g.store_limit = 2;
    return g;
  }
  uint64_t ring_bytes() const { return ring.header().prompt_offset; }  // arenas hold nothing that matters
  Context<StillPlatform> context() { return {platform, core.data(), ring.memory, engine.data()}; }
  EngineMemory& memory() { return *reinterpret_cast<EngineMemory*>(engine.data()); }

  const Settings settings;
  toy::Ring ring;
  std::vector<uint64_t> core, engine;
  StillPlatform platform;
  Shape left;
};

}  // namespace small
