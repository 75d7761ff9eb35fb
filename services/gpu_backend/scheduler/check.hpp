// check.hpp: does the books' sum come out? Host code, for tests and for `idle means provably empty`.
//
// Between two turns: free + held = all pages, with every holder named; each lane free or on one list;
// each request in one phase with what that phase holds and nothing else.
#pragma once
#include <string>
#include <vector>

#include "context.hpp"

namespace hostless {

template <class P>
class Check {
 public:
  explicit Check(Context<P>& context) : c(context), s(context.s), g(context.s.settings) {}

  // Empty if all is well, else the first thing that is not.
  std::string run() {
    lists();
    requests();
    queue();
    pages();
    orders();
    expect(s.illegal_transitions == 0, "a slot word made an illegal transition");
    return wrong;
  }

 private:
  void expect(bool holds, const std::string& what) {
    if (!holds && wrong.empty()) wrong = what;
  }
  static std::string name(const char* what, uint64_t index) { return std::string(what) + " " + std::to_string(index); }

  void list(const LaneList& l, Phase phase) {
    for (uint32_t i = 0; i < l.count; ++i) {
      const uint32_t lane = c.list(l)[i];
      const std::string who = name("lane", lane);
      expect(lane < g.lanes, who + " does not exist");
      if (lane >= g.lanes) return;
      const Lane& held = c.lanes[lane];
      ++seen[lane];
      expect(held.place == i, who + " does not know its place");
      expect(held.slot < g.slots, who + " is on a list without a slot");
      if (held.slot >= g.slots) return;
      const bool abandoned = held.abandoned && phase == Phase::loading;
      expect(abandoned || (c.phases[held.slot] == phase && c.requests[held.slot].lane == lane),
             who + " is on the list of another phase");
      expect(!held.flying || s.flight.kind != 0, who + " is in a step while none is in flight");
    }
  }

  void lists() {
    seen.assign(g.lanes, 0);
    list(s.loading, Phase::loading);
    list(s.prefilling, Phase::prefilling);
    list(s.running, Phase::running);
    list(s.starved, Phase::starved);
    for (uint32_t i = 0; i < s.free_lane_count; ++i) {
      ++seen[c.free_lanes[i]];
      expect(c.lanes[c.free_lanes[i]].slot == kNone, name("free lane", c.free_lanes[i]) + " has a slot");
    }
    for (uint32_t i = 0; i < g.lanes; ++i) expect(seen[i] == 1, name("lane", i) + " is not held exactly once");
  }

  void requests() {
    for (uint32_t slot = 0; slot < g.slots; ++slot) {
      const Request& r = c.requests[slot];
      const Phase phase = c.phases[slot];
      const std::string who = name("slot", slot);
      waiting += phase == Phase::waiting;
      expecting += phase == Phase::expecting;
      owed += r.owes_end;
      const bool holds = phase != Phase::idle && phase != Phase::waiting && phase != Phase::expecting;
      expect(holds == (r.lane != kNone), who + (holds ? " has no lane" : " holds a lane"));
      if (phase == Phase::idle) expect(!r.owes_end, who + " is idle and owes an end");
      if (phase == Phase::running)
        expect(r.computed + 1 == total_tokens(r) && r.computed / kPageTokens < c.lanes[r.lane].page_count,
               who + " runs without room for its next token");
    }
    for (uint32_t i = 0; i < s.loading.count; ++i) owed += c.lanes[c.list(s.loading)[i]].abandoned != 0;
    for (uint32_t i = 0; i < s.expecting_count; ++i)
      expect(c.phases[c.expecting[i]] == Phase::expecting && c.requests[c.expecting[i]].next == i,
             name("slot", c.expecting[i]) + " is expected wrongly");
    expect(expecting == s.expecting_count, "the count of expected prompts is wrong");
    expect(waiting == s.waiting_count, "the queue's count is wrong");
    expect(owed == s.ends_owed, "ends_owed is wrong");
  }

  void queue() {
    uint32_t count = 0, last = kNone;
    for (uint32_t slot = s.waiting_head; slot != kNone && count <= g.slots; slot = c.requests[slot].next, ++count) {
      expect(c.requests[slot].previous == last, name("slot", slot) + " is linked wrongly");
      expect(last == kNone || c.requests[last].arrival < c.requests[slot].arrival, "the queue is out of order");
      last = slot;
    }
    expect(last == s.waiting_tail && count == s.waiting_count, "the queue's links are wrong");
  }

  void pages() {
    std::vector<uint32_t> refs(g.pages, 0), by_lane(g.pages, 0);
    for (uint32_t lane = 0; lane < g.lanes; ++lane)
      for (uint32_t i = 0; i < c.lanes[lane].page_count; ++i) {
        const uint32_t page = c.block_table(lane)[i];
        ++refs[page];
        expect(by_lane[page]++ == 0, name("page", page) + " is held by two lanes");
      }
    uint32_t stores = 0, leaving = 0, held = 0;
    for (uint64_t i = s.orders_released; i != s.orders_reserved; ++i) {
      if (c.order(i).kind != static_cast<uint32_t>(KvOrderKind::store)) continue;
      ++stores;
      ++refs[c.order(i).page];
      leaving += by_lane[c.order(i).page] == 0;
    }
    for (uint32_t page = 0; page < g.pages; ++page) {
      expect(refs[page] == c.page_refs[page], name("page", page) + " has a wrong count of holders");
      held += refs[page] != 0;
    }
    for (uint32_t i = 0; i < s.free_page_count; ++i)
      expect(c.page_refs[c.free_pages[i]] == 0, name("free page", c.free_pages[i]) + " is held");
    expect(held + s.free_page_count == g.pages, "free + held pages is not all pages");
    expect(stores == s.stores_open && leaving == s.leaving_pages, "the counts of stored pages are wrong");
  }

  void orders() {
    const uint64_t used = s.orders_reserved - s.orders_released;
    expect(used + s.ends_owed <= g.order_capacity, "there is no room for the ends that are owed");
    expect(s.orders_reserved == s.orders_published, "orders were reserved and not published");
    expect(s.announced_count == 0, "slots were announced and not published");
  }

  Context<P>& c;
  CoreState& s;
  const Settings& g;
  std::string wrong;
  std::vector<uint32_t> seen;
  uint32_t waiting = 0, expecting = 0, owed = 0;
};

}  // namespace hostless
