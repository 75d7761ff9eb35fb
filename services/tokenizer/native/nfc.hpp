// Brings text to Unicode's composed form (NFC). Nearly all text is in it already, and is only looked at.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "aligned.hpp"
#include "alphabet.hpp"
#include "arena.hpp"
#include "nfc_tables.hpp"

namespace hostless::bpe::nfc {

// Syllables of Hangul: each is a consonant and a vowel, most of them and a final consonant.
inline constexpr std::uint32_t kSyllable = 0xAC00, kConsonant = 0x1100, kVowel = 0x1161, kFinal = 0x11A7;
inline constexpr std::uint32_t kConsonants = 19, kVowels = 21, kFinals = 28, kSyllables = 11172;

class Characters {
 public:
  // Bits of what is known of a character, above its combining class. Neither kUnsure nor a class: it begins a stretch
  // that what is before it says nothing of.
  static constexpr std::uint16_t kClass = 0xFF, kUnsure = 0x100, kMade = 0x200;

  static const Characters& all() {
    static const Characters characters;
    return characters;
  }

  std::uint16_t of(std::uint32_t point) const { return values_[pages_[point / kPage] * kPage + point % kPage]; }

  // What these two become; 0: they stay two.
  std::uint32_t whole(std::uint32_t first, std::uint32_t second) const {
    if (first - kConsonant < kConsonants && second - kVowel < kVowels) {
      return kSyllable + ((first - kConsonant) * kVowels + second - kVowel) * kFinals;
    }
    bool open = first - kSyllable < kSyllables && (first - kSyllable) % kFinals == 0;
    if (open && second - kFinal - 1 < kFinals - 1) return first + second - kFinal;
    for (std::size_t at = place(first, second);; at = (at + 1) % kPairs) {
      const Whole* found = pairs_[at];
      if (!found) return 0;
      if (found->first == first && found->second == second) return found->point;
    }
  }

  // Calls visit(point) for each character of its full decomposition.
  template <class Visit>
  void decompose(std::uint32_t point, Visit visit) const {
    if (point - kSyllable < kSyllables) {
      std::uint32_t index = point - kSyllable, last = index % kFinals;
      visit(kConsonant + index / (kVowels * kFinals));
      visit(kVowel + index / kFinals % kVowels);
      if (last) visit(kFinal + last);
    } else if (of(point) & kMade) {
      auto before = [](const Whole& whole, std::uint32_t sought) { return whole.point < sought; };
      const Whole& whole = *std::lower_bound(std::begin(kWholes), std::end(kWholes), point, before);
      decompose(whole.first, visit);
      if (whole.second) decompose(whole.second, visit);
    } else {
      visit(point);
    }
  }

 private:
  static constexpr std::size_t kPage = 128, kPairs = 4096;

  Characters() : pages_(0x110000 / kPage, 0), values_(kPage, 0) {  // page 0: nothing to know
    for (const Range& range : kRanges) {
      for (std::uint32_t point = range.first; point <= range.last; ++point) {
        value(point) = static_cast<std::uint16_t>(range.order | (range.unsure ? kUnsure : 0));
      }
    }
    for (const Whole& whole : kWholes) {
      value(whole.point) |= kMade;
      if (!whole.composes) continue;
      std::size_t at = place(whole.first, whole.second);
      while (pairs_[at]) at = (at + 1) % kPairs;
      pairs_[at] = &whole;
    }
  }

  std::uint16_t& value(std::uint32_t point) {
    std::uint16_t& page = pages_[point / kPage];
    if (!page) {
      page = static_cast<std::uint16_t>(values_.size() / kPage);
      values_.resize(values_.size() + kPage, 0);
    }
    return values_[page * kPage + point % kPage];
  }

  static std::size_t place(std::uint32_t first, std::uint32_t second) {
    return mix(std::uint64_t{first} << 32 | second, 0x9E3779B97F4A7C15) % kPairs;
  }

  std::vector<std::uint16_t> pages_, values_;
  std::array<const Whole*, kPairs> pairs_{};
};

class Composer {
 public:
  explicit Composer(Arena& arena) : arena_(arena) {}

