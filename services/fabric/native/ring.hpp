// ring.hpp: the one structure that a front end and an engine share (B7).
//
// Compiled for the host and, by NVRTC, for the device: fixed-width types, no libc, no STL.
// Python reads every offset from the native module `_ring`; there is no second copy.
//
// A region is laid out so (all offsets from its start, 64-byte aligned):
//
//   RingHeader | slot words [slots] u64 | cancels [slots] u32 | records [slots] | reports [slots]
//              | prompt arena [prompt_words] u32 | token arena [token_words] u32
//
// The slot word is the whole public truth about a slot in one 64-bit word, so that it can be
// written, compared-and-swapped by RDMA, and never read torn:
//
//   bits  0..3   state        4..7  finish        8..31  generation        32..63  tokens generated
//
// The generation numbers the requests of a slot, from 1: next_generation when one is submitted, kept when
// the slot becomes empty. A cancel word holds the generation of the request that is to end; 0: none. A cancel
// of another generation than the slot word's is late, and means nothing.
#pragma once

#ifdef __CUDACC_RTC__
#include <cuda/std/cstdint>
namespace hostless {
using cuda::std::uint32_t;
using cuda::std::uint64_t;
using cuda::std::uint8_t;
}  // namespace hostless
#define HOSTLESS_FN __host__ __device__ inline
#elif defined(__CUDACC__)
#include <cstdint>
#define HOSTLESS_FN __host__ __device__ inline
#else
#include <cstdint>
#define HOSTLESS_FN inline
#endif

namespace hostless {

constexpr uint64_t kRingMagic = 0x31474e4952534c48ULL;  // "HLSRING1"
constexpr uint32_t kRingVersion = 1;
constexpr uint32_t kFrontEnds = 8;      // doorbells in one cache line
constexpr uint32_t kStopIds = 8;
constexpr uint32_t kPageTokens = 64;    // KV page = storage block (D4)
constexpr uint32_t kGenerationMask = 0xffffff;

enum class SlotState : uint8_t {
  empty = 0,               // the front end's: free
  prefill_pending = 1,     // submitted, not yet seen
  prefill_processing = 2,  // claimed: queued, loading or prefilling
  decode_processing = 3,   // in the running batch
  decode_paused = 4,       // paused for a prefill, or evicted and waiting for pages (B6)
  decode_completed = 5,    // the front end's again: finish and tokens are final
  kv_pending = 6,          // a decode engine's slot that waits for its prompt's KV (D1, D2)
};
constexpr uint32_t kSlotStates = 7;

enum class Finish : uint8_t {
  none = 0,
  stop = 1,          // end or stop token, which is the last token written
  length = 2,        // max_tokens reached
  cancelled = 3,
  too_large = 4,     // needs more KV pages than the engine has
  bad_record = 5,    // the record doesn't hold together; nothing was computed
  engine_error = 6,  // the engine failed on this request's step
  draining = 7,      // refused or stopped because the engine is draining
  kv_lost = 8,       // a hand-over between two engines that did not come about; it may be tried again
  handed_over = 9,   // prefilled, its first token sampled, its KV with the decode engine (D3)
};

enum class EngineState : uint32_t { starting = 0, serving = 1, draining = 2, stopped = 3, failed = 4 };

HOSTLESS_FN constexpr uint64_t slot_word(SlotState s, Finish f, uint32_t generation, uint32_t tokens) {
  return static_cast<uint64_t>(s) | (static_cast<uint64_t>(f) << 4) |
         (static_cast<uint64_t>(generation & kGenerationMask) << 8) | (static_cast<uint64_t>(tokens) << 32);
}
HOSTLESS_FN constexpr SlotState word_state(uint64_t w) { return static_cast<SlotState>(w & 15); }
HOSTLESS_FN constexpr Finish word_finish(uint64_t w) { return static_cast<Finish>((w >> 4) & 15); }
HOSTLESS_FN constexpr uint32_t word_generation(uint64_t w) { return static_cast<uint32_t>(w >> 8) & kGenerationMask; }
HOSTLESS_FN constexpr uint32_t word_tokens(uint64_t w) { return static_cast<uint32_t>(w >> 32); }

// The generation of a slot's next request: never 0.
HOSTLESS_FN constexpr uint32_t next_generation(uint32_t generation) {
  const uint32_t next = (generation + 1) & kGenerationMask;
  return next == 0 ? 1 : next;
}

// Who may make a transition.
enum class Owner : uint8_t { nobody = 0, front_end = 1, scheduler = 2 };

// The transition table (docs/ring.md carries the same one). A slot whose front end's lease has
// ended belongs to the scheduler entirely: it completes and empties it.
HOSTLESS_FN constexpr Owner transition_owner(SlotState from, SlotState to) {
  using S = SlotState;
  switch (from) {
    case S::empty: return to == S::prefill_pending || to == S::kv_pending ? Owner::front_end : Owner::nobody;
    case S::prefill_pending:
      return to == S::prefill_processing || to == S::decode_completed ? Owner::scheduler : Owner::nobody;
    case S::prefill_processing:
      return to == S::decode_processing || to == S::decode_completed || to == S::decode_paused ? Owner::scheduler
                                                                                               : Owner::nobody;
    case S::decode_processing:
      return to == S::decode_paused || to == S::decode_completed ? Owner::scheduler : Owner::nobody;
    case S::decode_paused:
      return to == S::decode_processing || to == S::decode_completed ? Owner::scheduler : Owner::nobody;
    case S::decode_completed: return to == S::empty ? Owner::front_end : Owner::nobody;
    case S::kv_pending: return to == S::decode_paused || to == S::decode_completed ? Owner::scheduler : Owner::nobody;
  }
  return Owner::nobody;
}

// FrontEndLease::active. The engine's host side makes a free one leased and a leased one ended; the
// scheduler drains an ended one, then makes it free.
enum class LeaseState : uint32_t { free = 0, leased = 1, ended = 2 };

// What a front end holds: written by the engine's host side on Attach, before the lease is told.
struct FrontEndLease {
  uint32_t active;      // LeaseState
  uint32_t slot_begin, slot_count;
  uint32_t prompt_begin, prompt_count;  // words
  uint32_t token_begin, token_count;    // words
  uint32_t reserved;
};
static_assert(sizeof(FrontEndLease) == 32);

struct RingHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t slot_count;
  uint64_t epoch;       // of the engine; a front end that sees another one attaches anew
  uint64_t size_bytes;
  uint64_t words_offset, cancels_offset, records_offset, reports_offset, prompt_offset, token_offset;
  uint32_t prompt_words, token_words;
  uint32_t max_context, vocab_size, page_count, reserved0;
  uint8_t pad0[128 - 104];

