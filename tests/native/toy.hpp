// toy.hpp: a ring, an engine and a front end small enough to be obviously right.
//
// The toy engine keeps a token in each place of its KV pages. A sampled token is a hash of all tokens
// before it, read back through the block table, and of the sequence's random number: whatever the
// scheduler mixes up (a page, a position, a lane, a seed) yields another token than `expected` does.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "sampling.hpp"
#include "setup.hpp"

namespace toy {

using namespace hostless;

constexpr uint32_t kVocabulary = 997;

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  std::fflush(stderr);
  std::abort();
}
inline void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

// --- tokens ---

inline uint32_t prompt_token(uint64_t seed, uint32_t position) {
  return static_cast<uint32_t>(scramble(seed * 31 + position) % kVocabulary);
}
inline uint64_t absorb(uint64_t hash, uint32_t token) { return scramble(hash ^ (token + 1)) + token; }
inline uint32_t sampled(uint64_t hash, float uniform) {
  return static_cast<uint32_t>(scramble(hash + static_cast<uint64_t>(uniform * 16777216.0f)) % kVocabulary);
}

// What a request must generate, cut after `count` tokens or its stop token.
inline std::vector<uint32_t> expected(uint64_t seed, uint32_t prompt_count, uint32_t count, uint32_t stop_id) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < prompt_count; ++i) hash = absorb(hash, prompt_token(seed, i));
  std::vector<uint32_t> tokens;
  while (tokens.size() < count) {
    tokens.push_back(sampled(hash, uniform(seed, static_cast<uint32_t>(tokens.size()))));
    if (tokens.back() == stop_id) break;
    hash = absorb(hash, tokens.back());
  }
  return tokens;
}

// --- ring ---

inline char* zeroed(uint64_t bytes) {
  auto* memory = static_cast<char*>(std::aligned_alloc(64, align64(bytes)));
  std::memset(memory, 0, align64(bytes));
  return memory;
}

// Owned memory with a laid-out header.
class Ring {
 public:
  Ring(const RingGeometry& geometry, const Settings& g) {
    RingHeader h{};
    bytes = lay_out(h, geometry);
    h.magic = kRingMagic;
    h.version = kRingVersion;
    h.max_context = g.max_context;
    h.vocab_size = g.vocab_size;
    h.page_count = g.pages;
    memory = zeroed(bytes);
    std::memcpy(memory, &h, sizeof h);
  }
  ~Ring() { std::free(memory); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  RingHeader& header() const { return *reinterpret_cast<RingHeader*>(memory); }
  uint64_t* words() const { return at<uint64_t>(header().words_offset); }
  uint32_t* cancels() const { return at<uint32_t>(header().cancels_offset); }
  RequestRecord* records() const { return at<RequestRecord>(header().records_offset); }
  SlotReport* reports() const { return at<SlotReport>(header().reports_offset); }
  uint32_t* prompt() const { return at<uint32_t>(header().prompt_offset); }
  uint32_t* token() const { return at<uint32_t>(header().token_offset); }

  // An equal share of everything for front end f of `count`.
  FrontEndLease share(uint32_t f, uint32_t count) const {
    const RingHeader& h = header();
    const uint32_t slots = h.slot_count / count, prompts = h.prompt_words / count, tokens = h.token_words / count;
    return FrontEndLease{1, f * slots, slots, f * prompts, prompts, f * tokens, tokens, 0};
  }

  char* memory;
  uint64_t bytes;

 private:
  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(memory + offset);
  }
};

// --- engine ---

class Engine {
 public:
  Engine(EngineMemory& memory) : m(memory), kv(uint64_t{memory.pages} * kPageTokens, kVocabulary) {}

  uint32_t* page(uint32_t page) { return kv.data() + uint64_t{page} * kPageTokens; }

  // Computes the step that the header names. Checks what any engine relies on.
  void step() {
    const StepHeader& h = m.step;
    auto* sequences = at<StepSequence>(m.sequences_offset);
    expect(h.sequence_count >= 1 && h.sequence_count <= m.lanes, "a step of no sequences, or too many");
    std::vector<bool> lanes(m.lanes, false);
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < m.lanes; ++i) {
      const StepSequence& q = sequences[i];
      if (i >= h.sequence_count) {
        expect(q.token_count == 0, "a row of padding has tokens");
        continue;
      }
      expect(q.token_count >= 1 && q.lane < m.lanes && !lanes[q.lane], "a lane twice in a step, or a row of nothing");
      expect(q.token_begin == tokens, "the step's tokens have gaps");
      lanes[q.lane] = true;
      tokens += q.token_count;
      sequence(q, at<uint32_t>(m.out_tokens_offset)[i]);
    }
    expect(tokens == h.token_count && tokens <= m.step_tokens, "token_count is not the sum of the rows");
  }

 private:
  template <class T>
  T* at(uint64_t offset) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(&m) + offset);
  }
  void sequence(const StepSequence& q, uint32_t& out) {
    const uint32_t* table = at<uint32_t>(m.block_tables_offset) + uint64_t{q.lane} * m.lane_pages;
    const uint32_t* fresh = at<uint32_t>(m.tokens_offset) + q.token_begin;
    const uint32_t end = q.position + q.token_count;
    auto place = [&](uint32_t position) -> uint32_t& {
      const uint32_t number = table[position / kPageTokens];
      expect(position / kPageTokens < m.lane_pages && number < m.pages, "a page that does not exist");
      return page(number)[position % kPageTokens];
    };
    for (uint32_t i = 0; i < q.token_count; ++i) {
      expect(fresh[i] < kVocabulary, "a token that the model lacks");
      place(q.position + i) = fresh[i];
    }
    if (!q.sample) return;
    uint64_t hash = 0;
    for (uint32_t position = 0; position < end; ++position) hash = absorb(hash, place(position));
    out = sampled(hash, q.uniform);
  }

  EngineMemory& m;
  std::vector<uint32_t> kv;
};

}  // namespace toy
