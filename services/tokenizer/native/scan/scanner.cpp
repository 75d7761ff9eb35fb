#include "scanner.hpp"

#include <algorithm>

#include "instruction_sets.hpp"

namespace hostless::scan {

std::span<const InstructionSet> instruction_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  static const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  static const InstructionSet sets[] = {
      {"avx512", bits && __builtin_cpu_supports("avx512bw"), avx512_cutter},
      {"avx2", bits && __builtin_cpu_supports("avx2"), avx2_cutter},
      {"scalar", true, scalar_cutter},
  };
#elif defined(__aarch64__)
  static const InstructionSet sets[] = {{"neon", true, neon_cutter}, {"scalar", true, scalar_cutter}};
#else
  static const InstructionSet sets[] = {{"scalar", true, scalar_cutter}};
#endif
  return sets;
}

namespace {

const InstructionSet& best() {
  static const InstructionSet& chosen = *std::ranges::find_if(instruction_sets(), &InstructionSet::here);
  return chosen;
}

}  // namespace

Cut cutter(Pattern pattern) { return best().cutter(pattern); }

std::string_view instruction_set() { return best().name; }

}  // namespace hostless::scan