  // The text in NFC: itself, or in arena.text. Raises length_error for 2 GiB or more.
  std::span<const std::uint8_t> compose(const std::uint8_t* text, std::size_t size) {
    constexpr std::uint8_t kFirstKnown = 0xCC;  // leads U+0300; those before it begin stretches, all of them
    constexpr unsigned kHan = 0xE4, kHanLeads = 6;  // lead U+4000 to U+9FFF, and so do these
    std::size_t copied = 0, begin = 0, at = 0;  // [begin, at): the stretch so far
    std::uint16_t last = 0;
    bool unsure = false;
    auto starts = [&](std::size_t next) {
      if (unsure) {
        append(text + copied, begin - copied);
        rewrite(text + begin, at - begin);
        copied = at;
      }
      begin = next;
      last = 0;
      unsure = false;
    };
    while (at < size) {
      if (text[at] < kFirstKnown) {
        auto next = std::find_if(text + at, text + size, [](std::uint8_t byte) { return byte >= kFirstKnown; });
        std::size_t end = static_cast<std::size_t>(next - text), start = end - 1;
        while ((text[start] & 0xC0) == 0x80) --start;
        starts(start);
        at = end;
        continue;
      }
      if (text[at] - kHan < kHanLeads) {
        starts(at);
        at += 3;
        continue;
      }
      std::size_t length = char_length(text[at]);
      std::uint16_t known = Characters::all().of(code_point(text + at, length));
      std::uint16_t order = known & Characters::kClass;
      if (order || known & Characters::kUnsure) {
        unsure |= known & Characters::kUnsure || last > order;
        last = order;
      } else {
        starts(at);
      }
      at += length;
    }
    starts(size);
    if (!copied) return {text, size};
    append(text + copied, size - copied);
    return {arena_.text.data(), made_};
  }

 private:
  static constexpr std::size_t kMostBytes = 0x7FFFFFFF;  // places in a text are numbers of 32 bits
  static constexpr std::size_t kShort = 16;

  void append(const std::uint8_t* bytes, std::size_t size) {
    if (made_ + size > kMostBytes) throw std::length_error("the text is of 2 GiB or more in NFC");
    if (size) std::memcpy(arena_.text.need(made_ + size, made_) + made_, bytes, size);
    made_ += size;
  }

  void append(std::uint32_t point) {
    auto tail = [&](int shift) { return static_cast<std::uint8_t>(0x80 | (point >> shift & 0x3F)); };
    auto lead = [&](unsigned mark, int shift) { return static_cast<std::uint8_t>(mark | point >> shift); };
    if (point < 0x80) {
      append(std::array{static_cast<std::uint8_t>(point)}.data(), 1);
    } else if (point < 0x800) {
      append(std::array{lead(0xC0, 6), tail(0)}.data(), 2);
    } else if (point < 0x10000) {
      append(std::array{lead(0xE0, 12), tail(6), tail(0)}.data(), 3);
    } else {
      append(std::array{lead(0xF0, 18), tail(12), tail(6), tail(0)}.data(), 4);
    }
  }

  // Appends a stretch in NFC: taken apart, put in order, put together.
  void rewrite(const std::uint8_t* text, std::size_t size) {
    const Characters& characters = Characters::all();
    std::size_t count = 0;
    for (std::size_t at = 0; at < size; at += char_length(text[at])) {
      characters.decompose(code_point(text + at, char_length(text[at])), [&](std::uint32_t point) {
        auto order = static_cast<std::uint32_t>(characters.of(point) & Characters::kClass);
        arena_.letters.need(count + 1, count)[count] = {point, order};
        ++count;
      });
    }
    Letter* letters = arena_.letters.data();
    for (std::size_t begin = 0, end; begin < count; begin = end) {
      end = begin + 1;
      if (!letters[begin].order) continue;
      while (end < count && letters[end].order) ++end;
      put_in_order(letters + begin, end - begin);
    }
    for (std::size_t i = 0, kept = put_together(letters, count); i < kept; ++i) append(letters[i].point);
  }

  // By class, those of one class as they are.
  void put_in_order(Letter* letters, std::size_t count) {
    auto before = [](const Letter& a, const Letter& b) { return a.order < b.order; };
    if (std::is_sorted(letters, letters + count, before)) return;
    if (count <= kShort) {
      for (std::size_t i = 1; i < count; ++i) {
        std::rotate(std::upper_bound(letters, letters + i, letters[i], before), letters + i, letters + i + 1);
      }
      return;
    }
    std::array<std::size_t, 257> places{};
    for (std::size_t i = 0; i < count; ++i) ++places[letters[i].order + 1];
    for (std::size_t order = 1; order < places.size(); ++order) places[order] += places[order - 1];
    Letter* ordered = arena_.ordered.need(count);
    for (std::size_t i = 0; i < count; ++i) ordered[places[letters[i].order]++] = letters[i];
    std::copy(ordered, ordered + count, letters);
  }

  // Each with the last that can take it, unless one between them is in its way. Answers how many are left.
  static std::size_t put_together(Letter* letters, std::size_t count) {
    std::size_t kept = 0, base = count;  // base: of the kept ones, the last of class 0
    for (std::size_t i = 0; i < count; ++i) {
      Letter letter = letters[i];
      bool reaches = base < kept && (base + 1 == kept || letters[kept - 1].order < letter.order);
      std::uint32_t whole = reaches ? Characters::all().whole(letters[base].point, letter.point) : 0;
      if (whole) {
        letters[base].point = whole;
        continue;
      }
      if (!letter.order) base = kept;
      letters[kept++] = letter;
    }
    return kept;
  }

  Arena& arena_;
  std::size_t made_ = 0;
};

}  // namespace hostless::bpe::nfc
