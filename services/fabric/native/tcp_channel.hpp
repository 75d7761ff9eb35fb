// A peer's connection to an owner's agent, for one traffic class: batches go out, pipelined, while answers come in.
#pragma once

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "queue_delay.hpp"
#include "tcp_connect.hpp"
#include "tcp_link.hpp"
#include "tcp_wire.hpp"

namespace hostless::tcp {

// The owner refused a batch.
struct Refused : std::runtime_error {
  explicit Refused(Status status) : std::runtime_error("refused"), status(status) {}
  Status status;
};

struct Operation {
  Kind kind;
  uint64_t offset;
  uint8_t* memory;  // read into or written from; the word that an atomic found
  uint64_t length;
  uint64_t first = 0, second = 0;  // of an atomic, as on the wire
};

struct Target {
  std::string host, port;
  uint64_t generation, rkey;
  uint32_t rights, traffic_class;
  Traffic traffic;
  double silence_s;  // without a byte in or out for so long, the owner is lost
};

class Channel {
 public:
  static constexpr uint64_t kHeads = sizeof(BatchHead) + sizeof(WireOperation) + sizeof(ReplyHead) + sizeof(ReplyTail);
  static constexpr double kLookS = 0.25;
  static constexpr size_t kMostUnderWay = 256;       // batches

  Channel(Target target, Link& link) : target_(std::move(target)), link_(link) {
    const Hello hello{kMagic, target_.traffic_class, target_.traffic == Traffic::kv};
    fd_ = connect_to(target_.host, target_.port, hello, target_.silence_s);
  }
  ~Channel() { close(); }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Runs operations in order; returns when the last has taken effect. Throws Lost or Refused, and is closed after Lost.
  void run(const std::vector<Operation>& operations) {
    if (fd_ < 0) throw Lost("the connection is closed");
    try {
      Cursor next;
      left_ = 0;
      for (const Operation& operation : operations) left_ += operation.length;
      bool more = true;  // no operation is a batch too: it asks whether the region is there
      quiet_s_ = 0;
      while (more || sending_ || !under_way_.empty()) {
        if (more && !sending_ && may_send()) more = pack(operations, next);
        if (refused_ != Status::done) more = false;
        bool moved = sending_ && send();
        moved = (!under_way_.empty() && receive()) || moved;
        if (moved)
          quiet_s_ = 0;
        else if (sending_ || !under_way_.empty() || asked_)
          wait();
      }
    } catch (const Lost&) {
      close();
      throw;
    }
    leave_queue();
    if (refused_ != Status::done) {
      const Refused why(refused_);
      refused_ = Status::done;
      throw why;
    }
  }

  // Makes a run on another thread throw Lost, and all later ones.
  void interrupt() {
    std::lock_guard lock(ending_);
    if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
  }

  void close() {
    {
      std::lock_guard lock(ending_);
      if (fd_ >= 0) cut(fd_);
      fd_ = -1;
    }
    leave_queue();
    for (const Batch& batch : under_way_) link_.done(target_.traffic, batch.weight, -1);
    under_way_.clear();
    sending_ = false;
  }

  bool closed() const { return fd_ < 0; }

 private:
  struct Cursor {
    size_t operation = 0;
    uint64_t done = 0;  // of its bytes
  };
  struct Batch {
    std::vector<iovec> answers;
    uint64_t weight;  // bytes that it moves, both ways
    bool quiet;
    Clock::time_point since;
  };

  void leave_queue() {
    if (asked_ && link_.withdraw(turn_)) granted_ = 0;
    if (granted_ != 0) link_.done(target_.traffic, granted_, -1);
    asked_ = false;
    granted_ = 0;
  }

  // Asks the link for the next batch's turn, and says whether it has come.
  bool may_send() {
    if (under_way_.size() >= kMostUnderWay) return false;
    if (granted_ != 0 && !asked_) return true;
    if (!asked_) {
      const uint64_t most = target_.traffic == Traffic::model ? kMostChunk : link_.chunk();
      granted_ = std::min(left_, most) + kHeads;
      asked_ = !link_.ask(turn_, target_.traffic, granted_);
    } else {
      asked_ = !link_.granted(turn_);
    }
    return !asked_;
  }

