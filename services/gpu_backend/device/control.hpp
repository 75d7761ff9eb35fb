// control.hpp: what the host and the scheduler on the GPU tell each other.
//
// `Control` is one page of host memory that the GPU maps. The host writes the first line, the GPU the
// rest, by plain stores over the bus: neither side ever copies through CUDA while the scheduler runs.
// `Mission` is the kernel's parameter: all addresses, and how this scheduler is to behave.
#pragma once
#include "state.hpp"

namespace hostless {

struct Control {
  // written by the host
  uint64_t command;    // Command
  uint64_t host_beat;  // grows as long as the host lives; looked at only if Mission::host_patience_ns says so
  uint8_t pad0[48];
  // written by the GPU
  uint64_t ended;          // Ending; the last thing that is ever written
  uint64_t device_ns;      // GPU's clock at the last report
  uint64_t launch_errors;  // launches that the device runtime refused, repeated ones included
  uint64_t last_error;     // its cudaError_t
  uint64_t relaunch_error;
  uint8_t pad1[24];
  Counters counters;  // as of that report
};

// Why the scheduler is gone.
enum class Ending : uint64_t {
  runs = 0,
  stopped = 1,   // by command; every request has ended
  deadline = 2,  // as stopped, because Mission::deadline_ns had passed
  orphaned = 3,  // as stopped, because the host fell silent
  stranded = 4,  // it could not replace itself at the end of its launch window (relaunch_error)
};

struct Mission {
  void *core, *ring, *engine, *agent;
  Control* control;
  const uint64_t* executables;  // cudaGraphExec_t[2 * graphs]: two of each graph, for odd and even steps
  uint64_t clock_offset_ns;     // added to the GPU's clock gives unix time
  uint64_t deadline_ns;         // GPU's clock; 0 never. A second later the kernel traps
  uint64_t host_patience_ns;    // 0: the host may be silent for ever
  uint64_t report_ns;           // between two reports to Control
  uint32_t launch_window;       // fire-and-forget launches an execution (B4), at most 120
  uint32_t ring_on_host;
  uint32_t hot_bytes;           // of the core, kept in shared memory while an execution lasts
  uint32_t reserved;
};

}  // namespace hostless
