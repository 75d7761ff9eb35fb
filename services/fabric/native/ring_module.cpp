// _ring: the ring's layout for Python, and the memory operations that must be atomic or fast.
// Everything else a front end does to a ring, it does with numpy at these offsets.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "ring.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

// Copies of this size and more let other Python threads run meanwhile.
constexpr size_t kReleaseGil = 64 << 10;

// A contiguous buffer of Python's, held while the call lasts.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      throw nb::python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  size_t size() const { return static_cast<size_t>(view_.len); }

  uint8_t* at(uint64_t offset, uint64_t length) const {
    if (offset > size() || length > size() - offset) {
      std::string text = "bytes [" + std::to_string(offset) + ", +" + std::to_string(length) + ") of a region of " +
                         std::to_string(size()) + " bytes";
      throw nb::index_error(text.c_str());
    }
    return static_cast<uint8_t*>(view_.buf) + offset;
  }

  std::atomic_ref<uint64_t> word(uint64_t offset) const {
    uint8_t* p = at(offset, 8);
    if (reinterpret_cast<uintptr_t>(p) % 8 != 0) {
      std::string text = "offset " + std::to_string(offset) + " of an 8-byte word is not a multiple of 8";
      throw nb::value_error(text.c_str());
    }
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(p));
  }

  // The buffer as an array of T, which must hold `count` of them exactly.
  template <class T>
  T* array(size_t count, const char* name) const {
    if (size() != count * sizeof(T)) {
      std::string text = std::string(name) + " has " + std::to_string(size()) + " bytes, not " + std::to_string(count) +
                         " elements of " + std::to_string(sizeof(T));
      throw nb::value_error(text.c_str());
    }
    return static_cast<T*>(view_.buf);
  }

 private:
  Py_buffer view_;
};

template <class Copy>
void copy_gently(size_t bytes, Copy copy) {
  if (bytes < kReleaseGil) return copy();
  nb::gil_scoped_release let_others_run;
  copy();
}

bool aligned(const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

// Plain memcpy may split an 8-byte word; a reader of slot words must never see half of one.
void copy_out(uint8_t* from, uint8_t* to, size_t bytes) {
  if (aligned(from, 8) && aligned(to, 8)) {
    auto* source = reinterpret_cast<uint64_t*>(from);
    auto* target = reinterpret_cast<uint64_t*>(to);
    size_t words = bytes / 8;
    for (size_t i = 0; i < words; ++i) target[i] = std::atomic_ref<uint64_t>(source[i]).load(std::memory_order_relaxed);
    from += words * 8, to += words * 8, bytes %= 8;
  }
  std::memcpy(to, from, bytes);
  std::atomic_thread_fence(std::memory_order_acquire);
}

void copy_in(const uint8_t* from, uint8_t* to, size_t bytes) {
  std::atomic_thread_fence(std::memory_order_release);
  if (bytes == 8 && aligned(to, 8)) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to)).store(value, std::memory_order_release);
  } else if (bytes == 4 && aligned(to, 4)) {
    uint32_t value;
    std::memcpy(&value, from, 4);
    std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(to)).store(value, std::memory_order_release);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void read_into(nb::handle source, uint64_t offset, nb::handle out) {
  Buffer from(source, false), to(out, true);
  uint8_t* begin = from.at(offset, to.size());
  copy_gently(to.size(), [&] { copy_out(begin, to.at(0, to.size()), to.size()); });
}

void write_from(nb::handle target, uint64_t offset, nb::handle data) {
  Buffer to(target, true), from(data, false);
  uint8_t* begin = to.at(offset, from.size());
  copy_gently(from.size(), [&] { copy_in(from.at(0, from.size()), begin, from.size()); });
}

// Calls each(piece in the region, piece in the flat buffer, bytes) once every piece is known to be inside both.
template <class Each>
void for_each_piece(const Buffer& region, const Buffer& flat, nb::handle offsets, nb::handle lengths, Each each) {
  Buffer offset_buffer(offsets, false), length_buffer(lengths, false);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* length = length_buffer.array<uint64_t>(count, "lengths");
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    region.at(offset[i], length[i]);
    flat.at(total, length[i]);
    total += length[i];
  }
  if (total != flat.size()) throw nb::value_error("the lengths don't add up to the flat buffer's bytes");
  copy_gently(total, [&] {
    uint8_t* at = flat.at(0, total);
    for (size_t i = 0; i < count; at += length[i], ++i) each(region.at(offset[i], length[i]), at, length[i]);
  });
}

void gather(nb::handle source, nb::handle offsets, nb::handle lengths, nb::handle out) {
  Buffer from(source, false), to(out, true);
  for_each_piece(from, to, offsets, lengths, [](uint8_t* piece, uint8_t* flat, size_t n) { copy_out(piece, flat, n); });
}

void scatter(nb::handle target, nb::handle offsets, nb::handle lengths, nb::handle data) {
  Buffer to(target, true), from(data, false);
  for_each_piece(to, from, offsets, lengths, [](uint8_t* piece, uint8_t* flat, size_t n) { copy_in(flat, piece, n); });
}

uint64_t load_acquire_u64(nb::handle buffer, uint64_t offset) {
  return Buffer(buffer, false).word(offset).load(std::memory_order_acquire);
}

void store_release_u64(nb::handle buffer, uint64_t offset, uint64_t value) {
  Buffer(buffer, true).word(offset).store(value, std::memory_order_release);
}

void store_release_many(nb::handle buffer, nb::handle offsets, nb::handle values) {
  Buffer target(buffer, true), offset_buffer(offsets, false), value_buffer(values, false);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* value = value_buffer.array<uint64_t>(count, "values");
  for (size_t i = 0; i < count; ++i) target.word(offset[i]);  // all or none
  for (size_t i = 0; i < count; ++i) target.word(offset[i]).store(value[i], std::memory_order_release);
}

