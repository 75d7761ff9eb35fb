// flow_heap.hpp: flows by the time at which they end; a flow's time changes in O(log flows).
#pragma once
#include <cstdint>
#include <vector>

namespace hostless::sim {

class FlowHeap {
 public:
  bool empty() const { return heap_.empty(); }
  double time() const { return heap_.front().time; }
  uint32_t flow() const { return heap_.front().flow; }

  void set(uint32_t flow, double time) {
    if (flow >= place_.size()) place_.resize(flow + 1, kNowhere);
    if (place_[flow] == kNowhere) {
      place_[flow] = static_cast<uint32_t>(heap_.size());
      heap_.push_back({time, flow});
      up(place_[flow]);
      return;
    }
    const uint32_t at = place_[flow];
    const bool sooner = time < heap_[at].time;
    heap_[at].time = time;
    sooner ? up(at) : down(at);
  }

  void remove(uint32_t flow) {
    const uint32_t at = place_[flow];
    place_[flow] = kNowhere;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.flow == flow) return;
    heap_[at] = last;
    place_[last.flow] = at;
    up(at);
    down(place_[last.flow]);
  }

 private:
  struct Entry {
    double time;
    uint32_t flow;
    bool before(const Entry& other) const { return time != other.time ? time < other.time : flow < other.flow; }
  };
  static constexpr uint32_t kNowhere = ~0u;

  void put(uint32_t at, const Entry& entry) {
    heap_[at] = entry;
    place_[entry.flow] = at;
  }

  void up(uint32_t at) {
    const Entry entry = heap_[at];
    while (at > 0 && entry.before(heap_[(at - 1) / 2])) {
      put(at, heap_[(at - 1) / 2]);
      at = (at - 1) / 2;
    }
    put(at, entry);
  }

  void down(uint32_t at) {
    const Entry entry = heap_[at];
    for (uint32_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1].before(heap_[child])) ++child;
      if (!heap_[child].before(entry)) break;
      put(at, heap_[child]);
      at = child;
    }
    put(at, entry);
  }

  std::vector<Entry> heap_;
  std::vector<uint32_t> place_;
};

}  // namespace hostless::sim