  // Submits so far of each front end; its only writer. One line: the scheduler polls it (B7).
  uint64_t doorbells[kFrontEnds];

  // Written by the engine.
  uint64_t heartbeat;      // scheduler loop turns; stands still only if the scheduler does
  uint32_t engine_state;   // EngineState
  uint32_t reserved1;
  uint8_t pad1[48];

  FrontEndLease leases[kFrontEnds];
  uint8_t pad2[512];
};
static_assert(sizeof(RingHeader) == 1024);

enum RecordFlags : uint32_t {
  kIgnoreEos = 1,      // stop_ids[0], the model's end token, does not stop
  kNoPersist = 2,      // KV blocks of this request are not stored
  kHandOver = 4,       // this engine prefills and samples one token; another one, told by `transfer`, goes on (D3)
  kRecordFlagsKnown = 7,
};

// One request, written by the front end before its slot word. 128 bytes.
struct RequestRecord {
  uint32_t generation;     // equals the slot word's, or the record is refused
  uint32_t sequence;       // the doorbell count with which it was submitted: FCFS within a front end
  uint32_t prompt_begin;   // words, absolute in the prompt arena
  uint32_t prompt_count;
  uint32_t token_begin;    // words, absolute in the token arena
  uint32_t max_tokens;     // room at token_begin
  float temperature;       // 0: greedy
  float top_p;             // (0, 1]
  uint32_t top_k;          // 0: off
  uint32_t flags;          // RecordFlags
  uint64_t seed;
  uint32_t stop_count;     // of stop_ids
  uint32_t cached_tokens;  // prompt tokens whose KV the store holds; a multiple of 64
  uint64_t kv_reads;       // of their blocks, those that this engine reads: | first:32 | end:32 |; 0: none
  uint8_t kv_root[16];     // root of the block-key chain: model, layout, tenant
  uint32_t stop_ids[kStopIds];
  uint64_t submitted_ns;   // front end's clock, for traces
  uint64_t transfer;       // names the hand-over in both engines' records; 0: one engine does it all
};
static_assert(sizeof(RequestRecord) == 128);

// What happened to a request, final when its slot is decode_completed. Times: engine's clock, unix ns.
struct SlotReport {
  uint32_t generation;
  uint32_t cached_tokens;    // really loaded
  uint32_t preemptions;
  uint32_t prefill_chunks;
  uint64_t claimed_ns, prefill_ns, first_token_ns, finished_ns;  // 0: did not happen
  uint64_t reserved[2];
};
static_assert(sizeof(SlotReport) == 64);

struct RingGeometry {
  uint32_t slots = 4096;
  uint32_t prompt_words = 1u << 22;
  uint32_t token_words = 1u << 22;
};

HOSTLESS_FN constexpr uint64_t align64(uint64_t n) { return (n + 63) & ~63ULL; }

// Fills the header's geometry and returns the bytes a region needs. Everything else is zeroed by the owner.
HOSTLESS_FN uint64_t lay_out(RingHeader& h, const RingGeometry& g) {
  uint64_t at = sizeof(RingHeader);
  h.slot_count = g.slots;
  h.prompt_words = g.prompt_words;
  h.token_words = g.token_words;
  h.words_offset = at;
  at = align64(at + 8ULL * g.slots);
  h.cancels_offset = at;
  at = align64(at + 4ULL * g.slots);
  h.records_offset = at;
  at = align64(at + sizeof(RequestRecord) * static_cast<uint64_t>(g.slots));
  h.reports_offset = at;
  at = align64(at + sizeof(SlotReport) * static_cast<uint64_t>(g.slots));
  h.prompt_offset = at;
  at = align64(at + 4ULL * g.prompt_words);
  h.token_offset = at;
  at = align64(at + 4ULL * g.token_words);
  h.size_bytes = at;
  return at;
}

}  // namespace hostless
