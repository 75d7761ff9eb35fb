// series.hpp: how uneven load was, over time: the largest share by the average (1: even).
#pragma once
#include <cstdint>
#include <vector>

namespace hostless::sim {

// Sums of largest and average, binned by time.
class Imbalance {
 public:
  explicit Imbalance(double bin_s = 1) : bin_s_(bin_s) {}

  void add(double time, double largest, double average) {
    const size_t bin = static_cast<size_t>(time / bin_s_);
    if (bin >= largest_.size()) {
      largest_.resize(bin + 1);
      average_.resize(bin + 1);
    }
    largest_[bin] += largest;
    average_[bin] += average;
  }

  const std::vector<double>& largest() const { return largest_; }
  const std::vector<double>& average() const { return average_; }

 private:
  double bin_s_;
  std::vector<double> largest_, average_;
};

// Bytes by bin and node.
class NodeSeries {
 public:
  NodeSeries(double bin_s, uint32_t nodes) : bin_s_(bin_s), nodes_(nodes) {}

  // Spreads bytes evenly over the time in which they moved.
  void add(double from, double to, uint32_t node, double bytes) {
    const size_t first = static_cast<size_t>(from / bin_s_), last = static_cast<size_t>(to / bin_s_);
    if ((last + 1) * nodes_ > bytes_.size()) bytes_.resize((last + 1) * nodes_);
    for (size_t bin = first; bin <= last; ++bin) {
      const double begin = from > bin * bin_s_ ? from : bin * bin_s_;
      const double end = to < (bin + 1) * bin_s_ ? to : (bin + 1) * bin_s_;
      bytes_[bin * nodes_ + node] += to > from ? bytes * (end - begin) / (to - from) : bytes;
    }
  }

  uint32_t nodes() const { return nodes_; }
  const std::vector<double>& bytes() const { return bytes_; }

 private:
  double bin_s_;
  uint32_t nodes_;
  std::vector<double> bytes_;
};

}  // namespace hostless::sim
