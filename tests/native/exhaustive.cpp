// exhaustive.cpp: every state that a small scheduler can reach, looked at.
//
// From each state every action is tried. In each, the books must add up, and no slot word may have made
// an illegal edge (small_world.hpp). And no deadlock: where nothing new comes in, turns, landings,
// answers and releases must bring every request to its end and every page home.
#include <unordered_set>

#include "small_world.hpp"

using small::World;

namespace {

class Search {
 public:
  explicit Search(const small::Shape& shape) : world(shape) {}

  size_t run() {
    visit();
    while (!open.empty()) {
      const World::Snapshot here = std::move(open.back());
      open.pop_back();
      for (uint32_t kind = 0; kind < small::kKindCount; ++kind) attempt(here, [&] { return world.submit(kind); });
      for (uint32_t slot = 0; slot < small::kSlots; ++slot) {
        attempt(here, [&] { return world.cancel(slot); });
        attempt(here, [&] { return world.release(slot); });
      }
      for (uint32_t token : {0u, small::kStop}) attempt(here, [&] { return world.land(token, false); });
      attempt(here, [&] { return world.land(0, true); });
      for (uint32_t blocks : {0u, 1u}) attempt(here, [&] { return world.answer(blocks); });
      attempt(here, [&] { return world.turn(); });
      world.restore(here);
      follow_to_the_end();
    }
    return seen.size();
  }

 private:
  template <class Action>
  void attempt(const World::Snapshot& from, Action action) {
    world.restore(from);
    if (action()) visit();
  }
  void visit() {
    if (seen.insert(world.identity()).second) open.push_back(world.save());
  }

  // The world goes on by itself, each in its turn; all states on the way to the end are known to end.
  void follow_to_the_end() {
    std::unordered_set<uint64_t> way;
    while (!ends.contains(world.identity())) {
      toy::expect(way.insert(world.identity()).second, "a livelock: the world goes round in a circle");
      if (!go_on()) {
        toy::expect(world.empty(), "a deadlock: nothing can happen, and not everything has ended");
        break;
      }
    }
    ends.merge(way);
  }
  bool go_on() {
    if (world.turn() || world.land(0, false) || world.answer(0)) return true;
    for (uint32_t slot = 0; slot < small::kSlots; ++slot)
      if (world.release(slot)) return true;
    return false;
  }

  World world;
  std::vector<World::Snapshot> open;
  std::unordered_set<uint64_t> seen, ends;
};

}  // namespace

int main() {
  const small::Shape shapes[] = {
      // lanes, chunk, orders; submits, cancels, errors; shared, mixed
      {3, 0, false, 3, 1, 1},           {2, 0, false, 4, 0, 0},       {2, 64, false, 3, 1, 0},
      {3, 64, true, 2, 1, 0},           {2, 0, true, 2, 1, 1},        {3, 64, true, 3, 0, 0},
      {2, 0, true, 2, 1, 1, true},      {3, 64, true, 2, 1, 0, true}, {3, 0, false, 3, 1, 1, false, 64},
      {3, 64, true, 2, 1, 0, true, 66},
  };
  for (const small::Shape& shape : shapes)
    std::printf("lanes %u chunk %3u mixed %2u orders %u: %zu states\n", shape.lanes, shape.prefill_chunk,
                shape.mixed_tokens, shape.orders, Search(shape).run());
}
