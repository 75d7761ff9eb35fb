// front_end.hpp: a front end that submits, cancels, loses its lease, and knows what must come back.
#pragma once
#include <chrono>
#include <cstddef>
#include <random>
#include <thread>

#include "host_platform.hpp"
#include "toy.hpp"

namespace toy {

constexpr uint32_t kMostPrompt = 220, kMostTokens = 90;

// One thread. Every wait ends, because every request does.
class FrontEnd : HostAtomics {
 public:
  FrontEnd(const Ring& r, uint32_t place, uint32_t places, uint64_t seed, bool errors)
      : ring(r),
        f(place),
        share(r.share(place, places)),
        random(seed),
        errors_allowed(errors),
        slots(share.slot_count) {}

  // Runs `count` requests to their ends.
  void run(uint32_t count) {
    grant();
    for (submitting = count; submitting > 0 || busy > 0;) {
      bool moved = false;
      for (uint32_t i = 0; i < slots.size(); ++i) moved |= look(i);
      if (submitting > 0 && chance(3)) moved |= submit(static_cast<uint32_t>(random() % slots.size()));
      if (chance(20000)) lose_lease();
      if (!moved) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    lose_lease();
  }
  uint64_t tokens = 0, evictions = 0;

 private:
  struct Slot {
    bool busy = false, cancelled = false, spoilt = false;
    bool receives = false, sends = false;  // one of the two engines of a request
    uint64_t seed = 0;
    uint32_t prompt = 0, seen = 0;
    std::vector<uint32_t> expected;
  };

  bool chance(uint32_t one_in) { return random() % one_in == 0; }
  uint32_t slot_of(uint32_t i) const { return share.slot_begin + i; }

  bool submit(uint32_t i) {
    Slot& s = slots[i];
    if (s.busy) return false;
    s = Slot{};
    s.busy = true;
    s.seed = random() % 64;  // few, so that prompts share their blocks
    s.prompt = 1 + static_cast<uint32_t>(random() % kMostPrompt);
    const uint32_t most = 1 + static_cast<uint32_t>(random() % kMostTokens), stop_id = random() % kVocabulary;
    s.expected = expected(s.seed, s.prompt, most, stop_id);
    s.receives = s.expected.size() >= 2 && chance(4);
    s.sends = !s.receives && chance(4);
    if (s.sends) s.expected.resize(1);
    RequestRecord q{};
    q.generation = next_generation(word_generation(load_acquire(&ring.words()[slot_of(i)])));
    q.sequence = static_cast<uint32_t>(++bell);
    q.prompt_begin = share.prompt_begin + i * kMostPrompt;
    q.prompt_count = s.prompt;
    q.token_begin = share.token_begin + i * kMostTokens;
    q.max_tokens = s.sends ? 1 : most;
    q.top_p = 1;
    q.seed = s.seed;
    q.stop_count = 1;
    q.stop_ids[0] = stop_id;
    q.flags = chance(8) ? uint32_t{kNoPersist} : 0;
    q.cached_tokens = chance(2) ? (s.prompt - 1) / kPageTokens * kPageTokens : 0;
    if (s.sends) q.flags |= kHandOver;
    if (s.sends || s.receives) q.transfer = s.prompt;
    q.kv_reads = s.seed + 1;
    q.kv_root[0] = 1;
    for (uint32_t p = 0; p < s.prompt; ++p) ring.prompt()[q.prompt_begin + p] = prompt_token(s.seed, p);
    if (chance(12)) spoil(s, q);
    ring.records()[slot_of(i)] = q;
    const SlotState state = s.receives ? SlotState::kv_pending : SlotState::prefill_pending;
    store_release(&ring.words()[slot_of(i)], slot_word(state, Finish::none, generation_of(i) + 1, 0));
    store_release(&ring.header().doorbells[f], bell);
    ++busy;
    --submitting;
    return true;
  }
  uint32_t generation_of(uint32_t i) const { return word_generation(load_acquire(&ring.words()[slot_of(i)])); }

  // Makes one word of a record wrong. A range that begins low would be another slot's, and races with
  // its owner, which is this front end's own affair: not here.
  void spoil(Slot& s, RequestRecord& q) {
    const uint32_t worst[] = {0x7fffffff, 0x80000000, 0xffffffff, 0, 1, 63};
    uint32_t fields[sizeof q / 4];
    std::memcpy(fields, &q, sizeof q);
    const size_t field = random() % (sizeof q / 4);
    const bool begins =
        field == offsetof(RequestRecord, prompt_begin) / 4 || field == offsetof(RequestRecord, token_begin) / 4;
    // What is received goes to the store: it must be this prompt's, which the agent knows by these words.
    if (s.receives && field / 2 == offsetof(RequestRecord, kv_reads) / 8) return;
    fields[field] = worst[random() % (begins ? 3 : 6)];
    std::memcpy(&q, fields, sizeof q);
    s.spoilt = true;
  }

  // Reads what is new of a slot; true if something was.
  bool look(uint32_t i) {
    Slot& s = slots[i];
    if (!s.busy) return false;
    const uint64_t word = load_acquire(&ring.words()[slot_of(i)]);
    const uint32_t count = word_tokens(word);
    const bool moved = count != s.seen;
    if (!s.spoilt) {
      expect(count >= s.seen && count <= s.expected.size(), "a token count that goes back, or too far");
      const uint32_t* out = ring.token() + share.token_begin + i * kMostTokens;
      for (; s.seen < count; ++s.seen) expect(out[s.seen] == s.expected[s.seen], "a wrong token");
    }
    if (word_state(word) == SlotState::decode_completed) return complete(i, word), true;
    if (!s.cancelled && chance(3000)) {
      s.cancelled = true;
      store_relaxed(&ring.cancels()[slot_of(i)], word_generation(word));
    }
    return moved;
  }

  void complete(uint32_t i, uint64_t word) {
    Slot& s = slots[i];
    const Finish finish = word_finish(word);
    const SlotReport& report = ring.reports()[slot_of(i)];
    expect(report.generation == word_generation(word), "another request's report");
    const bool whole = s.seen == s.expected.size();
    if (!s.spoilt && finish == Finish::cancelled) expect(s.cancelled, "cancelled, and nobody asked");
    if (!s.spoilt && finish == Finish::engine_error) expect(errors_allowed, "an engine error, and there was none");
    const bool lost = finish == Finish::kv_lost && (s.receives || s.sends);
    const bool handed_over = finish == Finish::handed_over && s.sends;
    if (!s.spoilt && finish != Finish::cancelled && finish != Finish::engine_error && !lost)
      expect(whole && (finish == Finish::stop || (s.sends ? handed_over : finish == Finish::length)),
             "an end before the end");
    tokens += s.seen;
    evictions += report.preemptions;
    s.busy = false;
    --busy;
    store_release(&ring.words()[slot_of(i)], slot_word(SlotState::empty, Finish::none, word_generation(word), 0));
  }

  void grant() {
    FrontEndLease& lease = ring.header().leases[f];
    const uint32_t active = share.active;
    lease.slot_begin = share.slot_begin, lease.slot_count = share.slot_count;
    lease.prompt_begin = share.prompt_begin, lease.prompt_count = share.prompt_count;
    lease.token_begin = share.token_begin, lease.token_count = share.token_count;
    store_release(&lease.active, active);
    bell = load_acquire(&ring.header().doorbells[f]);
  }

  // The engine's host side ends the lease: whatever runs, all slots come back empty.
  void lose_lease() {
    uint32_t& active = ring.header().leases[f].active;
    store_release(&active, static_cast<uint32_t>(LeaseState::ended));
    while (load_acquire(&active) != static_cast<uint32_t>(LeaseState::free))
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    for (uint32_t i = 0; i < slots.size(); ++i) {
      expect(word_state(load_acquire(&ring.words()[slot_of(i)])) == SlotState::empty, "an ended lease's slot holds on");
      slots[i] = Slot{};
    }
    busy = 0;
    if (submitting > 0) grant();
  }

  const Ring& ring;
  const uint32_t f;
  const FrontEndLease share;
  std::mt19937_64 random;
  const bool errors_allowed;
  std::vector<Slot> slots;
  uint64_t bell = 0;
  uint32_t submitting = 0, busy = 0;
};

}  // namespace toy
