// Slices of blocks into given memory, each verified piece by piece against its block's header.
#pragma once

#include <algorithm>
#include <deque>

#include "batch.hpp"

namespace hostless {

// `identity` is what the header must begin with; bytes [begin, begin + bytes) of the payload go to `into`.
struct ReadWork {
  File file;
  uint64_t offset = 0;
  const uint8_t* identity = nullptr;
  uint64_t begin = 0;
  size_t bytes = 0;
  uint8_t* into = nullptr;
  int outcome = done_well;
};

class Reading {
 public:
  Reading(Channel& channel, std::span<const Registered> registered, std::span<ReadWork> work)
      : channel_(channel), registered_(registered), work_(work), flights_(channel) {}

  // Returns once nothing is under way any more; the outcomes then stand in the work.
  void run() {
    for (;;) {
      fill();
      channel_.device().flush();
      if (!ready_.empty()) {
        Transfer* transfer = ready_.front();
        ready_.pop_front();
        check(*transfer);
      } else if (flights_.none()) {
        return;
      } else {
        receive(flights_.receive());
      }
    }
  }

 private:
  struct Job {
    ReadWork* work = nullptr;
    uint8_t* page = nullptr;
    size_t piece = 0;
    uint64_t next = 0, end = 0;  // of the payload, whole pieces; the file has whole pages
    bool in_place = false;
    int slot = -1;
    bool header_in = false;
    unsigned open = 1;  // transfers not yet seen to, and one while there is more to send
    std::vector<Transfer*> parked{};  // bytes that came before their header
  };

  void fill() {
    while (current_ != nullptr || begin_next()) {
      while (current_->next < current_->end && current_->work->outcome == done_well)
        if (!send_more(*current_)) return;
      Job& job = *current_;
      current_ = nullptr;
      release(job);
    }
  }

  bool begin_next() {
    if (at_ == work_.size() || channel_.arena().pages.empty() || !flights_.room_for_header()) return false;
    ReadWork& work = work_[at_++];
    size_t length = load_u32(work.identity + kLengthAt), piece = piece_bytes(length);
    uint64_t stop = work.begin + work.bytes;
    Job& job = *new Job{.work = &work,
                        .page = take(channel_.arena().pages),
                        .piece = piece,
                        .next = work.begin / piece * piece,
                        .end = std::min<uint64_t>(round_up(stop, piece), length)};
    job.in_place = page_aligned(work.into) && job.next == work.begin && job.end == stop && stop % kPage == 0;
    if (job.in_place) job.slot = slot_of(registered_, work.into, work.bytes);
    flights_.send({.file = work.file,
                   .offset = work.offset,
                   .memory = job.page,
                   .bytes = kPage,
                   .buffer = channel_.own_slot(),
                   .owner = &job});
    ++job.open;
    current_ = &job;
    return true;
  }

  bool send_more(Job& job) {
    if (!flights_.room_for_body()) return false;
    uint8_t* memory = job.in_place ? job.work->into + (job.next - job.work->begin) : take(channel_.arena().bounces);
    if (memory == nullptr) return false;
    size_t bytes = std::min<uint64_t>(job.in_place ? kDirect : kBounce, round_up(job.end - job.next, kPage));
    flights_.send({.file = job.work->file,
                   .offset = job.work->offset + kPage + job.next,
                   .memory = memory,
                   .bytes = bytes,
                   .buffer = job.in_place ? job.slot : channel_.own_slot(),
                   .owner = &job,
                   .position = job.next,
                   .body = true});
    job.next += bytes;
    ++job.open;
    return true;
  }

  void receive(Transfer* transfer) {
    Job& job = *static_cast<Job*>(transfer->owner);
    if (transfer->body) {
      if (job.header_in)
        ready_.push_back(transfer);
      else
        job.parked.push_back(transfer);
      return;
    }
    job.header_in = true;
    if (transfer->error != 0)
      fail(job, transfer->error);
    else if (transfer->ended_early || !page_is_sealed(job.page) || std::memcmp(job.page, job.work->identity, kIdentity))
      fail(job, not_there);
    ready_.insert(ready_.end(), job.parked.begin(), job.parked.end());
    job.parked.clear();
    flights_.end(transfer);
    release(job);
  }

  void check(Transfer& transfer) {
    Job& job = *static_cast<Job*>(transfer.owner);
    size_t bytes = std::min<uint64_t>(transfer.bytes, job.end - transfer.position);
    if (transfer.error != 0)
      fail(job, transfer.error);
    else if (transfer.ended_early)
      fail(job, not_there);
    else if (job.work->outcome == done_well && !right(job, transfer, bytes))
      fail(job, wrong_bytes);
    if (!job.in_place) {
      if (job.work->outcome == done_well) copy_out(job, transfer, bytes);
      channel_.arena().bounces.push_back(transfer.memory);
    }
    flights_.end(&transfer);
    release(job);
  }

  static bool right(const Job& job, const Transfer& transfer, size_t bytes) {
    uint32_t crcs[kPieces];
    crc32c_pieces(transfer.memory, bytes, job.piece, crcs);
    const uint8_t* expected = job.page + kHead + 4 * (transfer.position / job.piece);
    return std::memcmp(crcs, expected, 4 * ((bytes + job.piece - 1) / job.piece)) == 0;
  }

  static void copy_out(const Job& job, const Transfer& transfer, size_t bytes) {
    uint64_t from = std::max(transfer.position, job.work->begin);
    uint64_t to = std::min(transfer.position + bytes, job.work->begin + job.work->bytes);
    std::memcpy(job.work->into + (from - job.work->begin), transfer.memory + (from - transfer.position), to - from);
  }

  static void fail(Job& job, int outcome) {
    if (job.work->outcome == done_well) job.work->outcome = outcome;
  }

  void release(Job& job) {
    if (--job.open != 0) return;
    channel_.arena().pages.push_back(job.page);
    delete &job;
  }

  Channel& channel_;
  std::span<const Registered> registered_;
  std::span<ReadWork> work_;
  Flights flights_;
  size_t at_ = 0;
  Job* current_ = nullptr;
  std::deque<Transfer*> ready_;
};

}  // namespace hostless
