// _ring: the ring's layout for Python, and the few memory operations that must be atomic.
// Everything else a front end does to a ring, it does with numpy views at these offsets.
#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>

#include "ring.hpp"

namespace nb = nanobind;
using namespace hostless;

NB_MODULE(_ring, m) { m.attr("MAGIC") = kRingMagic; }
