// The owner's agent: one thread that serves peers' one-sided operations on this process's regions, without Python.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "memory.hpp"
#include "tcp_wire.hpp"

namespace hostless::tcp {

struct Region {
  uint8_t* data;
  uint64_t length, rkey;
};

// The regions that peers may touch. Who holds the lock knows that nobody else does anything to them.
class Regions {
 public:
  std::mutex mutex;

  void publish(uint64_t generation, Region region) {
    std::lock_guard lock(mutex);
    regions_[generation] = region;
  }
  void end(uint64_t generation) {
    std::lock_guard lock(mutex);
    regions_.erase(generation);
  }
  const Region* find(uint64_t generation) const {
    const auto found = regions_.find(generation);
    return found == regions_.end() ? nullptr : &found->second;
  }

 private:
  std::unordered_map<uint64_t, Region> regions_;
};

// One peer's connection: what has come in and is not run yet, and what has to go out.
class Served {
 public:
  static constexpr size_t kIn = 256 << 10, kOut = 256 << 10;
  static constexpr size_t kDirect = 16 << 10;   // writes of more go from the socket straight to the region
  static constexpr size_t kTurn = 1 << 20;      // bytes of a connection before others have their turn

  Served(int fd, Regions& regions) : fd_(fd), regions_(regions), in_(kIn), out_(kOut) {}
  ~Served() { ::close(fd_); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  enum class After { wait_in, wait_out, again, end };

  bool bulk() const { return bulk_; }

  // Does what can be done now, for one turn. `end`: the peer is gone, or made no sense.
  After serve() {
    moved_ = 0;
    while (true) {
      const Step step = run();
      if (step == Step::broken) return After::end;
      if (step == Step::wants_room || !in_batch_) {  // an answer is whole, or too long to be kept until it is
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
  enum class Step { wants_input, wants_room, dry, broken };

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
      in_batch_ = false;
    }
  }

  // Judges a batch as a whole and answers its head. A refused one is read, and nothing of it done.
  bool begin() {
    begun_ = true;
    next_ = done_ = 0;
    discard_ = 0;
    Status status = Status::done;
    uint64_t found = 0, written = 0;
    {
      std::lock_guard lock(regions_.mutex);
      const Region* region = regions_.find(head_.generation);
      if (region == nullptr) {
        status = Status::stale;
      } else if (region->rkey != head_.rkey) {
        status = Status::wrong_key;
      } else {
        for (uint32_t i = 0; i < head_.count; ++i) {
          const WireOperation& operation = operations_[i];
          const auto kind = static_cast<Kind>(operation.kind);
          const uint64_t length = operation.length();
          if (operation.offset > region->length || length > region->length - operation.offset)
            status = Status::out_of_bounds;
          if (operation.kind > 2 || (kind == Kind::swap && operation.offset % kWord != 0)) status = Status::malformed;
          if (status != Status::done) break;
          (kind == Kind::write ? written : found) += length;
        }
        if (status == Status::done && written != head_.bytes) return false;
      }
    }
    if (status != Status::done) {
      found = 0;
      discard_ = head_.bytes;
      head_.count = 0;
    }
    const ReplyHead reply{status, 0, found};
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
          if (!read(at, operation.first)) return Step::wants_room;
          break;
        case Kind::write:
          if (const auto blocked = write(at, operation.first)) return blocked;
          break;
        case Kind::swap: {
          if (room() < kWord) return Step::wants_room;
          uint64_t word = operation.first;
          std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at))
              .compare_exchange_strong(word, operation.second, std::memory_order_acq_rel);
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
      copy_words(at + done_, out_.data() + out_end_, piece);
      out_end_ += piece, done_ += piece, moved_ += piece;
    }
    return true;
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
      const ssize_t got = ::recv(fd_, at + done_, std::min<uint64_t>(length - done_, kTurn), 0);
      if (got > 0) {
        done_ += static_cast<uint64_t>(got), moved_ += static_cast<uint64_t>(got);
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
  bool dry_ = false;
};

class Agent {
 public:
  static constexpr size_t kMostConnections = 256;

  Agent(const std::string& host, const std::string& port) {
    listen_on(host, port);
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    stop_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (epoll_ < 0 || stop_ < 0) {
      const int reason = errno;
      release();
      throw std::system_error(reason, std::generic_category(), "epoll");
    }
    spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    watch(EPOLL_CTL_ADD, listener_, EPOLLIN);
    watch(EPOLL_CTL_ADD, stop_, EPOLLIN);
    thread_ = std::thread([this] { serve(); });
  }
  ~Agent() { close(); }
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  void publish(uint64_t generation, Region region) { regions_.publish(generation, region); }
  void end(uint64_t generation) { regions_.end(generation); }
  uint16_t port() const { return port_; }
  size_t connections() const { return connections_.load(); }

  void close() {
    if (!thread_.joinable()) return;
    const uint64_t one = 1;
    (void)!::write(stop_, &one, sizeof one);
    thread_.join();
    release();
  }

 private:
  void listen_on(const std::string& host, const std::string& port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    if (const int wrong = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found))
      throw std::runtime_error(::gai_strerror(wrong));
    const int one = 1;
    listener_ = ::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int reason = 0;
    if (listener_ < 0 || ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
        ::bind(listener_, found->ai_addr, found->ai_addrlen) < 0 || ::listen(listener_, 128) < 0)
      reason = errno;
    ::freeaddrinfo(found);
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    if (reason == 0 && ::getsockname(listener_, reinterpret_cast<sockaddr*>(&name), &length) < 0) reason = errno;
    if (reason != 0) {
      release();
      throw std::system_error(reason, std::generic_category(), "listen");
    }
    port_ = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(name).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(name).sin_port);
  }

