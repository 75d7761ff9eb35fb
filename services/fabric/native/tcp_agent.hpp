// The owner's agent: one thread that serves peers' one-sided operations on this process's regions, without Python.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tcp_served.hpp"

namespace hostless::tcp {

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
      if (served_.size() == kMostConnections && !make_room()) {
        ::close(fd);
        continue;
      }
      prepare(fd, 0);
      served_[fd] = std::make_unique<Served>(fd, regions_);
      connections_ = served_.size();
      watch(EPOLL_CTL_ADD, fd, EPOLLIN);
    }
  }

  // Ends a connection that has no right to anything, if there is one.
  bool make_room() {
    const auto stranger =
        std::find_if(served_.begin(), served_.end(), [](const auto& entry) { return !entry.second->trusted(); });
    if (stranger == served_.end()) return false;
    served_.erase(stranger);
    return true;
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
