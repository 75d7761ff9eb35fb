// _ring: the ring's layout for Python, and the memory operations (memory.hpp) that must be atomic or fast.
// Everything else a front end does to a ring, it does with numpy at these offsets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "memory.hpp"
#include "ring.hpp"
#include "struct_layout.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

void unpack_words(nb::handle words, nb::handle states, nb::handle finishes, nb::handle generations, nb::handle tokens) {
  Buffer word_buffer(words, false), state_buffer(states, true), finish_buffer(finishes, true);
  Buffer generation_buffer(generations, true), token_buffer(tokens, true);
  size_t count = word_buffer.size() / 8;
  const auto* word = word_buffer.array<uint64_t>(count, "words");
  auto* state = state_buffer.array<uint8_t>(count, "states");
  auto* finish = finish_buffer.array<uint8_t>(count, "finishes");
  auto* generation = generation_buffer.array<uint32_t>(count, "generations");
  auto* token = token_buffer.array<uint32_t>(count, "tokens");
  for (size_t i = 0; i < count; ++i) {
    state[i] = static_cast<uint8_t>(word_state(word[i]));
    finish[i] = static_cast<uint8_t>(word_finish(word[i]));
    generation[i] = word_generation(word[i]);
    token[i] = word_tokens(word[i]);
  }
}

nb::dict header_layout() {
  using H = RingHeader;
  return StructLayout(sizeof(H)) FIELD(H, magic) FIELD(H, version) FIELD(H, slot_count) FIELD(H, epoch)
      FIELD(H, size_bytes) FIELD(H, words_offset) FIELD(H, cancels_offset) FIELD(H, records_offset)
          FIELD(H, reports_offset) FIELD(H, prompt_offset) FIELD(H, token_offset) FIELD(H, prompt_words)
              FIELD(H, token_words) FIELD(H, max_context) FIELD(H, vocab_size) FIELD(H, page_count) FIELD(H, doorbells)
                  FIELD(H, heartbeat) FIELD(H, engine_state) FIELD(H, leases)
                      .dict();
}

nb::dict lease_layout() {
  using L = FrontEndLease;
  return StructLayout(sizeof(L)) FIELD(L, active) FIELD(L, slot_begin) FIELD(L, slot_count) FIELD(L, prompt_begin)
      FIELD(L, prompt_count) FIELD(L, token_begin) FIELD(L, token_count)
          .dict();
}

nb::dict record_layout() {
  using R = RequestRecord;
  return StructLayout(sizeof(R)) FIELD(R, generation) FIELD(R, sequence) FIELD(R, prompt_begin) FIELD(R, prompt_count)
      FIELD(R, token_begin) FIELD(R, max_tokens) FIELD(R, temperature) FIELD(R, top_p) FIELD(R, top_k) FIELD(R, flags)
          FIELD(R, seed) FIELD(R, stop_count) FIELD(R, cached_tokens) FIELD(R, kv_reads) FIELD(R, kv_root)
              FIELD(R, stop_ids) FIELD(R, submitted_ns) FIELD(R, transfer)
                  .dict();
}

nb::dict report_layout() {
  using R = SlotReport;
  return StructLayout(sizeof(R)) FIELD(R, generation) FIELD(R, cached_tokens) FIELD(R, preemptions)
      FIELD(R, prefill_chunks) FIELD(R, claimed_ns) FIELD(R, prefill_ns) FIELD(R, first_token_ns) FIELD(R, finished_ns)
          .dict();
}

nb::dict lay_out_ring(uint32_t slots, uint32_t prompt_words, uint32_t token_words) {
  RingHeader h{};
  lay_out(h, RingGeometry{slots, prompt_words, token_words});
  nb::dict d;
  d["magic"] = kRingMagic, d["version"] = kRingVersion, d["slot_count"] = h.slot_count;
  d["words_offset"] = h.words_offset, d["cancels_offset"] = h.cancels_offset;
  d["records_offset"] = h.records_offset, d["reports_offset"] = h.reports_offset;
  d["prompt_offset"] = h.prompt_offset, d["token_offset"] = h.token_offset;
  d["prompt_words"] = h.prompt_words, d["token_words"] = h.token_words, d["size_bytes"] = h.size_bytes;
  return d;
}