  // Makes the next batch, of the bytes that were granted at most. Says whether there is more.
  bool pack(const std::vector<Operation>& operations, Cursor& next) {
    wire_.clear();
    out_.assign(2, iovec{});
    Batch batch{{}, granted_, link_.quiet(), Clock::now()};
    head_ = BatchHead{target_.generation, target_.rkey, 0, target_.rights, 0};
    uint64_t room = granted_ - kHeads;
    while (next.operation < operations.size() && wire_.size() < kMostOperations) {
      const Operation& operation = operations[next.operation];
      uint64_t piece = std::min(operation.length - next.done, room);
      if (piece == 0 && operation.length != 0) break;
      const uint64_t end = operation.offset + next.done + piece;
      if (next.done + piece < operation.length) {  // no word is cut in two
        if (piece <= end % kWord) break;
        piece -= end % kWord;
      }
      add(operation, next.done, piece, batch);
      room -= piece, left_ -= piece;
      next.done += piece;
      if (next.done == operation.length) next = Cursor{next.operation + 1, 0};
    }
    head_.count = static_cast<uint32_t>(wire_.size());
    batch.answers.push_back(iovec{&tail_, sizeof tail_});
    out_[0] = iovec{&head_, sizeof head_};
    out_[1] = iovec{wire_.data(), wire_.size() * sizeof(WireOperation)};
    out_next_ = 0;
    sending_ = true;
    granted_ = 0;
    under_way_.push_back(std::move(batch));
    return next.operation < operations.size();
  }

  void add(const Operation& operation, uint64_t done, uint64_t piece, Batch& batch) {
    wire_.push_back({static_cast<uint64_t>(operation.kind), operation.offset + done,
                     atomic(operation.kind) ? operation.first : piece, operation.second});
    if (piece == 0) return;
    const iovec bytes{operation.memory + done, piece};
    if (operation.kind == Kind::write) {
      out_.push_back(bytes);
      head_.bytes += piece;
    } else {
      batch.answers.push_back(bytes);
    }
  }

  // Says whether bytes moved.
  bool send() {
    bool moved = false;
    while (out_next_ < out_.size()) {
      msghdr message{};
      message.msg_iov = &out_[out_next_];
      message.msg_iovlen = std::min<size_t>(out_.size() - out_next_, 256);
      const ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) return moved;
      if (sent < 0 && errno != EINTR) throw Lost(std::strerror(errno));
      if (sent > 0) moved = true, advance(out_, out_next_, static_cast<size_t>(sent));
      while (out_next_ < out_.size() && out_[out_next_].iov_len == 0) ++out_next_;
    }
    sending_ = false;
    return moved;
  }

  bool receive() {
    bool moved = false;
    while (!under_way_.empty()) {
      Batch& batch = under_way_.front();
      iovec into[258];
      size_t count = 0;
      if (head_got_ < sizeof reply_)
        into[count++] = iovec{reinterpret_cast<uint8_t*>(&reply_) + head_got_, sizeof reply_ - head_got_};
      // A refusal brings a head and a tail: what follows, where answers were expected, is another batch's.
      const bool sure = head_got_ == sizeof reply_ || batch.answers.size() == 1;
      if (sure || under_way_.size() == 1)
        for (size_t i = answered_; i < batch.answers.size() && count < 257; ++i) into[count++] = batch.answers[i];
      const bool whole = sure && count < 257;
      if (whole && under_way_.size() > 1) into[count++] = iovec{&next_, sizeof next_};  // saves a call
      msghdr message{};
      message.msg_iov = into;
      message.msg_iovlen = count;
      const ssize_t got = ::recvmsg(fd_, &message, 0);
      if (got == 0) throw Lost("the owner ended the connection");
      if (got < 0 && errno == EAGAIN) return moved;
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw Lost(std::strerror(errno));
      moved = true;
      take(static_cast<size_t>(got));
    }
    return moved;
  }

