// _scheduler: the host build of the scheduler core, on a thread of its own.
#include <nanobind/nanobind.h>

#include "step.hpp"

NB_MODULE(_scheduler, m) { m.attr("PAGE_TOKENS") = hostless::kPageTokens; }