void add_enums(nb::module_& m) {
  nb::enum_<SlotState>(m, "SlotState", nb::is_arithmetic())
      .value("EMPTY", SlotState::empty)
      .value("PREFILL_PENDING", SlotState::prefill_pending)
      .value("PREFILL_PROCESSING", SlotState::prefill_processing)
      .value("DECODE_PROCESSING", SlotState::decode_processing)
      .value("DECODE_PAUSED", SlotState::decode_paused)
      .value("DECODE_COMPLETED", SlotState::decode_completed)
      .value("KV_PENDING", SlotState::kv_pending);
  nb::enum_<Finish>(m, "Finish", nb::is_arithmetic())
      .value("NONE", Finish::none)
      .value("STOP", Finish::stop)
      .value("LENGTH", Finish::length)
      .value("CANCELLED", Finish::cancelled)
      .value("TOO_LARGE", Finish::too_large)
      .value("BAD_RECORD", Finish::bad_record)
      .value("ENGINE_ERROR", Finish::engine_error)
      .value("DRAINING", Finish::draining)
      .value("KV_LOST", Finish::kv_lost)
      .value("HANDED_OVER", Finish::handed_over);
  nb::enum_<EngineState>(m, "EngineState", nb::is_arithmetic())
      .value("STARTING", EngineState::starting)
      .value("SERVING", EngineState::serving)
      .value("DRAINING", EngineState::draining)
      .value("STOPPED", EngineState::stopped)
      .value("FAILED", EngineState::failed);
  nb::enum_<LeaseState>(m, "LeaseState", nb::is_arithmetic())
      .value("FREE", LeaseState::free)
      .value("LEASED", LeaseState::leased)
      .value("ENDED", LeaseState::ended);
  nb::enum_<Owner>(m, "Owner", nb::is_arithmetic())
      .value("NOBODY", Owner::nobody)
      .value("FRONT_END", Owner::front_end)
      .value("SCHEDULER", Owner::scheduler);
  nb::enum_<RecordFlags>(m, "RecordFlags", nb::is_arithmetic(), nb::is_flag())
      .value("IGNORE_EOS", kIgnoreEos)
      .value("NO_PERSIST", kNoPersist)
      .value("HAND_OVER", kHandOver);
}

}  // namespace

NB_MODULE(_ring, m) {
  m.attr("MAGIC") = kRingMagic;
  m.attr("VERSION") = kRingVersion;
  m.attr("FRONT_ENDS") = kFrontEnds;
  m.attr("STOP_IDS") = kStopIds;
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("GENERATION_MASK") = kGenerationMask;
  m.attr("RING_HEADER") = header_layout();
  m.attr("FRONT_END_LEASE") = lease_layout();
  m.attr("REQUEST_RECORD") = record_layout();
  m.attr("SLOT_REPORT") = report_layout();
  add_enums(m);

  m.def("lay_out", &lay_out_ring, "slots"_a, "prompt_words"_a, "token_words"_a);
  m.def(
      "slot_word", [](SlotState s, Finish f, uint32_t g, uint32_t t) { return slot_word(s, f, g, t); }, "state"_a,
      "finish"_a, "generation"_a, "tokens"_a);
  m.def(
      "unpack_word",
      [](uint64_t w) { return nb::make_tuple(word_state(w), word_finish(w), word_generation(w), word_tokens(w)); },
      "word"_a);
  m.def("next_generation", &next_generation, "generation"_a);
  m.def("unpack_words", &unpack_words, "words"_a, "states"_a, "finishes"_a, "generations"_a, "tokens"_a);
  m.def(
      "transition_owner", [](SlotState from, SlotState to) { return transition_owner(from, to); }, "source"_a,
      "target"_a);

  m.def("load_acquire_u64", &load_acquire_u64, "buffer"_a, "offset"_a);
  m.def("store_release_u64", &store_release_u64, "buffer"_a, "offset"_a, "value"_a);
  m.def("store_release_many", &store_release_many, "buffer"_a, "offsets"_a, "values"_a);
  m.def("compare_exchange_u64", &compare_exchange_u64, "buffer"_a, "offset"_a, "expected"_a, "desired"_a);
  m.def("fetch_add_u64", &fetch_add_u64, "buffer"_a, "offset"_a, "add"_a);
  m.def("compare_exchange_many", &compare_exchange_many, "buffer"_a, "offsets"_a, "expected"_a, "desired"_a, "found"_a);
  m.def("read_into", &read_into, "buffer"_a, "offset"_a, "out"_a);
  m.def("write_from", &write_from, "buffer"_a, "offset"_a, "data"_a);
  m.def("gather", &gather, "buffer"_a, "offsets"_a, "lengths"_a, "out"_a);
  m.def("scatter", &scatter, "buffer"_a, "offsets"_a, "lengths"_a, "data"_a);
}
