// One peer's connection at the owner: its batches are run on the regions of this process as they come in.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <vector>

#include "memory.hpp"
#include "tcp_regions.hpp"
#include "tcp_wire.hpp"

namespace hostless::tcp {

// One peer's connection: what has come in and is not run yet, and what has to go out.
class Served {
 public:
  static constexpr size_t kIn = 64 << 10, kOut = 256 << 10;
  static constexpr size_t kDirect = 16 << 10;   // writes of more go from the socket straight to the region
  static constexpr size_t kAhead = 4 << 10;     // and with them come so many bytes of what follows: the next head
  // Reads of more go from the region straight to the socket: the kernel copies them, and promises no whole words.
  static constexpr size_t kWhole = 64 << 10;
  static constexpr size_t kTurn = 1 << 20;      // bytes of a connection before others have their turn

  Served(int fd, Regions& regions) : fd_(fd), regions_(regions), in_(kIn), out_(kOut) {}
  ~Served() { ::close(fd_); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  enum class After { wait_in, wait_out, again, end };

  bool bulk() const { return bulk_; }

  // Whether it has shown a key to a region: strangers have to make room for peers.
  bool trusted() const { return trusted_; }

  // Does what can be done now, for one turn. `end`: the peer is gone, or made no sense.
  After serve() {
    moved_ = 0;
    while (true) {
      const Step step = run();
      if (step == Step::broken) return After::end;
      if (step == Step::full) return After::wait_out;
      if (step == Step::paused) return After::again;
      if (step == Step::wants_room || !in_batch_ || (step == Step::dry && answered_)) {
        answered_ = false;
        if (!flush()) return After::end;
        if (out_end_ != out_begin_) return After::wait_out;
      }
      if (moved_ >= kTurn) return After::again;
      if (step == Step::wants_room) continue;
      if (step == Step::dry) return After::wait_in;
      if (!receive()) return After::end;
      if (dry_) return After::wait_in;
    }
  }

 private:
  enum class Step { wants_input, wants_room, dry, full, paused, broken };

  size_t held() const { return in_end_ - in_begin_; }

  template <class T>
  bool take(T& value) {
    if (held() < sizeof(T)) return false;
    std::memcpy(&value, in_.data() + in_begin_, sizeof(T));
    in_begin_ += sizeof(T);
    return true;
  }

  Step run() {
    if (!greeted_) {
      Hello hello;
      if (!take(hello)) return Step::wants_input;
      if (hello.magic != kMagic) return Step::broken;
      prepare(fd_, hello.traffic_class);
      bulk_ = hello.bulk != 0;
      greeted_ = true;
    }
    while (true) {
      if (!in_batch_) {
        if (!take(head_)) return Step::wants_input;
        if (head_.count > kMostOperations) return Step::broken;
        in_batch_ = true;
        begun_ = false;
      }
      if (!begun_) {
        if (held() < head_.count * sizeof(WireOperation)) return Step::wants_input;
        if (room() < sizeof(ReplyHead)) return Step::wants_room;
        std::memcpy(operations_.data(), in_.data() + in_begin_, head_.count * sizeof(WireOperation));
        in_begin_ += head_.count * sizeof(WireOperation);
        if (!begin()) return Step::broken;
      }
      if (discard_ != 0) {
        const size_t skipped = std::min<uint64_t>(discard_, held());
        in_begin_ += skipped, discard_ -= skipped;
        if (discard_ != 0) return Step::wants_input;
      }
      const std::optional<Step> blocked = run_operations();
      if (blocked) return *blocked;
      if (room() < sizeof(ReplyTail)) return Step::wants_room;
      const ReplyTail tail{head_.count};
      put(&tail, sizeof tail);
      answered_ = true;
      in_batch_ = false;
    }
  }

  // Judges a batch as a whole and answers its head. A refused one is read, and nothing of it done.
  bool begin() {
    begun_ = true;
    next_ = done_ = 0;
    discard_ = 0;
    Judgement judged;
    {
      std::lock_guard lock(regions_.mutex);
      judged = judge(head_, operations_.data(), regions_.find(head_.generation));
    }
    trusted_ |= judged.trusted;
    if (judged.status == Status::done) {
      if (judged.written != head_.bytes) return false;
    } else {
      discard_ = head_.bytes;
      head_.count = 0;
    }
    const ReplyHead reply{judged.status, 0, judged.found};
    put(&reply, sizeof reply);
    return true;
  }

  // Until the batch is done, or it takes input or room. A region that ends meanwhile breaks the connection.
  std::optional<Step> run_operations() {
    if (next_ == head_.count) return std::nullopt;
    std::lock_guard lock(regions_.mutex);
    const Region* region = regions_.find(head_.generation);
    if (region == nullptr) return Step::broken;
    for (; next_ < head_.count; ++next_, done_ = 0) {
      const WireOperation& operation = operations_[next_];
      uint8_t* at = region->data + operation.offset;
      switch (static_cast<Kind>(operation.kind)) {
        case Kind::read:
          if (operation.first > kWhole) {
            if (const auto blocked = send_region(at, operation.first)) return blocked;
          } else if (!read(at, operation.first)) {
            return Step::wants_room;
          }
          break;
        case Kind::write:
          if (const auto blocked = write(at, operation.first)) return blocked;
          break;
        case Kind::swap:
        case Kind::add: {
          if (room() < kWord) return Step::wants_room;
          uint64_t word = operation.first;
          const std::atomic_ref<uint64_t> there(*reinterpret_cast<uint64_t*>(at));
          if (static_cast<Kind>(operation.kind) == Kind::add)
            word = there.fetch_add(word, std::memory_order_acq_rel);
          else
            there.compare_exchange_strong(word, operation.second, std::memory_order_acq_rel);
          put(&word, kWord);
        }
      }
    }
    return std::nullopt;
  }

  bool read(uint8_t* at, uint64_t length) {
    while (done_ < length) {
      uint64_t piece = std::min<uint64_t>(length - done_, room());
      if (done_ + piece < length)  // the next piece begins with a whole word
        piece -= std::min<uint64_t>(piece, (reinterpret_cast<uintptr_t>(at) + done_ + piece) % kWord);
      if (piece == 0) return false;
      copy_out(at + done_, out_.data() + out_end_, piece);
      out_end_ += piece, done_ += piece, moved_ += piece;
    }
    return true;
  }

  // What waits to go out, and behind it bytes of the region, without a copy between.
  std::optional<Step> send_region(uint8_t* at, uint64_t length) {
    while (done_ < length) {
      if (moved_ >= kTurn) return Step::paused;
      const size_t before = out_end_ - out_begin_;
      iovec from[] = {{out_.data() + out_begin_, before}, {at + done_, std::min<uint64_t>(length - done_, kTurn)}};
      msghdr message{};
      message.msg_iov = from;
      message.msg_iovlen = 2;
      const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN ? Step::full : Step::broken;
      const size_t first = std::min(before, static_cast<size_t>(sent)), rest = static_cast<size_t>(sent) - first;
      out_begin_ += first, done_ += rest, moved_ += rest;
    }
    return std::nullopt;
  }

  std::optional<Step> write(uint8_t* at, uint64_t length) {
    if (length <= kDirect) {
      if (held() < length) return Step::wants_input;
      copy_in(in_.data() + in_begin_, at, length);
      in_begin_ += length, moved_ += length;
      return std::nullopt;
    }
    const uint64_t piece = std::min<uint64_t>(length - done_, held());
    std::memcpy(at + done_, in_.data() + in_begin_, piece);
    in_begin_ += piece, done_ += piece, moved_ += piece;
    while (done_ < length) {
      if (moved_ >= kTurn) return Step::wants_input;
      const uint64_t most = std::min<uint64_t>(length - done_, kTurn);
      in_begin_ = in_end_ = 0;  // all that was held is written
      iovec into[] = {{at + done_, most}, {in_.data(), kAhead}};
      msghdr message{};
      message.msg_iov = into;
      message.msg_iovlen = done_ + most == length ? 2 : 1;
      const ssize_t got = ::recvmsg(fd_, &message, 0);
      if (got > 0) {
        const uint64_t direct = std::min<uint64_t>(static_cast<uint64_t>(got), most);
        in_end_ = static_cast<size_t>(got) - direct;
        done_ += direct, moved_ += direct;
      } else if (got < 0 && errno == EINTR) {
        continue;
      } else if (got < 0 && errno == EAGAIN) {
        return Step::dry;
      } else {
        return Step::broken;
      }
    }
    return std::nullopt;
  }

  size_t room() {
    if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
    return out_.size() - out_end_;
  }

  void put(const void* bytes, size_t count) {
    std::memcpy(out_.data() + out_end_, bytes, count);
    out_end_ += count;
  }

  bool flush() {
    while (out_begin_ != out_end_) {
      const ssize_t sent = ::send(fd_, out_.data() + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL);
      if (sent > 0)
        out_begin_ += static_cast<size_t>(sent);
      else if (errno == EAGAIN)
        return true;
      else if (errno != EINTR)
        return false;
    }
    return true;
  }

  bool receive() {
    if (in_begin_ != 0) {
      std::memmove(in_.data(), in_.data() + in_begin_, held());
      in_end_ -= in_begin_, in_begin_ = 0;
    }
    dry_ = false;
    while (true) {
      const ssize_t got = ::recv(fd_, in_.data() + in_end_, in_.size() - in_end_, 0);
      if (got > 0) {
        in_end_ += static_cast<size_t>(got);
        return true;
      }
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return dry_ = true;
      return false;
    }
  }

  int fd_;
  Regions& regions_;
  std::vector<uint8_t> in_, out_;
  size_t in_begin_ = 0, in_end_ = 0, out_begin_ = 0, out_end_ = 0;
  std::array<WireOperation, kMostOperations> operations_{};
  BatchHead head_{};
  uint32_t next_ = 0;
  uint64_t done_ = 0, discard_ = 0, moved_ = 0;
  bool greeted_ = false, bulk_ = false, in_batch_ = false, begun_ = false;
  bool dry_ = false, answered_ = false, trusted_ = false;
};

}  // namespace hostless::tcp
