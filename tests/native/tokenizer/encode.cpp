// Encodes the texts of a case file and compares: encode CASE best|plain|both [ROUNDS [cut]]
//
// Prints texts, tokens, and the allocations of the last round. Exit code 1: ids differ, or the last round allocated.
// With ROUNDS nothing is compared and the texts are encoded so often, or only cut, so that a count of instructions can
// leave out what reading takes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "allocations.hpp"
#include "case_file.hpp"

namespace {

using hostless::bpe::Arena;
using hostless::bpe::Bpe;

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

std::size_t wrong(const Bpe& encoder, const CaseFile& cases, Arena& arena) {
  std::size_t wrong = 0;
  for (const Sample& sample : cases.samples()) {
    const std::size_t count = encoder.encode(bytes_of(sample.text), sample.text.size(), false, arena);
    const bool same = std::equal(arena.ids.data(), arena.ids.data() + count, sample.ids.begin(), sample.ids.end());
    if (!same && wrong++ < 5)
      std::printf("other ids: %.*s\n", static_cast<int>(sample.text.size()), sample.text.data());
  }
  return wrong;
}

std::size_t encode(const Bpe& encoder, const CaseFile& cases, Arena& arena) {
  std::size_t tokens = 0;
  for (const Sample& sample : cases.samples()) {
    tokens += encoder.encode(bytes_of(sample.text), sample.text.size(), false, arena);
  }
  return tokens;
}

std::size_t cut(hostless::scan::Cut cutter, const CaseFile& cases) {
  std::uint32_t ends[256];
  std::size_t pieces = 0;
  for (const Sample& sample : cases.samples()) {
    std::size_t begin = 0;
    while (const std::size_t count = cutter(bytes_of(sample.text), sample.text.size(), begin, ends, std::size(ends))) {
      pieces += count;
      begin = ends[count - 1];
    }
  }
  return pieces;
}

bool run(const CaseFile& cases, bool plain, int rounds) {
  const Bpe encoder = cases.encoder(plain);
  Arena arena;
  std::size_t differ = rounds ? 0 : wrong(encoder, cases, arena), tokens = 0, allocated = 0;
  for (int round = 0; round < std::max(rounds, 2); ++round) {
    const std::size_t before = allocations;
    tokens = encode(encoder, cases, arena);
    allocated = allocations - before;
  }
  std::printf("%s: %zu texts, %zu tokens, %zu allocations\n", plain ? "plain" : "best", cases.samples().size(), tokens,
              allocated);
#ifndef ALLOCATIONS_NOT_COUNTED
  if (allocations == 0) throw std::logic_error("the hook counts nothing");
#endif
  return differ == 0 && allocated == 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const CaseFile cases(arguments[1]);
  const std::string_view which = arguments[2];
  const int rounds = count > 3 ? std::atoi(arguments[3]) : 0;
  if (count > 4) {
    std::size_t pieces = 0;
    for (int round = 0; round < rounds; ++round) pieces = cut(cases.cutter(which == "plain"), cases);
    std::printf("%s: %zu pieces\n", arguments[2], pieces);
    return 0;
  }
  bool right = true;
  if (which != "plain") right = run(cases, false, rounds);
  if (which != "best") right = run(cases, true, rounds) && right;
  return right ? 0 : 1;
}
