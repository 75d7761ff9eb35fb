// _device: what Python needs of the C++ layouts to set a scheduler up on a GPU, and to look at it after it ended.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <memory>

#include "../scheduler/check.hpp"
#include "../scheduler/host_platform.hpp"
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
  Settings g{};
#define SETTING(name) g.name = nb::cast<decltype(g.name)>(given[#name])
  SETTING(lanes), SETTING(step_tokens), SETTING(pages), SETTING(order_capacity);
  SETTING(max_context), SETTING(vocab_size), SETTING(prefill_chunk), SETTING(decode_between_chunks);
  SETTING(kv_orders), SETTING(store_limit), SETTING(sweep_ns), SETTING(watchdog_ns), SETTING(agent_patience_ns);
#undef SETTING
  const GraphSizes graphs{std::move(decode_graphs), std::move(prefill_graphs)};
  g = with_ring(ring.data(), ring.size(), g);
  check_settings(g, graphs);
  NumpyBytes core = zeroed(core_bytes(g, graphs)), engine = zeroed(engine_geometry(g).size_bytes);
  set_up_core(core.data(), g, graphs);
  *reinterpret_cast<EngineMemory*>(engine.data()) = engine_geometry(g);
  return nb::make_tuple(core, engine, reinterpret_cast<const CoreState*>(core.data())->hot_bytes);
}

nb::dict engine_layout(Bytes engine) {
  const auto& m = *reinterpret_cast<const EngineMemory*>(engine.data());
  nb::dict at;
#define AT(name) at[#name] = m.name
  AT(lanes), AT(step_tokens), AT(lane_pages), AT(pages), AT(slots), AT(order_capacity), AT(size_bytes);
  AT(sequences_offset), AT(tokens_offset), AT(out_tokens_offset), AT(block_tables_offset);
  AT(load_done_offset), AT(orders_offset);
#undef AT
  at["step_offset"] = offsetof(EngineMemory, step);
  at["orders_head_offset"] = offsetof(EngineMemory, orders_head);
  at["orders_tail_offset"] = offsetof(EngineMemory, orders_tail);
  return at;
}

// After the end, on copies: empty if all is well.
std::string check(Bytes core, Bytes ring, Bytes engine, Bytes agent) {
  struct Nobody : SingleThread {
  } nobody;
  Context<Nobody> context(nobody, core.data(), core.data(), ring.data(), engine.data(), agent.data());
  return Check<Nobody>(context).run();
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

nb::dict control_layout() {
  Fields fields(sizeof(Control));
#define FIELD(name) fields.add(#name, "<u8", offsetof(Control, name))
  FIELD(command), FIELD(host_beat), FIELD(ended), FIELD(device_ns), FIELD(launch_errors), FIELD(last_error);
  FIELD(relaunch_error);
#undef FIELD
  return fields.dtype();
}

nb::dict counters_layout() {
  Fields fields(sizeof(Counters));
#define FIELD(name) fields.add(#name, "<u8", offsetof(Counters, name))
  FIELD(turns), FIELD(scans), FIELD(claims), FIELD(refused), FIELD(finished), FIELD(cancelled);
  FIELD(prefill_launches), FIELD(decode_launches), FIELD(relaunches);
  FIELD(prompt_tokens), FIELD(cached_tokens), FIELD(generated_tokens);
  FIELD(pauses), FIELD(preemptions), FIELD(engine_errors);
  FIELD(loads), FIELD(blocks_offered), FIELD(blocks_dropped);
  FIELD(waiting), FIELD(loading), FIELD(prefilling), FIELD(running), FIELD(starved);
  FIELD(free_lanes), FIELD(free_pages), FIELD(orders_open), FIELD(illegal_transitions);
#undef FIELD
  return fields.dtype();
}

nb::dict mission_layout() {
  Fields fields(sizeof(Mission));
#define FIELD(name, format) fields.add(#name, format, offsetof(Mission, name))
  FIELD(core, "<u8"), FIELD(ring, "<u8"), FIELD(engine, "<u8"), FIELD(agent, "<u8"), FIELD(control, "<u8");
  FIELD(executables, "<u8"), FIELD(clock_offset_ns, "<u8"), FIELD(deadline_ns, "<u8");
  FIELD(host_patience_ns, "<u8"), FIELD(report_ns, "<u8"), FIELD(launch_window, "<u4"), FIELD(ring_on_host, "<u4");
  FIELD(hot_bytes, "<u4");
#undef FIELD
  return fields.dtype();
}

}  // namespace

NB_MODULE(_device, m) {
  m.attr("CONTROL") = control_layout();
  m.attr("COUNTERS") = counters_layout();
  m.attr("COUNTERS_OFFSET") = offsetof(Control, counters);
  m.attr("CONTROL_BYTES") = sizeof(Control);
  m.attr("MISSION") = mission_layout();
  m.attr("DONE_STEP_OFFSET") = offsetof(StepHeader, done_step);
  m.attr("ERROR_OFFSET") = offsetof(StepHeader, error);
  nb::enum_<Ending>(m, "Ending", nb::is_arithmetic())
      .value("RUNS", Ending::runs)
      .value("STOPPED", Ending::stopped)
      .value("DEADLINE", Ending::deadline)
      .value("ORPHANED", Ending::orphaned)
      .value("STRANDED", Ending::stranded);
  m.def("images", &images, nb::kw_only(), "ring"_a, "settings"_a, "decode_graphs"_a, "prefill_graphs"_a);
  m.def("engine_layout", &engine_layout, "engine"_a);
  m.def("check", &check, nb::kw_only(), "core"_a, "ring"_a, "engine"_a, "agent"_a);
}
