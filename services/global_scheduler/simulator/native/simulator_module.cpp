// _simulator: the event core for Python, which brings placements (the live policy) and chunks (D13).
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "simulation.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless::sim;

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T, typename Array>
std::vector<T> copied(const Array& array) {
  return std::vector<T>(array.data(), array.data() + array.size());
}

Trace make_trace(const Ints& begin, const Ints& prompt, const Ints& cached, const Ints& output, const Doubles& pause) {
  Trace trace{copied<uint32_t>(begin), copied<int32_t>(prompt), copied<int32_t>(cached), copied<int32_t>(output),
              copied<double>(pause)};
  const size_t turns = trace.prompt.size();
  if (trace.begin.empty() || trace.begin.back() != turns || trace.cached.size() != turns ||
      trace.output.size() != turns || trace.pause.size() != turns)
    throw std::invalid_argument("a trace's arrays must have one element a turn");
  for (size_t i = 0; i + 1 < trace.begin.size(); ++i)
    if (trace.begin[i] >= trace.begin[i + 1]) throw std::invalid_argument("a trajectory has at least one turn");
  for (size_t i = 0; i < turns; ++i)
    if (trace.cached[i] < 0 || trace.cached[i] >= trace.prompt[i] || trace.output[i] < 1 || trace.pause[i] < 0)
      throw std::invalid_argument("turn " + std::to_string(i) + " does not hold together");
  return trace;
}

// (request, agent, prompt tokens, cached tokens, output tokens) of turns that came since the last call.
nb::list take_arrivals(Simulation& s) {
  nb::list list;
  for (uint32_t id : s.arrivals) {
    const Request& r = s.requests[id];
    list.append(nb::make_tuple(id, r.agent, r.prompt, r.cached, r.output));
  }
  s.arrivals.clear();
  return list;
}

// (engine, requests, tokens, read queue tokens, free HBM tokens) of engines whose load changed since the last call.
nb::list take_loads(Simulation& s) {
  nb::list list;
  for (uint32_t e : s.changed) {
    s.load_changed[e] = 0;
    list.append(nb::make_tuple(e, s.load_requests[e], s.load_tokens[e], s.load_reads[e], s.engines[e].hbm_free));
  }
  s.changed.clear();
  return list;
}

nb::dict ledger(const Simulation& s) {
  const Ledger& l = s.ledger;
  nb::dict d;
  static const char* const names[kMotions] = {"read", "load", "push", "handover", "evict", "persist"};
  nb::dict started, moved;
  for (uint32_t i = 0; i < kMotions; ++i) {
    started[names[i]] = l.bytes_started[i];
    moved[names[i]] = l.bytes_moved[i];
  }
  d["bytes_started"] = started;
  d["bytes_moved"] = moved;
#define COUNT(name) d[#name] = l.name
  COUNT(hit_tokens), COUNT(read_tokens), COUNT(reused_tokens), COUNT(prompt_tokens), COUNT(computed_tokens),
      COUNT(asked_tokens);
  COUNT(generated_tokens), COUNT(blocks_filled), COUNT(blocks_stored), COUNT(arrived), COUNT(placed);
  COUNT(prefill_compute_s), COUNT(prefill_step_s), COUNT(finished), COUNT(preemptions), COUNT(chunks),
      COUNT(prefill_steps), COUNT(decode_steps);
#undef COUNT
  int64_t requests = 0, tokens = 0, reads = 0, prefill_free = 0, decode_free = 0;
  for (size_t e = 0; e < s.engines.size(); ++e) {
    requests += s.load_requests[e];
    tokens += s.load_tokens[e];
    reads += s.load_reads[e];
    (s.groups[s.engines[e].group].prefill ? prefill_free : decode_free) += s.engines[e].hbm_free;
  }
  d["load_left"] = nb::make_tuple(requests, tokens, reads);
  d["hbm_free"] = nb::make_tuple(prefill_free, decode_free);
  d["flows_left"] = s.net.alive();
  d["timers"] = s.events.count();
  return d;
}

nb::bytes records(const Simulation& s) {
  return nb::bytes(reinterpret_cast<const char*>(s.agents.records.data()),
                   s.agents.records.size() * sizeof(TurnRecord));
}

}  // namespace

#define FIELD(name) .def_rw(#name, &C::name)

