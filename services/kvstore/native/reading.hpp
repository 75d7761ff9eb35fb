// Slices of blocks into given memory, each verified piece by piece against its block's header.
//
// What begins a block comes in one stroke with its header, and small blocks that lie side by side come in one: on a
// disk, it is strokes that cost.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>

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
      flights_.flush();
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
    Job* joined = nullptr;            // the next one in its stroke
  };

  void fill() {
    while (!again_.empty()) {
      if (!flights_.room_for_body()) return;
      auto [job, into] = again_.front();
      again_.pop_front();
      flights_.send(paged(*job, static_cast<uint8_t*>(into.iov_base), into.iov_len));
    }
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
    current_ = &job;
    if (job.next != 0) {
      Transfer header{.file = work.file, .offset = work.offset, .buffer = channel_.own_slot(), .owner = &job};
      flights_.send(header.add(job.page, kPage));
      ++job.open;
    }
    return true;
  }

  bool send_more(Job& job) {
    bool first = job.next == 0;
    size_t bytes = std::min<uint64_t>(job.in_place ? kDirect : kBounce, round_up(job.end - job.next, kPage));
    bool small = first && bytes >= job.end && kPage + bytes <= kStroke;
    Transfer* stroke = small ? flights_.extensible(job.work->file, job.work->offset, kPage + bytes) : nullptr;
    if (stroke == nullptr && !flights_.room_for_body()) return false;
    uint8_t* memory = job.in_place ? job.work->into + (job.next - job.work->begin) : take(channel_.arena().bounces);
    if (memory == nullptr) return false;
    if (stroke != nullptr) {
      stroke->add(job.page, kPage).add(memory, bytes);
      last_ = last_->joined = &job;
    } else if (small) {
      flights_.hold(paged(job, memory, bytes));
      last_ = &job;
    } else if (first) {
      flights_.send(paged(job, memory, bytes));
    } else {
      Transfer body{.file = job.work->file,
                    .offset = job.work->offset + kPage + job.next,
                    .buffer = job.in_place ? job.slot : channel_.own_slot(),
                    .owner = &job,
                    .position = job.next,
                    .body = true};
      flights_.send(body.add(memory, bytes));
    }
    job.next += bytes;
    ++job.open;
    return true;
  }

  static Transfer paged(Job& job, uint8_t* memory, size_t bytes) {
    Transfer transfer{.file = job.work->file, .offset = job.work->offset, .owner = &job, .body = true};
    return transfer.add(job.page, kPage).add(memory, bytes);
  }

  void receive(Transfer* transfer) {
    Job& job = *static_cast<Job*>(transfer->owner);
    bool with_header = !transfer->body || transfer->count > 1;
    if (job.joined != nullptr && (transfer->error != 0 || transfer->ended_early)) return part_ways(*transfer);
    for (Job* each = &job; with_header && each != nullptr; each = each->joined) judge_header(*each, *transfer);
    if (transfer->body && job.header_in) ready_.push_back(transfer);
    if (transfer->body && !job.header_in) job.parked.push_back(transfer);
    if (!with_header) return;
    ready_.insert(ready_.end(), job.parked.begin(), job.parked.end());
    job.parked.clear();
    if (transfer->body) return;
    flights_.end(transfer);
    release(job);
  }

  // What went wrong with a stroke of several blocks is one's: each comes alone, then.
  void part_ways(Transfer& transfer) {
    int part = 1;
    for (Job* job = static_cast<Job*>(transfer.owner); job != nullptr; part += 2) {
      again_.emplace_back(job, transfer.parts[part]);
      job = std::exchange(job->joined, nullptr);
    }
    flights_.end(&transfer);
  }

  static void judge_header(Job& job, const Transfer& transfer) {
    job.header_in = true;
    if (transfer.error != 0)
      fail(job, transfer.error);
    else if (transfer.ended_early || !page_is_sealed(job.page) || std::memcmp(job.page, job.work->identity, kIdentity))
      fail(job, not_there);
  }

  void check(Transfer& transfer) {
    int part = transfer.count > 1 ? 1 : 0;  // behind its page, if that went along
    for (Job* job = static_cast<Job*>(transfer.owner); job != nullptr; part += 2) {
      Job* next = job->joined;
      check(*job, transfer, transfer.parts[part]);
      release(*job);
      job = next;
    }
    flights_.end(&transfer);
  }

  void check(Job& job, const Transfer& transfer, iovec part) {
    auto* memory = static_cast<uint8_t*>(part.iov_base);
    uint64_t position = transfer.position;
    size_t bytes = std::min<uint64_t>(part.iov_len, job.end - position);
    if (transfer.error != 0)
      fail(job, transfer.error);
    else if (transfer.ended_early)
      fail(job, not_there);
    else if (job.work->outcome == done_well && !right(job, position, memory, bytes))
      fail(job, wrong_bytes);
    if (job.in_place) return;
    if (job.work->outcome == done_well) copy_out(job, position, memory, bytes);
    channel_.arena().bounces.push_back(memory);
  }

  static bool right(const Job& job, uint64_t position, const uint8_t* memory, size_t bytes) {
    uint32_t crcs[kPieces];
    crc32c_pieces(memory, bytes, job.piece, crcs);
    const uint8_t* expected = job.page + kHead + 4 * (position / job.piece);
    return std::memcmp(crcs, expected, 4 * ((bytes + job.piece - 1) / job.piece)) == 0;
  }

  static void copy_out(const Job& job, uint64_t position, const uint8_t* memory, size_t bytes) {
    uint64_t from = std::max(position, job.work->begin);
    uint64_t to = std::min(position + bytes, job.work->begin + job.work->bytes);
    std::memcpy(job.work->into + (from - job.work->begin), memory + (from - position), to - from);
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
  Job* last_ = nullptr;  // of the stroke that is held
  std::deque<Transfer*> ready_;
  std::deque<std::pair<Job*, iovec>> again_;
};

}  // namespace hostless
