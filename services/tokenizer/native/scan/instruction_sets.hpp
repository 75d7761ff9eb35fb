// The instruction sets that this program was compiled for, best first, and whether the CPU has them.
#pragma once

#include <span>

#include "scanner.hpp"

namespace hostless::scan {

struct InstructionSet {
  std::string_view name;
  bool here;
  Cut (*cutter)(Pattern pattern);
};

std::span<const InstructionSet> instruction_sets();  // the last, "scalar", is everywhere

Cut avx512_cutter(Pattern pattern);
Cut avx2_cutter(Pattern pattern);
Cut neon_cutter(Pattern pattern);

}  // namespace hostless::scan
