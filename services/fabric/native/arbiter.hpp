// Who goes first on a link that two traffic classes share (D8): deficit round robin in bytes, pure.
//
// MODEL waits for nothing but KV chunks whose turn it is. KV moves in chunks and within a window of bytes that are
// under way, those of MODEL counted, so that little lies before a MODEL transfer in the queues of kernel and network:
// what has been handed over can't be overtaken. While MODEL moves more than the window, KV earns its weighted share.
// The window follows the delay that it causes, which is to be `wait_s`: it finds what keeps the link busy by itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace hostless {

constexpr uint64_t kMostChunk = 1 << 20;

enum class Traffic : uint32_t { model = 0, kv = 1 };

struct ArbiterSettings {
  uint64_t model_weight = 99, kv_weight = 1;
  double wait_s = 0.0003;               // how long a MODEL transfer may wait for KV bytes that went before it
  uint64_t least_chunk = 2048;          // bytes of a KV chunk on the slowest link
  uint64_t most_window = 8ull << 20;
};

class Arbiter {
 public:
  explicit Arbiter(const ArbiterSettings& settings) : settings_(settings), window_(8.0 * settings.least_chunk) {}

  uint64_t window() const { return static_cast<uint64_t>(window_); }

  // Bytes that KV should ask for at a time.
  uint64_t chunk() const {
    return std::clamp<uint64_t>(window() / 4 / settings_.least_chunk * settings_.least_chunk, settings_.least_chunk,
                                kMostChunk);
  }

  // Whether so little of MODEL is under way that what a KV chunk waits for is KV's own doing.
  bool quiet() const { return under_way(Traffic::model) <= 2 * settings_.least_chunk; }

  uint64_t under_way(Traffic traffic) const { return at(under_way_, traffic); }
  size_t waiting(Traffic traffic) const { return at(waiting_, traffic).size(); }

  // A transfer waits behind the others of its class.
  void ask(Traffic traffic, uint64_t bytes) { at(waiting_, traffic).push_back(bytes); }

  // One that waits, the `place`th of its class, does so no more.
  void withdraw(Traffic traffic, size_t place) {
    auto& queue = at(waiting_, traffic);
    queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(place));
    if (waiting(Traffic::kv) == 0) credit_ = 0;
  }

  // The class whose first transfer goes now; nothing if none may. Call until then.
  std::optional<Traffic> grant() {
    const bool kv = waiting(Traffic::kv) != 0, model = waiting(Traffic::model) != 0;
    if (kv && earned() && fits(under_way(Traffic::kv))) {
      credit_ -= std::min(credit_, at(waiting_, Traffic::kv).front() * settings_.model_weight);
      return start(Traffic::kv);
    }
    if (model) {
      if (kv) earn(at(waiting_, Traffic::model).front());
      return start(Traffic::model);
    }
    if (kv && fits(under_way(Traffic::kv) + under_way(Traffic::model))) return start(Traffic::kv);
    if (kv && under_way(Traffic::model) == 0) limited_ = true;
    return std::nullopt;
  }

  // So many bytes that were granted have arrived, or never will.
  void done(Traffic traffic, uint64_t bytes) { at(under_way_, traffic) -= bytes; }

  // A KV chunk took `delay_s` longer than one does on an idle link.
  void measured(double delay_s, uint64_t bytes) {
    const double off = std::clamp((settings_.wait_s - delay_s) / settings_.wait_s, -1.0, 1.0);
    if (off < 0.5) starting_ = false;
    if (off > 0 && !limited_) return;
    limited_ = false;
    const double step = static_cast<double>(bytes);
    window_ += starting_ ? step : off * step * static_cast<double>(chunk()) / window_;
    window_ = std::clamp(window_, 2.0 * settings_.least_chunk, static_cast<double>(settings_.most_window));
  }

 private:
  template <class T>
  static T& at(T (&pair)[2], Traffic traffic) {
    return pair[static_cast<uint32_t>(traffic)];
  }

  // Whether the first KV chunk may join what is under way; alone, any chunk may.
  bool fits(uint64_t others) const { return others == 0 || others + waiting_[1].front() <= window(); }

  bool earned() const { return credit_ >= waiting_[1].front() * settings_.model_weight; }

  // KV's deficit counter, in 1/model_weight bytes: a window at most, for who could not use it.
  void earn(uint64_t model_bytes) {
    const uint64_t most = std::max(window(), waiting_[1].front()) * settings_.model_weight;
    credit_ = std::min(credit_ + model_bytes * settings_.kv_weight, most);
  }

  Traffic start(Traffic traffic) {
    at(under_way_, traffic) += at(waiting_, traffic).front();
    at(waiting_, traffic).pop_front();
    if (waiting(Traffic::kv) == 0) credit_ = 0;
    return traffic;
  }

  ArbiterSettings settings_;
  std::deque<uint64_t> waiting_[2];
  uint64_t under_way_[2] = {0, 0};
  uint64_t credit_ = 0;
  double window_;
  bool starting_ = true, limited_ = false;
};

}  // namespace hostless
