// Short pieces that must be merged, several in turn: each waits for the memory that its next step reads while the
// others take theirs.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>

#include "merge_table.hpp"
#include "short_piece.hpp"

namespace hostless::bpe {

class Merging {
 public:
  explicit Merging(const MergeTable& merges) : merges_(merges) {}

  bool full() const { return used_ == kPieces; }

  // A place for one more piece, which must not be full: its ids will stand where `out` is now, one place held for them.
  ShortPiece& add(std::uint32_t* out) {
    places_[used_] = out;
    return pieces_[used_++];
  }

  // Merges all, and puts their ids where they belong among those that end at `out`. Returns the new end.
  std::uint32_t* finish(std::uint32_t* out) {
    merge();
    std::size_t more = 0;
    for (std::size_t i = 0; i < used_; ++i) more += pieces_[i].count() - 1;
    std::uint32_t* const end = out + more;
    for (std::uint32_t *to = end, *from = out; used_ > 0;) {
      const ShortPiece& piece = pieces_[--used_];
      const std::uint32_t* after = places_[used_] + 1;
      to -= from - after;
      std::memmove(to, after, static_cast<std::size_t>(from - after) * sizeof *to);
      for (std::size_t i = piece.count(); i-- > 0;) *--to = piece[i];
      from = places_[used_];
    }
    return end;
  }

 private:
  static constexpr std::size_t kPieces = 16;

  void merge() {
    std::uint8_t waiting[kPieces];
    std::iota(waiting, waiting + used_, std::uint8_t{0});
    for (std::size_t left = used_; left > 0;) {
      for (std::size_t i = 0; i < left;) {
        if (pieces_[waiting[i]].step(merges_)) {
          ++i;
        } else {
          waiting[i] = waiting[--left];
        }
      }
    }
  }

  const MergeTable& merges_;
  std::size_t used_ = 0;
  std::uint32_t* places_[kPieces];
  ShortPiece pieces_[kPieces];
};

}  // namespace hostless::bpe
