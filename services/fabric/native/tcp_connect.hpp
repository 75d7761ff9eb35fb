// A peer's way to an owner's agent: the socket of a connection.
#pragma once

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>

#include "tcp_wire.hpp"

namespace hostless::tcp {

// The owner does not answer.
struct Lost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A socket, or -1 and why.
inline int connect_address(const addrinfo& address, uint32_t traffic_class, double patience_s, std::string& why) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  int wrong = fd < 0 ? errno : 0;
  if (wrong == 0) {
    prepare(fd, traffic_class);
    wrong = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  }
  if (wrong == EINPROGRESS) {
    pollfd wanted{fd, POLLOUT, 0};
    socklen_t length = sizeof wrong;
    if (::poll(&wanted, 1, static_cast<int>(patience_s * 1e3)) != 1)
      wrong = ETIMEDOUT;
    else
      ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &wrong, &length);
  }
  if (wrong == 0) return fd;
  if (fd >= 0) ::close(fd);
  why = std::strerror(wrong);
  return -1;
}

// A connected socket that has said `hello`. Throws Lost.
inline int connect_to(const std::string& host, const std::string& port, const Hello& hello, double patience_s) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int wrong = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found)) throw Lost(::gai_strerror(wrong));
  std::string why = "no address";
  int fd = -1;
  for (const addrinfo* at = found; at != nullptr && fd < 0; at = at->ai_next)
    fd = connect_address(*at, hello.traffic_class, patience_s, why);
  ::freeaddrinfo(found);
  if (fd < 0) throw Lost(why);
  if (::send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) return fd;
  ::close(fd);
  throw Lost("the connection ended at once");
}

// Ends a connection whose owner is lost: what was sent and has not arrived never will.
inline void cut(int fd) {
  const linger none{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
  ::close(fd);
}

}  // namespace hostless::tcp
