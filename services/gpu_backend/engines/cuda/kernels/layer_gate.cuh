// layer_gate.cuh: what a prefill step does before each layer: it tells the KV agent of the prompts for other engines
// that it computes a part of, and how many layers are computed; and it waits for layers that the agent brings (D6).
//
// Words and tables lie in host memory that the GPU maps. Compiles for the device, and for the host as a block of one
// thread, which is how tests run it.
#pragma once

#ifdef __CUDA_ARCH__
#define GATE_FN __device__ __forceinline__
#define GATE_THREAD threadIdx.x
#define GATE_THREADS blockDim.x
#else
#include <chrono>
#include <thread>
#define GATE_FN inline
#define GATE_THREAD 0u
#define GATE_THREADS 1u
#endif

namespace hostless_gate {

using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u64 kFailed = 1ull << 63, kOpen = 1ull << 62, kLayers = 0xffffffffull;  // step.hpp's layers_ready
constexpr u32 kTables = 8, kPage = 64, kNever = 0xffffffffu;

// step.hpp's StepSequence; tests compare the two.
struct Sequence {
  u32 lane, token_begin, token_count, position, sample, sampling[4], slot, generation, hands_over;
};

// Of one step: a row a sequence. The last kTables of them stay readable.
struct Table {
  u64 number;    // of this step among those that told of something, from 1; 0 while the table is written
  u32 rows;
  u32 computed;  // layers [0, computed) have the new tokens' KV in the pages
  u32 over;      // nothing more comes of this step
  u32 pad[11];
};
struct Row {
  u32 slot, generation, lane, position;
  u32 count;  // 0: not for another engine
  u32 last;
  u32 lost;   // layers that were computed when it was seen that its hit won't come; else kNever
  u32 pad;
};
// Behind the table: Row[lanes], then u32[lanes, lane_pages], the pages of each row up to its last new position.
// All of it takes whole 64 bytes, so that the next table is aligned.

// In device memory.
struct Gate {
  const u64* words;  // layers_ready, a word a lane
  u64* begun;        // number of the newest table; the tables lie 64 bytes behind it
  u64 patience_ns;   // the longest that a step waits for a layer
  u64 told;
  u32 lanes, lane_pages;
  u32 tells, waits;  // of the step under way
  u32 waiting[1];    // [lanes]: the sequence waits for layers
};

GATE_FN u64 table_bytes(const Gate& g) {
  return (sizeof(Table) + u64{g.lanes} * (sizeof(Row) + 4 * u64{g.lane_pages}) + 63) / 64 * 64;
}
GATE_FN Table& table_of(const Gate& g, u64 number) {
  return *reinterpret_cast<Table*>(reinterpret_cast<char*>(g.begun) + 64 + number % kTables * table_bytes(g));
}
GATE_FN Row* rows_of(Table& t) { return reinterpret_cast<Row*>(&t + 1); }

#ifdef __CUDA_ARCH__
GATE_FN u64 look(const u64* at) {
  u64 value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
  return value;
}
GATE_FN void show(u64* at, u64 value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(at), "l"(value) : "memory");
}
GATE_FN void show(u32* at, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
GATE_FN void settle() { __threadfence_system(); }
GATE_FN u64 now_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
GATE_FN void nap() { __nanosleep(300); }
#else
GATE_FN u64 look(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
template <class T>
GATE_FN void show(T* at, T value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
GATE_FN void settle() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
GATE_FN u64 now_ns() { return static_cast<u64>(std::chrono::steady_clock::now().time_since_epoch().count()); }
GATE_FN void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
#endif

// A barrier of the block: whether any thread says so.
#ifdef __CUDA_ARCH__
GATE_FN bool any(bool value = false) { return __syncthreads_or(value); }
#else
GATE_FN bool any(bool value = false) { return value; }
#endif

GATE_FN bool tells(const Sequence& q) { return q.token_count != 0 && q.hands_over != 0; }

// The block: rows and pages of the prompts that are for other engines.
GATE_FN void tell(Gate& g, const Sequence* sequences, u32 count, const u32* block_tables) {
  const u64 number = g.told + 1;
  Table& t = table_of(g, number);
  Row* rows = rows_of(t);
  u32* pages = reinterpret_cast<u32*>(rows + g.lanes);
  if (GATE_THREAD == 0) {
    show(&t.number, u64{0});
    settle();
  }
  any();
  for (u32 i = GATE_THREAD; i < count; i += GATE_THREADS) {
    const Sequence& q = sequences[i];
    rows[i] = Row{q.slot, q.generation, q.lane, q.position, tells(q) ? q.token_count : 0, q.sample, kNever, 0};
  }
  for (u32 i = 0; i < count; ++i) {
    const Sequence& q = sequences[i];
    if (!tells(q)) continue;
    const u32* from = block_tables + u64{q.lane} * g.lane_pages;
    const u32 many = (q.position + q.token_count + kPage - 1) / kPage;
    for (u32 at = GATE_THREAD; at < many; at += GATE_THREADS) pages[u64{i} * g.lane_pages + at] = from[at];
  }
  settle();
  any();
  if (GATE_THREAD != 0) return;
  t.rows = count;
  t.computed = t.over = 0;
  g.told = number;
  show(&t.number, number);
  show(g.begun, number);
}

// The block, at a step's begin.
GATE_FN void begin(Gate& g, const Sequence* sequences, u32 count, const u32* block_tables) {
  bool some_tell = false, some_wait = false;
  for (u32 i = GATE_THREAD; i < count; i += GATE_THREADS) {
    const Sequence& q = sequences[i];
    some_tell |= tells(q);
    const bool waits = q.token_count != 0 && (look(&g.words[q.lane]) & (kOpen | kFailed)) != 0;
    g.waiting[i] = waits;
    some_wait |= waits;
  }
  some_tell = any(some_tell);
  some_wait = any(some_wait);
  if (GATE_THREAD == 0) g.tells = some_tell, g.waits = some_wait;
  if (some_tell) tell(g, sequences, count, block_tables);
}

// One thread: true when the layer is there, false if it won't be. When patience ends the whole step has failed.
GATE_FN bool comes(const Gate& g, u32 lane, u32 layer, u32* error) {
  u64 since = 0;
  for (;;) {
    const u64 word = look(&g.words[lane]);
    if (word & kFailed) return false;
    if (!(word & kOpen) || (word & kLayers) > layer) return true;
    const u64 now = now_ns();
    if (since == 0) since = now;
    if (now - since > g.patience_ns) {
      *error = 1;
      return false;
    }
    nap();
  }
}

// The block: returns when each sequence's layer is there, or won't be; then the sequence doesn't count, and nothing is
// sampled for it.
GATE_FN void wait(Gate& g, Sequence* sequences, u32 count, u32 layer, u32* error) {
  for (u32 i = GATE_THREAD; i < count; i += GATE_THREADS) {
    Sequence& q = sequences[i];
    if (!g.waiting[i] || comes(g, q.lane, layer, error)) continue;
    g.waiting[i] = 0;
    q.sample = 0;
    if (g.tells) show(&rows_of(table_of(g, g.told))[i].lost, layer);
  }
}

// Before layer `layer`; behind the last one with `layer` = `layers`. By one block.
GATE_FN void pass(Gate& g, Sequence* sequences, const u32* sequence_count, const u32* block_tables, u32* error,
                  u32 layer, u32 layers) {
  const u32 count = *sequence_count < g.lanes ? *sequence_count : g.lanes;
  if (layer == 0) {
    begin(g, sequences, count, block_tables);
    any();
  }
  if (g.tells && layer != 0 && GATE_THREAD == 0) {
    Table& t = table_of(g, g.told);
    show(&t.computed, layer);
    if (layer == layers) show(&t.over, 1u);
  }
  if (g.waits && layer < layers) wait(g, sequences, count, layer, error);
}

}  // namespace hostless_gate