NB_MODULE(_simulator, m) {
  {
    using C = PrefillCost;
    nb::class_<C>(m, "PrefillCost")
        .def(nb::init<>()) FIELD(step_s) FIELD(weight_s) FIELD(group_token_s) FIELD(engine_token_s) FIELD(pair_s)
            FIELD(selected_s) FIELD(selected);
  }
  {
    using C = DecodeCost;
    nb::class_<C>(m, "DecodeCost")
        .def(nb::init<>()) FIELD(step_s) FIELD(weight_s) FIELD(group_token_s) FIELD(engine_token_s) FIELD(context_s)
            FIELD(selected_s) FIELD(selected);
  }
  {
    using C = Config;
    nb::class_<C>(m, "Config")
        .def(nb::init<>()) FIELD(prefill_nodes) FIELD(decode_nodes) FIELD(engines_per_node) FIELD(prefill_group)
            FIELD(decode_group) FIELD(storage_read) FIELD(storage_write) FIELD(dram) FIELD(compute_nic)
                FIELD(reads_in_flight) FIELD(loads_in_flight) FIELD(block_tokens) FIELD(layers) FIELD(kv_bytes)
                    FIELD(prefill_kv_tokens) FIELD(decode_kv_tokens) FIELD(layerwise) FIELD(free_io) FIELD(series_s)
                        FIELD(prefill) FIELD(decode);
  }
  nb::class_<Trace>(m, "Trace")
      .def(
          "__init__",
          [](Trace* t, const Ints& begin, const Ints& prompt, const Ints& cached, const Ints& output,
             const Doubles& pause) { new (t) Trace(make_trace(begin, prompt, cached, output, pause)); },
          "begin"_a, "prompt"_a, "cached"_a, "output"_a, "pause"_a);
  nb::class_<Simulation>(m, "Simulation")
      .def(nb::init<const Config&, Trace, ChunkChooser>(), "config"_a, "trace"_a, "choose"_a)
      .def(
          "add_agent", [](Simulation& s, double start, uint32_t t) { agents::add(s, s.agents, start, t); }, "start"_a,
          "trajectory"_a)
      .def("advance", &Simulation::advance, "until"_a)
      .def("next", &Simulation::next)
      .def("take_arrivals", &take_arrivals)
      .def("take_loads", &take_loads)
      .def("place", &Simulation::place, "request"_a, "prefill"_a, "decode"_a, "near_tokens"_a, "near_held"_a = 0,
           "far_held"_a = 0)
      .def_ro("now", &Simulation::now)
      .def_prop_ro("unfinished", [](const Simulation& s) { return s.agents.unfinished; })
      .def_prop_ro("turns_done", [](const Simulation& s) { return s.ledger.finished; })
      .def("agents_finished", [](const Simulation& s) { return s.agents.finished; })
      .def("records", &records)
      .def("ledger", &ledger)
      .def("reads", [](const Simulation& s) { return s.reads.bytes(); })
      .def("attention_largest", [](const Simulation& s) { return s.chunks.attention.largest(); })
      .def("attention_average", [](const Simulation& s) { return s.chunks.attention.average(); });
  nb::class_<FlowNetwork>(m, "FlowNetwork")
      .def(nb::init<>())
      .def("add_link", &FlowNetwork::add_link, "bytes_per_s"_a)
      .def(
          "start",
          [](FlowNetwork& n, double now, double bytes, const std::vector<uint32_t>& links,
             const std::vector<float>& weights) {
            if (links.size() != weights.size() || links.empty() || links.size() > Flow::kUses)
              throw std::invalid_argument("a flow uses one to five links, each with a weight");
            Use use[Flow::kUses];
            for (size_t i = 0; i < links.size(); ++i) use[i] = {links[i], weights[i]};
            return n.start(now, bytes, 0, use, static_cast<uint32_t>(links.size()));
          },
          "now"_a, "bytes"_a, "links"_a, "weights"_a)
      .def("finish", &FlowNetwork::finish, "flow"_a)
      .def("settle", &FlowNetwork::settle, "now"_a)
      .def("rate", &FlowNetwork::rate, "flow"_a)
      .def("next", &FlowNetwork::next)
      .def("next_flow", &FlowNetwork::next_flow);
}
