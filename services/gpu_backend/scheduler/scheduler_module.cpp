// _scheduler: the host build of the scheduler core, on a thread of its own or turn by turn.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "host_scheduler.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

// A HostScheduler that keeps the ring's memory alive.
class Scheduler : public HostScheduler {
 public:
  Scheduler(Bytes ring, const Settings& settings, const GraphSizes& graphs, uint32_t launch_window)
      : HostScheduler(ring.data(), ring.size(), settings, graphs, launch_window), ring_(ring) {}

 private:
  Bytes ring_;
};

void construct(Scheduler* self, Bytes ring, uint32_t lanes, uint32_t step_tokens, uint32_t pages, uint32_t max_context,
               uint32_t vocab_size, uint32_t order_capacity, uint32_t prefill_chunk, bool decode_between_chunks,
               bool kv_orders, uint32_t store_limit, uint64_t sweep_ns, uint64_t watchdog_ns,
               uint64_t agent_patience_ns, std::vector<uint32_t> decode_graphs, std::vector<uint32_t> prefill_graphs,
               uint32_t launch_window) {
  Settings g{};
  g.lanes = lanes;
  g.step_tokens = step_tokens;
  g.pages = pages;
  g.max_context = max_context;
  g.vocab_size = vocab_size;
  g.order_capacity = order_capacity;
  g.prefill_chunk = prefill_chunk;
  g.decode_between_chunks = decode_between_chunks;
  g.kv_orders = kv_orders;
  g.store_limit = store_limit;
  g.sweep_ns = sweep_ns;
  g.watchdog_ns = watchdog_ns;
  g.agent_patience_ns = agent_patience_ns;
  new (self) Scheduler(ring, g, GraphSizes{std::move(decode_graphs), std::move(prefill_graphs)}, launch_window);
}

nb::object next_launch(HostScheduler& self, double timeout_s) {
  std::optional<Launch> launch;
  {
    nb::gil_scoped_release wait;
    launch = self.next_launch(timeout_s);
  }
  if (!launch) return nb::none();
  return nb::make_tuple(launch->step, launch->kind, launch->graph, launch->size);
}

nb::dict counters(HostScheduler& self) {
  const Counters n = self.counters();
  nb::dict all;
#define COUNTER(name) all[#name] = n.name
  COUNTER(turns), COUNTER(scans), COUNTER(claims), COUNTER(refused), COUNTER(finished), COUNTER(cancelled);
  COUNTER(prefill_launches), COUNTER(decode_launches), COUNTER(relaunches);
  COUNTER(prompt_tokens), COUNTER(cached_tokens), COUNTER(generated_tokens);
  COUNTER(pauses), COUNTER(preemptions), COUNTER(engine_errors);
  COUNTER(loads), COUNTER(blocks_offered), COUNTER(blocks_dropped);
  COUNTER(waiting), COUNTER(loading), COUNTER(prefilling), COUNTER(running), COUNTER(starved);
  COUNTER(free_lanes), COUNTER(free_pages), COUNTER(orders_open), COUNTER(illegal_transitions);
#undef COUNTER
  return all;
}

// Where Python finds things in `engine_memory`.
nb::dict layout(HostScheduler& self) {
  const EngineMemory& m = self.engine();
  nb::dict at;
  at["lanes"] = m.lanes;
  at["step_tokens"] = m.step_tokens;
  at["lane_pages"] = m.lane_pages;
  at["pages"] = m.pages;
  at["slots"] = m.slots;
  at["order_capacity"] = m.order_capacity;
  at["sequences_offset"] = m.sequences_offset;
  at["tokens_offset"] = m.tokens_offset;
  at["out_tokens_offset"] = m.out_tokens_offset;
  at["block_tables_offset"] = m.block_tables_offset;
  at["load_done_offset"] = m.load_done_offset;
  at["orders_offset"] = m.orders_offset;
  at["step_offset"] = offsetof(EngineMemory, step);
  return at;
}

// A struct as numpy.dtype takes it.
class Fields {
 public:
  explicit Fields(size_t itemsize) : itemsize_(itemsize) {}
  Fields& add(const char* name, const char* format, size_t offset) {
    names_.append(name), formats_.append(format), offsets_.append(offset);
    return *this;
  }
  nb::dict dtype() const {
    nb::dict d;
    d["names"] = names_, d["formats"] = formats_, d["offsets"] = offsets_, d["itemsize"] = itemsize_;
    return d;
  }

 private:
  size_t itemsize_;
  nb::list names_, formats_, offsets_;
};
#define FIELD(type, name, format) add(#name, format, offsetof(type, name))