  // Bytes that came: of the first batch's head and answers, then of the next one's head.
  void take(size_t got) {
    Batch& batch = under_way_.front();
    if (head_got_ < sizeof reply_) {
      const size_t part = std::min(got, sizeof reply_ - head_got_);
      head_got_ += part, got -= part;
      if (head_got_ == sizeof reply_) judge();
    }
    while (answered_ < batch.answers.size() && (got > 0 || batch.answers[answered_].iov_len == 0)) {
      const size_t part = std::min(got, batch.answers[answered_].iov_len);
      step(batch.answers, answered_, part);
      got -= part;
    }
    if (head_got_ < sizeof reply_ || answered_ < batch.answers.size()) return;
    finish(batch);
    reply_ = next_, head_got_ = got;
    if (head_got_ == sizeof reply_) judge();
  }

  // The first batch's head has come: one that was refused is answered by no more than a tail.
  void judge() {
    if (reply_.status == Status::done) return;
    if (refused_ == Status::done) refused_ = reply_.status;
    under_way_.front().answers = {iovec{&tail_, sizeof tail_}};
  }

  void finish(const Batch& batch) {
    double delay = -1;
    if (target_.traffic == Traffic::kv && batch.quiet && link_.quiet())
      delay = delay_.of(seconds_between(batch.since, Clock::now()));
    link_.done(target_.traffic, batch.weight, delay);
    under_way_.pop_front();
    answered_ = 0;
  }

  static void advance(std::vector<iovec>& bytes, size_t& next, size_t count) {
    while (count > 0) {
      const size_t part = std::min(count, bytes[next].iov_len);
      step(bytes, next, part);
      count -= part;
    }
  }

  static void step(std::vector<iovec>& bytes, size_t& next, size_t count) {
    iovec& first = bytes[next];
    first.iov_base = static_cast<uint8_t*>(first.iov_base) + count;
    first.iov_len -= count;
    if (first.iov_len == 0) ++next;
  }

  void wait() {
    const bool queued = !sending_ && under_way_.empty();  // behind others, whose owners may be lost
    const double most = queued ? 4 * target_.silence_s : target_.silence_s;
    const double left = std::min(most - quiet_s_, kLookS);
    if (left <= 0) throw Lost("nothing moved for " + std::to_string(static_cast<int>(most)) + " s");
    const Clock::time_point before = Clock::now();
    std::array<pollfd, 2> wanted{pollfd{fd_, static_cast<short>(sending_ ? POLLIN | POLLOUT : POLLIN), 0},
                                 pollfd{turn_.event(), POLLIN, 0}};
    const int ready = ::poll(wanted.data(), asked_ ? 2 : 1, static_cast<int>(left * 1e3) + 1);
    quiet_s_ += std::min(seconds_between(before, Clock::now()), left + 1e-3);  // a frozen process may have slept longer
    if (ready > 0 && queued && wanted[0].revents != 0) throw Lost("the owner ended the connection");
  }

  Target target_;
  Link& link_;
  std::mutex ending_;  // of fd_, which another thread may shut down
  int fd_ = -1;
  Turn turn_;
  bool asked_ = false, sending_ = false;
  uint64_t left_ = 0;  // bytes of the operations that are not packed yet
  uint64_t granted_ = 0;  // bytes asked for, or granted and not packed yet
  std::vector<WireOperation> wire_;
  std::vector<iovec> out_;
  size_t out_next_ = 0;
  BatchHead head_{};
  std::deque<Batch> under_way_;
  ReplyHead reply_{}, next_{};
  ReplyTail tail_{};
  size_t head_got_ = 0, answered_ = 0;
  Status refused_ = Status::done;
  QueueDelay delay_;
  double quiet_s_ = 0;  // without a byte, as far as this process was there to see it
};

}  // namespace hostless::tcp
