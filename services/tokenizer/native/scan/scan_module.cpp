// The scanners as a Python module: what tests and benchmarks compare with the regexes.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "instruction_sets.hpp"

namespace nb = nanobind;
using namespace hostless::scan;

namespace {

constexpr std::pair<std::string_view, Pattern> patterns[] = {
    {"gpt2", Pattern::gpt2},   {"smollm", Pattern::smollm}, {"cl100k", Pattern::cl100k},
    {"qwen2", Pattern::qwen2}, {"o200k", Pattern::o200k},   {"deepseek3", Pattern::deepseek3},
};

Pattern pattern_of(std::string_view name) {
  for (const auto& [known, pattern] : patterns) {
    if (known == name) return pattern;
  }
  throw std::invalid_argument("no scanner is named " + std::string(name));
}

Cut cutter_of(Pattern pattern, std::string_view instructions) {
  for (const InstructionSet& set : instruction_sets()) {
    if (set.name == instructions && set.here) return set.cutter(pattern);
  }
  throw std::invalid_argument("not on this machine: " + std::string(instructions));
}

std::vector<std::uint32_t> cut_all(std::string_view pattern, nb::bytes text, std::string_view instructions,
                                   std::size_t capacity) {
  const Cut cut = cutter_of(pattern_of(pattern), instructions);
  const auto* bytes = static_cast<const std::uint8_t*>(text.data());
  if (!valid_utf8(bytes, text.size())) throw std::invalid_argument("the text is not UTF-8");
  std::vector<std::uint32_t> ends, some(capacity);
  const auto begin = [&] { return ends.empty() ? 0 : ends.back(); };
  while (const std::size_t count = cut(bytes, text.size(), begin(), some.data(), capacity)) {
    ends.insert(ends.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return ends;
}

}  // namespace

NB_MODULE(_scan, m) {
  std::vector<std::string_view> here, names;
  for (const InstructionSet& set : instruction_sets()) {
    if (set.here) here.push_back(set.name);
  }
  for (const auto& [name, pattern] : patterns) names.push_back(name);
  m.attr("INSTRUCTION_SETS") = nb::tuple(nb::cast(here));
  m.attr("PATTERNS") = nb::tuple(nb::cast(names));
  m.def("cut", &cut_all, nb::arg("pattern"), nb::arg("text"), nb::arg("instructions") = instruction_set(),
        nb::arg("capacity") = 4096);
  m.def(
      "valid_utf8",
      [](nb::bytes text) { return valid_utf8(static_cast<const std::uint8_t*>(text.data()), text.size()); },
      nb::arg("text"));
}