  void release() {
    for (int* fd : {&listener_, &epoll_, &stop_, &spare_}) {
      if (*fd >= 0) ::close(*fd);
      *fd = -1;
    }
  }

  void watch(int how, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    ::epoll_ctl(epoll_, how, fd, &event);
  }

  void serve() {
    std::array<epoll_event, 64> events;
    while (true) {
      const int count = ::epoll_wait(epoll_, events.data(), events.size(), again_.empty() ? -1 : 0);
      std::map<int, bool> ready;  // a connection once
      for (int fd : again_) ready[fd] = true;
      again_.clear();
      for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<size_t>(i)].data.fd;
        if (fd == stop_) return served_.clear();
        if (fd == listener_)
          accept();
        else
          ready[fd] = true;
      }
      for (const bool bulk : {false, true})
        for (auto& [fd, due] : ready)
          if (due && served_.count(fd) && served_.at(fd)->bulk() == bulk) due = false, turn(fd);
    }
  }

  void accept() {
    while (true) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0 && errno == EMFILE && spare_ >= 0) {  // else the listener would stay ready for ever
        ::close(spare_);
        ::close(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
        spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        continue;
      }
      if (fd < 0) return;
      if (served_.size() == kMostConnections) {
        ::close(fd);
        continue;
      }
      prepare(fd, 0);
      served_[fd] = std::make_unique<Served>(fd, regions_);
      connections_ = served_.size();
      watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }

  void turn(int fd) {
    switch (served_.at(fd)->serve()) {
      case Served::After::wait_in: return watch(EPOLL_CTL_MOD, fd, EPOLLIN);
      case Served::After::wait_out: return watch(EPOLL_CTL_MOD, fd, EPOLLOUT);
      case Served::After::again: return again_.push_back(fd);
      case Served::After::end: served_.erase(fd);
    }
    connections_ = served_.size();
  }

  int listener_ = -1, epoll_ = -1, stop_ = -1, spare_ = -1;
  uint16_t port_ = 0;
  Regions regions_;
  std::unordered_map<int, std::unique_ptr<Served>> served_;
  std::vector<int> again_;
  std::atomic<size_t> connections_{0};
  std::thread thread_;
};

}  // namespace hostless::tcp
