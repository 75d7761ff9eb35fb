// A Device over a few threads that block in preadv and pwritev: for kernels and containers without io_uring.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "device.hpp"

namespace hostless {

class Threads final : public Device {
 public:
  explicit Threads(unsigned count) {
    for (unsigned i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
  }
  ~Threads() override {
    {
      std::lock_guard hold(lock_);
      stopping_ = true;
    }
    given_.notify_all();
    for (auto& worker : workers_) worker.join();
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  void submit(Transfer& transfer) override {
    {
      std::lock_guard hold(lock_);
      waiting_.push_back(&transfer);
    }
    given_.notify_one();
  }

  void flush() override {}

  Transfer* wait() override {
    std::unique_lock hold(lock_);
    ended_some_.wait(hold, [this] { return !ended_.empty(); });
    Transfer* transfer = ended_.front();
    ended_.pop_front();
    return transfer;
  }

 private:
  void work() {
    std::unique_lock hold(lock_);
    for (;;) {
      given_.wait(hold, [this] { return stopping_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      Transfer* transfer = waiting_.front();
      waiting_.pop_front();
      hold.unlock();
      while (!transfer->settle(attempt(*transfer))) continue;
      hold.lock();
      ended_.push_back(transfer);
      ended_some_.notify_one();
    }
  }

  static int64_t attempt(Transfer& t) {
    auto offset = static_cast<off_t>(t.offset + t.done);
    ssize_t answer;
    if (t.action == Action::sync)
      answer = fdatasync(t.file.fd);
    else if (t.action == Action::read)
      answer = preadv(t.file.fd, t.rest, t.left(), offset);
    else
      answer = pwritev(t.file.fd, t.rest, t.left(), offset);
    return answer < 0 ? -errno : answer;
  }

  std::mutex lock_;
  std::condition_variable given_, ended_some_;
  std::deque<Transfer*> waiting_, ended_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace hostless
