// What travels on a connection of transport tcp, little-endian.
//
// The peer says Hello once. Then it sends batches: a head, `count` operations, then the bytes of all writes, one behind
// the other. Each batch is answered by a reply: a head, what its reads and atomics found, in order, and a tail, which
// says that all of it has taken effect. A batch that is refused has no effect, and its reply is the head alone. Batches
// of one connection run in order.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace hostless::tcp {

constexpr uint64_t kMagic = 0x32504354534c4848ULL;  // "HHLSTCP2"
constexpr uint32_t kMostOperations = 1024;  // of a batch
constexpr uint64_t kWord = 8;

struct Hello {
  uint64_t magic;
  uint32_t traffic_class;  // byte of the IP header, for what the owner sends
  uint32_t bulk;  // 0: served before connections with 1
};
static_assert(sizeof(Hello) == 16);

struct BatchHead {
  uint64_t generation, rkey;
  uint32_t count;
  uint32_t rights;  // that the descriptor claims
  uint64_t bytes;  // of all writes
};
static_assert(sizeof(BatchHead) == 32);

enum class Kind : uint32_t { read = 0, write = 1, swap = 2, add = 3 };

inline bool atomic(Kind kind) { return kind == Kind::swap || kind == Kind::add; }

// What a peer may do to a region, as services/fabric/rights.py has it.
constexpr uint32_t right_to(Kind kind) { return kind == Kind::read ? 1 : kind == Kind::write ? 2 : 4; }

struct WireOperation {
  uint64_t kind : 2, offset : 62;
  uint64_t first;  // read, write: length; swap: expected; add: what to add
  uint64_t second;  // swap: desired
  uint64_t length() const { return atomic(static_cast<Kind>(kind)) ? kWord : first; }
};
static_assert(sizeof(WireOperation) == 24);

enum class Status : uint32_t { done = 0, stale = 1, wrong_key = 2, out_of_bounds = 3, malformed = 4, no_right = 5 };

struct ReplyHead {
  Status status;
  uint32_t reserved;
  uint64_t bytes;  // that follow
};
static_assert(sizeof(ReplyHead) == 16);

struct ReplyTail {
  uint64_t operations;  // that were done
};
static_assert(sizeof(ReplyTail) == 8);

constexpr int kGoneAfterMs = 10'000;

// Small batches leave at once; a peer whose machine is gone is noticed; switches can tell the classes apart.
inline void prepare(int fd, uint32_t traffic_class) {
  const int one = 1, idle = 5, every = 2, tries = 3, gone = kGoneAfterMs, byte = static_cast<int>(traffic_class);
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone, sizeof gone);
  ::setsockopt(fd, IPPROTO_IP, IP_TOS, &byte, sizeof byte);
  ::setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &byte, sizeof byte);  // fails on a socket of IPv4
}

}  // namespace hostless::tcp