uint64_t compare_exchange_u64(nb::handle buffer, uint64_t offset, uint64_t expected, uint64_t desired) {
  Buffer(buffer, true).word(offset).compare_exchange_strong(expected, desired, std::memory_order_acq_rel);
  return expected;
}

void compare_exchange_many(nb::handle buffer, nb::handle offsets, nb::handle expected, nb::handle desired,
                           nb::handle found) {
  Buffer target(buffer, true), offset_buffer(offsets, false), expected_buffer(expected, false);
  Buffer desired_buffer(desired, false), found_buffer(found, true);
  size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* old = expected_buffer.array<uint64_t>(count, "expected");
  const auto* next = desired_buffer.array<uint64_t>(count, "desired");
  auto* out = found_buffer.array<uint64_t>(count, "found");
  for (size_t i = 0; i < count; ++i) target.word(offset[i]);  // all are tried, or none
  for (size_t i = 0; i < count; ++i) {
    out[i] = old[i];
    target.word(offset[i]).compare_exchange_strong(out[i], next[i], std::memory_order_acq_rel);
  }
}

uint64_t fetch_add_u64(nb::handle buffer, uint64_t offset, uint64_t addend) {
  return Buffer(buffer, true).word(offset).fetch_add(addend, std::memory_order_acq_rel);
}

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

// numpy's name of a field's type.
template <class T>
std::string format_of() {
  if constexpr (std::is_array_v<T>)
    return "(" + std::to_string(std::extent_v<T>) + ",)" + format_of<std::remove_extent_t<T>>();
  else if constexpr (std::is_class_v<T>)
    return "V" + std::to_string(sizeof(T));
  else if constexpr (std::is_floating_point_v<T>)
    return "<f" + std::to_string(sizeof(T));
  else
    return "<u" + std::to_string(sizeof(T));
}

// A struct as numpy.dtype takes it: {"names": ..., "formats": ..., "offsets": ..., "itemsize": ...}.
class Layout {
 public:
  explicit Layout(size_t itemsize) : itemsize_(itemsize) {}
  template <class T>
  Layout& field(const char* name, size_t offset) {
    names_.append(name), formats_.append(format_of<T>()), offsets_.append(offset);
    return *this;
  }
  nb::dict dict() const {
    nb::dict d;
    d["names"] = names_, d["formats"] = formats_, d["offsets"] = offsets_, d["itemsize"] = itemsize_;
    return d;
  }

 private:
  nb::list names_, formats_, offsets_;
  size_t itemsize_;
};

#define FIELD(Struct, name) .field<decltype(Struct::name)>(#name, offsetof(Struct, name))

nb::dict header_layout() {
  using H = RingHeader;
  return Layout(sizeof(H)) FIELD(H, magic) FIELD(H, version) FIELD(H, slot_count) FIELD(H, epoch) FIELD(H, size_bytes)
      FIELD(H, words_offset) FIELD(H, cancels_offset) FIELD(H, records_offset) FIELD(H, reports_offset)
          FIELD(H, prompt_offset) FIELD(H, token_offset) FIELD(H, prompt_words) FIELD(H, token_words)
              FIELD(H, max_context) FIELD(H, vocab_size) FIELD(H, page_count) FIELD(H, doorbells) FIELD(H, heartbeat)
                  FIELD(H, engine_state) FIELD(H, leases)
                      .dict();
}

nb::dict lease_layout() {
  using L = FrontEndLease;
  return Layout(sizeof(L)) FIELD(L, active) FIELD(L, slot_begin) FIELD(L, slot_count) FIELD(L, prompt_begin)
      FIELD(L, prompt_count) FIELD(L, token_begin) FIELD(L, token_count)
          .dict();
}

nb::dict record_layout() {
  using R = RequestRecord;
  return Layout(sizeof(R)) FIELD(R, generation) FIELD(R, sequence) FIELD(R, prompt_begin) FIELD(R, prompt_count)
      FIELD(R, token_begin) FIELD(R, max_tokens) FIELD(R, temperature) FIELD(R, top_p) FIELD(R, top_k) FIELD(R, flags)
          FIELD(R, seed) FIELD(R, stop_count) FIELD(R, cached_tokens) FIELD(R, kv_lease) FIELD(R, kv_root)
              FIELD(R, stop_ids) FIELD(R, submitted_ns)
                  .dict();
}

nb::dict report_layout() {
  using R = SlotReport;
  return Layout(sizeof(R)) FIELD(R, generation) FIELD(R, cached_tokens) FIELD(R, preemptions) FIELD(R, prefill_chunks)
      FIELD(R, claimed_ns) FIELD(R, prefill_ns) FIELD(R, first_token_ns) FIELD(R, finished_ns)
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
      .value("DRAINING", Finish::draining);
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
      .value("NO_PERSIST", kNoPersist);
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
  m.def("compare_exchange_many", &compare_exchange_many, "buffer"_a, "offsets"_a, "expected"_a, "desired"_a, "found"_a);
  m.def("fetch_add_u64", &fetch_add_u64, "buffer"_a, "offset"_a, "addend"_a);
  m.def("read_into", &read_into, "buffer"_a, "offset"_a, "out"_a);
  m.def("write_from", &write_from, "buffer"_a, "offset"_a, "data"_a);
  m.def("gather", &gather, "buffer"_a, "offsets"_a, "lengths"_a, "out"_a);
  m.def("scatter", &scatter, "buffer"_a, "offsets"_a, "lengths"_a, "data"_a);
}