nb::dict sequence_layout() {
  return Fields(sizeof(StepSequence))
      .FIELD(StepSequence, lane, "<u4")
      .FIELD(StepSequence, token_begin, "<u4")
      .FIELD(StepSequence, token_count, "<u4")
      .FIELD(StepSequence, position, "<u4")
      .FIELD(StepSequence, sample, "<u4")
      .FIELD(StepSequence, temperature, "<f4")
      .FIELD(StepSequence, top_p, "<f4")
      .FIELD(StepSequence, top_k, "<u4")
      .FIELD(StepSequence, uniform, "<f4")
      .FIELD(StepSequence, slot, "<u4")
      .FIELD(StepSequence, reserved, "(2,)<u4")
      .dtype();
}

nb::dict step_layout() {
  return Fields(sizeof(StepHeader))
      .FIELD(StepHeader, step, "<u8")
      .FIELD(StepHeader, kind, "<u4")
      .FIELD(StepHeader, sequence_count, "<u4")
      .FIELD(StepHeader, token_count, "<u4")
      .FIELD(StepHeader, graph, "<u4")
      .FIELD(StepHeader, done_step, "<u8")
      .FIELD(StepHeader, error, "<u4")
      .dtype();
}

nb::dict order_layout() {
  return Fields(sizeof(KvOrder))
      .FIELD(KvOrder, kind, "<u4")
      .FIELD(KvOrder, slot, "<u4")
      .FIELD(KvOrder, generation, "<u4")
      .FIELD(KvOrder, lane, "<u4")
      .FIELD(KvOrder, first_block, "<u4")
      .FIELD(KvOrder, block_count, "<u4")
      .FIELD(KvOrder, page, "<u4")
      .FIELD(KvOrder, kv_lease, "<u8")
      .FIELD(KvOrder, kv_root, "(16,)u1")
      .FIELD(KvOrder, tokens, "(64,)<u4")
      .dtype();
}

}  // namespace

NB_MODULE(_scheduler, m) {
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("STEP_SEQUENCE") = sequence_layout();
  m.attr("STEP_HEADER") = step_layout();
  m.attr("KV_ORDER") = order_layout();

  nb::enum_<Turn>(m, "Turn", nb::is_arithmetic())
      .value("PROGRESS", Turn::progress)
      .value("FLYING", Turn::flying)
      .value("WAITING", Turn::waiting)
      .value("IDLE", Turn::idle)
      .value("RELAUNCH", Turn::relaunch)
      .value("STOPPED", Turn::stopped);
  nb::enum_<Command>(m, "Command", nb::is_arithmetic())
      .value("RUN", Command::run)
      .value("DRAIN", Command::drain)
      .value("STOP", Command::stop);
  nb::enum_<KvOrderKind>(m, "KvOrderKind", nb::is_arithmetic())
      .value("LOAD", KvOrderKind::load)
      .value("STORE", KvOrderKind::store)
      .value("END", KvOrderKind::end);
  m.def("uniform", &hostless::uniform, "seed"_a, "index"_a);

  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Scheduler>(m, "HostScheduler")
      .def("__init__", &construct, nb::kw_only(), "ring"_a, "lanes"_a, "step_tokens"_a, "pages"_a, "max_context"_a,
           "vocab_size"_a, "order_capacity"_a, "prefill_chunk"_a, "decode_between_chunks"_a, "kv_orders"_a,
           "store_limit"_a, "sweep_ns"_a, "watchdog_ns"_a, "agent_patience_ns"_a, "decode_graphs"_a, "prefill_graphs"_a,
           "launch_window"_a)
      .def_prop_ro("engine_memory",
                   [](nb::object self) {
                     EngineMemory& m = nb::cast<Scheduler&>(self).engine();
                     return NumpyBytes(&m, {m.size_bytes}, self);
                   })
      .def("layout", [](Scheduler& s) { return layout(s); })
      .def("start", &Scheduler::start)
      .def("turn", &Scheduler::turn, "now_ns"_a)
      .def("command", &Scheduler::command, "command"_a)
      .def("join", &Scheduler::join, "timeout_s"_a, Release())
      .def("ended", &Scheduler::ended)
      .def(
          "next_launch", [](Scheduler& s, double timeout_s) { return next_launch(s, timeout_s); }, "timeout_s"_a)
      .def("complete", &Scheduler::complete, "step"_a, "error"_a)
      .def("orders_head", &Scheduler::orders_head)
      .def("release_orders", &Scheduler::release_orders, "tail"_a)
      .def("answer_load", &Scheduler::answer_load, "slot"_a, "generation"_a, "blocks"_a)
      .def("poke", &Scheduler::poke)
      .def("counters", [](Scheduler& s) { return counters(s); })
      .def("check", &Scheduler::check, Release());
}
