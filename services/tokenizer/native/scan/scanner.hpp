// Cuts text into the pieces within which BPE merges: exactly as a tokenizer.json's regexes do (B15).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hostless::scan {

// Writes the end offsets of successive pieces, starting at `begin`, at most `capacity` of them; returns their count;
// 0 only at the end of text. Pieces tile the text. Resumable: call again with begin = last end. The text is valid
// UTF-8 of less than 4 GiB. Allocates nothing; linear in the size of text. Best with room for 128 ends or more.
using Cut = std::size_t (*)(const std::uint8_t* text, std::size_t size, std::size_t begin, std::uint32_t* ends,
                            std::size_t capacity);

enum class Pattern : std::uint8_t {
  gpt2,
  smollm,  // GPT-2's, each digit apart first
  cl100k,  // GPT-4 and Llama 3
  llama3 = cl100k,
  qwen2,  // cl100k's, with one digit a piece; Qwen 2 and 3
  o200k,  // GPT-4o
  deepseek3,
};

Cut cutter(Pattern pattern);         // best for this CPU: AVX-512, AVX2, NEON, or scalar; chosen once
Cut scalar_cutter(Pattern pattern);  // plain, everywhere
std::string_view instruction_set();  // what cutter() chose: "avx512", "avx2", "neon" or "scalar"

bool valid_utf8(const std::uint8_t* text, std::size_t size);

}  // namespace hostless::scan
