// flows.hpp: bytes in motion as fluids that share links fairly (max-min), kept up to date link by link.
//
// A link's level is the rate that it allows each of its flows; a flow moves at the smallest level on its way. A link
// that could carry whatever its flows get elsewhere has no level (infinity). When a link's set of flows changes only
// its own level is computed anew, and another link's only if that changes what the other one can count on: so a
// change costs as much as it moves, however large the cluster. At rest every flow has a link that is full and on
// which none is faster, which is what max-min fair means.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "flow_heap.hpp"

namespace hostless::sim {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Use {
  uint32_t link;
  float weight;  // bytes that this link carries for each byte of the flow
};

struct Flow {
  static constexpr uint32_t kUses = 5;
  double bytes = 0, left = 0, rate = 0, since = 0, began = 0;  // seconds: of the last rate, and of the start
  uint64_t owner = 0;
  uint32_t uses = 0;
  bool changed = false;
  Use use[kUses];
  uint32_t seat[kUses];  // place in the link's list
};

class FlowNetwork {
 public:
  uint32_t add_link(double bytes_per_s) {
    links_.push_back({bytes_per_s});
    return static_cast<uint32_t>(links_.size() - 1);
  }

  // Rates are right after the next `settle`.
  uint32_t start(double now, double bytes, uint64_t owner, const Use* use, uint32_t uses) {
    uint32_t id;
    if (free_.empty()) {
      id = static_cast<uint32_t>(flows_.size());
      flows_.emplace_back();
    } else {
      id = free_.back();
      free_.pop_back();
    }
    Flow& flow = flows_[id];
    flow = Flow{bytes, bytes, 0, now, now, owner, uses, false, {}, {}};
    for (uint32_t i = 0; i < uses; ++i) {
      Link& link = links_[use[i].link];
      flow.use[i] = use[i];
      flow.seat[i] = static_cast<uint32_t>(link.flows.size());
      link.flows.push_back({id, i});
      recheck(use[i].link);
    }
    touch(id);
    ++alive_;
    return id;
  }

  // Ends the flow that is due now; returns its owner.
  uint64_t finish(uint32_t id) {
    Flow& flow = flows_[id];
    heap_.remove(id);
    for (uint32_t i = 0; i < flow.uses; ++i) {
      Link& link = links_[flow.use[i].link];
      const Passenger last = link.flows.back();
      link.flows[flow.seat[i]] = last;
      flows_[last.flow].seat[last.use] = flow.seat[i];
      link.flows.pop_back();
      link.carried += flow.bytes * flow.use[i].weight;
      recheck(flow.use[i].link);
    }
    flow.uses = 0;
    free_.push_back(id);
    --alive_;
    return flow.owner;
  }

  // Brings levels and rates up to date.
  void settle(double now) {
    const size_t most = 1000 * (links_.size() + 1);
    size_t turns = 0;
    for (size_t next = 0; next < due_.size(); ++next) {
      if (++turns > most) throw std::logic_error("flow rates do not settle");
      const uint32_t id = due_[next];
      links_[id].due = false;
      relevel(id);
    }
    due_.clear();
    for (uint32_t id : changed_) {
      if (flows_[id].uses) set_rate(id, now);
      flows_[id].changed = false;
    }
    changed_.clear();
  }

  double next() const { return heap_.empty() ? kUnlimited : heap_.time(); }
  uint32_t next_flow() const { return heap_.flow(); }
  double rate(uint32_t id) const { return flows_[id].rate; }
  double bytes(uint32_t id) const { return flows_[id].bytes; }
  double began(uint32_t id) const { return flows_[id].began; }
  double carried(uint32_t link) const { return links_[link].carried; }
  size_t alive() const { return alive_; }

 private:
  struct Passenger {
    uint32_t flow, use;
  };
  struct Link {
    double capacity;
    double level = kUnlimited;
    double carried = 0;  // bytes of flows that have ended
    bool due = false;
    std::vector<Passenger> flows{};
  };
  struct Demand {
    double cap, weight;
    uint32_t flow;
  };

  void recheck(uint32_t link) {
    if (links_[link].due) return;
    links_[link].due = true;
    due_.push_back(link);
  }

  void touch(uint32_t flow) {
    if (flows_[flow].changed) return;
    flows_[flow].changed = true;
    changed_.push_back(flow);
  }

  // What a flow's other links allow it.
  double cap(const Flow& flow, uint32_t use) const {
    double least = kUnlimited;
    for (uint32_t i = 0; i < flow.uses; ++i)
      if (i != use) least = std::min(least, links_[flow.use[i].link].level);
    return least;
  }

  // The rate at which water stands in the link when each flow takes no more than its cap.
  double fill(const Link& link) {
    double asked = 0, weights = 0;
    demands_.clear();
    for (const Passenger& p : link.flows) {
      const Flow& flow = flows_[p.flow];
      const Demand demand{cap(flow, p.use), flow.use[p.use].weight, p.flow};
      asked += demand.cap * demand.weight;
      weights += demand.weight;
      demands_.push_back(demand);
    }
    if (asked <= link.capacity * (1 + 1e-12)) return kUnlimited;
    std::sort(demands_.begin(), demands_.end(),
              [](const Demand& a, const Demand& b) { return a.cap != b.cap ? a.cap < b.cap : a.flow < b.flow; });
    double left = link.capacity;
    for (const Demand& demand : demands_) {
      if (demand.cap * weights > left) break;
      left -= demand.cap * demand.weight;
      weights -= demand.weight;
    }
    return left / weights;
  }

  void relevel(uint32_t id) {
    Link& link = links_[id];
    const double was = link.level, now = fill(link);
    if (was == now || std::abs(was - now) <= 1e-12 * std::min(was, now)) return;
    link.level = now;
    for (const Passenger& p : link.flows) {
      touch(p.flow);
      const Flow& flow = flows_[p.flow];
      for (uint32_t i = 0; i < flow.uses; ++i) {
        if (i == p.use) continue;
        const double level = links_[flow.use[i].link].level;
        if (level == kUnlimited ? now > was : level >= std::min(was, now)) recheck(flow.use[i].link);
      }
    }
  }

  void set_rate(uint32_t id, double now) {
    Flow& flow = flows_[id];
    const double rate = cap(flow, Flow::kUses);
    if (rate == flow.rate) return;
    flow.left = std::max(0.0, flow.left - flow.rate * (now - flow.since));
    flow.since = now;
    flow.rate = rate;
    heap_.set(id, now + flow.left / rate);
  }

  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<uint32_t> free_, due_, changed_;
  std::vector<Demand> demands_;
  FlowHeap heap_;
  size_t alive_ = 0;
};

}  // namespace hostless::sim
