// _device: what Python needs of the C++ layouts to set a scheduler up on a GPU, and to look at it after it ended.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>

#include "../scheduler/check.hpp"
#include "../scheduler/host_platform.hpp"
#include "../scheduler/python_layouts.hpp"
#include "../scheduler/setup.hpp"
#include "control.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using NumpyBytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

NumpyBytes zeroed(uint64_t bytes) {
  auto* memory = static_cast<uint8_t*>(std::aligned_alloc(64, align64(bytes)));
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, align64(bytes));
  return NumpyBytes(memory, {align64(bytes)}, nb::capsule(memory, [](void* p) noexcept { std::free(p); }));
}

// The first memory of core and engine, to be copied to the GPU before the scheduler starts; and the core's hot_bytes.
nb::tuple images(Bytes ring, nb::dict given, std::vector<uint32_t> decode_graphs,
                 std::vector<uint32_t> prefill_graphs) {
  const GraphSizes graphs{std::move(decode_graphs), std::move(prefill_graphs)};
  const Settings g = with_ring(ring.data(), ring.size(), settings_from(given));
  check_settings(g, graphs);
  NumpyBytes core = zeroed(core_bytes(g, graphs)), engine = zeroed(engine_geometry(g).size_bytes);
  set_up_core(core.data(), g, graphs);
  *reinterpret_cast<EngineMemory*>(engine.data()) = engine_geometry(g);
  return nb::make_tuple(core, engine, reinterpret_cast<const CoreState*>(core.data())->hot_bytes);
}

// After the end, on copies: empty if all is well.
std::string check(Bytes core, Bytes ring, Bytes engine, Bytes agent) {
  struct Nobody : SingleThread {
  } nobody;
  Context<Nobody> context(nobody, core.data(), core.data(), ring.data(), engine.data(), agent.data());
  return Check<Nobody>(context).run();
}

nb::dict control_layout() {
  using C = Control;
  return StructLayout(sizeof(C)) FIELD(C, command) FIELD(C, host_beat) FIELD(C, ended) FIELD(C, device_ns)
      FIELD(C, launch_errors) FIELD(C, last_error) FIELD(C, relaunch_error)
          .dict();
}

nb::dict mission_layout() {
  using M = Mission;
  return StructLayout(sizeof(M)) FIELD(M, core) FIELD(M, ring) FIELD(M, engine) FIELD(M, agent) FIELD(M, control)
      FIELD(M, executables) FIELD(M, clock_offset_ns) FIELD(M, deadline_ns) FIELD(M, host_patience_ns)
          FIELD(M, report_ns) FIELD(M, launch_window) FIELD(M, ring_on_host) FIELD(M, hot_bytes)
              .dict();
}

}  // namespace

NB_MODULE(_device, m) {
  m.attr("CONTROL") = control_layout();
  m.attr("COUNTERS") = counters_layout();
  m.attr("COUNTERS_OFFSET") = offsetof(Control, counters);
  m.attr("CONTROL_BYTES") = sizeof(Control);
  m.attr("MISSION") = mission_layout();
  nb::enum_<Ending>(m, "Ending", nb::is_arithmetic())
      .value("RUNS", Ending::runs)
      .value("STOPPED", Ending::stopped)
      .value("DEADLINE", Ending::deadline)
      .value("ORPHANED", Ending::orphaned)
      .value("STRANDED", Ending::stranded);
  m.def("images", &images, nb::kw_only(), "ring"_a, "settings"_a, "decode_graphs"_a, "prefill_graphs"_a);
  m.def(
      "engine_layout",
      [](Bytes engine) { return engine_layout(*reinterpret_cast<const EngineMemory*>(engine.data())); }, "engine"_a);
  m.def("check", &check, nb::kw_only(), "core"_a, "ring"_a, "engine"_a, "agent"_a);
}
