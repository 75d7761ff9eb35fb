// _scheduler: the host build of the scheduler core, on a thread of its own or turn by turn.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "host_scheduler.hpp"
#include "python_layouts.hpp"

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

void construct(Scheduler* self, Bytes ring, nb::dict settings, std::vector<uint32_t> decode_graphs,
               std::vector<uint32_t> prefill_graphs, uint32_t launch_window) {
  const GraphSizes graphs{std::move(decode_graphs), std::move(prefill_graphs)};
  new (self) Scheduler(ring, settings_from(settings), graphs, launch_window);
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

NumpyBytes foresee(HostScheduler& self) {
  auto* seen = new std::vector<Foreseen>(self.foresee());
  nb::capsule owner(seen, [](void* p) noexcept { delete static_cast<std::vector<Foreseen>*>(p); });
  return NumpyBytes(seen->data(), {seen->size() * sizeof(Foreseen)}, owner);
}

nb::dict sequence_layout() {
  using S = StepSequence;
  return StructLayout(sizeof(S)) FIELD(S, lane) FIELD(S, token_begin) FIELD(S, token_count) FIELD(S, position)
      FIELD(S, sample) FIELD(S, temperature) FIELD(S, top_p) FIELD(S, top_k) FIELD(S, uniform) FIELD(S, slot)
          FIELD(S, generation) FIELD(S, hands_over)
              .dict();
}

nb::dict step_layout() {
  using S = StepHeader;
  return StructLayout(sizeof(S)) FIELD(S, step) FIELD(S, kind) FIELD(S, sequence_count) FIELD(S, token_count)
      FIELD(S, graph) FIELD(S, done_step) FIELD(S, error)
          .dict();
}

nb::dict order_layout() {
  using S = KvOrder;
  return StructLayout(sizeof(S)) FIELD(S, kind) FIELD(S, slot) FIELD(S, generation) FIELD(S, lane) FIELD(S, first_block)
      FIELD(S, block_count) FIELD(S, page) FIELD(S, kv_reads) FIELD(S, kv_root) FIELD(S, tokens) FIELD(S, transfer)
          .dict();
}

nb::dict foreseen_layout() {
  using F = Foreseen;
  return StructLayout(sizeof(F)) FIELD(F, sequence) FIELD(F, source) FIELD(F, token).dict();
}

}  // namespace

NB_MODULE(_scheduler, m) {
  m.attr("PAGE_TOKENS") = kPageTokens;
  m.attr("STEP_SEQUENCE") = sequence_layout();
  m.attr("STEP_HEADER") = step_layout();
  m.attr("KV_ORDER") = order_layout();
  m.attr("FORESEEN") = foreseen_layout();
  m.attr("NONE") = kNone;
  m.attr("LAYERS_FAILED") = kLayersFailed;
  m.attr("LAYERS_OPEN") = kLayersOpen;

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
      .value("END", KvOrderKind::end)
      .value("RECEIVE", KvOrderKind::receive)
      .value("SEND", KvOrderKind::send)
      .value("PREFILL", KvOrderKind::prefill);
  m.def("uniform", &hostless::uniform, "seed"_a, "index"_a);

  using Release = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Scheduler>(m, "HostScheduler")
      .def("__init__", &construct, nb::kw_only(), "ring"_a, "settings"_a, "decode_graphs"_a, "prefill_graphs"_a,
           "launch_window"_a)
      .def_prop_ro("engine_memory",
                   [](nb::object self) {
                     EngineMemory& m = nb::cast<Scheduler&>(self).engine();
                     return NumpyBytes(&m, {m.size_bytes}, self);
                   })
      .def("layout", [](Scheduler& s) { return engine_layout(s.engine()); })
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
      .def("foresee", [](Scheduler& s) { return foresee(s); })
      .def("counters", [](Scheduler& s) { return by_name(s.counters()); })
      .def("check", &Scheduler::check, Release());
}
