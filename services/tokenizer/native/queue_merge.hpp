// Merging of any number of symbols by a queue of merges: the obvious way that is not quadratic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "alphabet.hpp"
#include "arena.hpp"
#include "merge_table.hpp"

namespace hostless::bpe {

class QueueMerge {
 public:
  QueueMerge(const Alphabet& alphabet, const MergeTable& merges, Arena& arena)
      : alphabet_(alphabet), merges_(merges), arena_(arena) {}

  // Ids of the piece text[0, size) in `made`, always by the lowest rank, of equal ones the leftmost; ends early
  // with `least` symbols left. Returns how many there are.
  std::size_t merge(const std::uint8_t* text, std::size_t size, Scratch<Part>& made, std::size_t least = 1) {
    size_ = size;
    waiting_ = 0;
    nodes_ = arena_.nodes.need(size);
    queue_ = arena_.queue.need(2 * size);  // each merge takes one entry and adds at most two
    std::size_t left = start(text);
    std::make_heap(queue_, queue_ + waiting_, std::greater<>());
    while (waiting_ && left > least) {
      std::pop_heap(queue_, queue_ + waiting_, std::greater<>());
      std::uint64_t entry = queue_[--waiting_];
      auto at = static_cast<std::uint32_t>(entry);
      if (nodes_[at].rank != entry >> 32) continue;  // it was merged away, or its neighbour was
      take_next(at);
      --left;
      if (enqueue(at)) std::push_heap(queue_, queue_ + waiting_, std::greater<>());
      std::uint32_t before = nodes_[at].previous;
      if (before != kNone && enqueue(before)) std::push_heap(queue_, queue_ + waiting_, std::greater<>());
    }
    Part* parts = made.need(left);
    for (std::uint32_t at = 0; at < size; at = nodes_[at].next) *parts++ = {nodes_[at].id, nodes_[at].next};
    return left;
  }

 private:
  std::size_t start(const std::uint8_t* text) {
    std::uint32_t previous = kNone;
    std::size_t count = 0;
    alphabet_.symbols(text, 0, size_, [&](std::uint32_t id, std::size_t begin, std::size_t end) {
      auto at = static_cast<std::uint32_t>(begin);
      nodes_[at] = {id, kNone, previous, static_cast<std::uint32_t>(end)};
      if (previous != kNone) enqueue(previous);
      previous = at;
      ++count;
    });
    return count;
  }

  // Adds the merge of a symbol with the next one, if there is one.
  bool enqueue(std::uint32_t at) {
    Node& node = nodes_[at];
    node.rank = node.next < size_ ? merges_.find(node.id, nodes_[node.next].id).rank : kNone;
    if (node.rank == kNone) return false;
    queue_[waiting_++] = static_cast<std::uint64_t>(node.rank) << 32 | at;
    return true;
  }

  void take_next(std::uint32_t at) {
    Node& gone = nodes_[nodes_[at].next];
    nodes_[at].id = merges_.find(nodes_[at].id, gone.id).merged;
    nodes_[at].next = gone.next;
    if (gone.next < size_) nodes_[gone.next].previous = at;
    gone.rank = kNone;
  }

  const Alphabet& alphabet_;
  const MergeTable& merges_;
  Arena& arena_;
  std::size_t size_ = 0, waiting_ = 0;
  Node* nodes_ = nullptr;
  std::uint64_t* queue_ = nullptr;
};

}  // namespace hostless::bpe
