// Blocks to their places in files: the bytes as they are checksummed, the header last, once their checksum is as said.
// Small blocks go in one stroke with their headers, several that lie side by side in one: it is strokes that cost.
#pragma once

#include <algorithm>

#include "batch.hpp"

namespace hostless {

// `head` is the header's first kHead bytes; `crc` what the writer says of the `data`.
struct WriteWork {
  File file;
  uint64_t offset = 0;
  const uint8_t* head = nullptr;
  const uint8_t* data = nullptr;
  size_t length = 0;
  uint32_t crc = 0;
  int outcome = done_well;
};

constexpr size_t kEnoughToStart = 1 << 20;

class Writing {
 public:
  Writing(Channel& channel, std::span<const Registered> registered, std::span<WriteWork> work)
      : channel_(channel), registered_(registered), work_(work), flights_(channel) {}

  // Returns once nothing is under way any more. What was written is not durable before a sync.
  void run() {
    for (;;) {
      fill();
      flights_.flush();
      unflushed_ = 0;
      if (flights_.none()) return;
      receive(flights_.receive());
    }
  }

 private:
  struct Job {
    WriteWork* work = nullptr;
    uint8_t* page = nullptr;
    size_t piece = 0;
    size_t in_place = 0;  // so many bytes, whole pieces, are written from where they lie
    int slot = -1;
    size_t next = 0;
    bool header_sent = false;
    unsigned open = 1;      // transfers under way, and one while there is more to send
    Job* joined = nullptr;  // the next one in its stroke
  };

  void fill() {
    while (current_ != nullptr || begin_next()) {
      Job& job = *current_;
      while (job.next < job.work->length && job.work->outcome == done_well)
        if (!send_more(job)) return;
      if (job.work->outcome == done_well && !job.header_sent && !send_header(job)) return;
      if (unflushed_ >= kEnoughToStart) start();  // while the next one's checksums are computed
      current_ = nullptr;
      release(job);
    }
  }

  bool begin_next() {
    if (at_ == work_.size() || channel_.arena().pages.empty()) return false;
    WriteWork& work = work_[at_++];
    size_t piece = piece_bytes(work.length);
    current_ = new Job{.work = &work,
                       .page = take(channel_.arena().pages),
                       .piece = piece,
                       .in_place = page_aligned(work.data) ? work.length / piece * piece : 0};
    if (current_->in_place != 0) current_->slot = slot_of(registered_, work.data, current_->in_place);
    std::memset(current_->page, 0, kPage);
    std::memcpy(current_->page, work.head, kHead);
    return true;
  }

  void start() {
    flights_.start();
    unflushed_ = 0;
  }

  bool send_more(Job& job) {
    bool in_place = job.next < job.in_place;
    size_t bytes = std::min(in_place ? kDirect : kBounce, (in_place ? job.in_place : job.work->length) - job.next);
    size_t whole = round_up(bytes, kPage);
    bool paged = bytes == job.work->length && kPage + whole <= kStroke;
    Transfer* stroke = paged ? flights_.extensible(job.work->file, job.work->offset, kPage + whole) : nullptr;
    if (stroke == nullptr && !flights_.room_for_body()) return false;
    const uint8_t* source = job.work->data + job.next;
    uint8_t* memory = in_place ? const_cast<uint8_t*>(source) : take(channel_.arena().bounces);
    if (memory == nullptr) return false;
    if (!in_place) {
      std::memcpy(memory, source, bytes);
      std::memset(memory + bytes, 0, whole - bytes);
    }
    crc32c_pieces(memory, bytes, job.piece, table(job) + job.next / job.piece);
    if (paged && !finish_header(job)) {
      if (!in_place) channel_.arena().bounces.push_back(memory);
      return true;
    }
    if (stroke != nullptr) {
      stroke->add(job.page, kPage).add(memory, whole);
      last_ = last_->joined = &job;
    } else {
      send(job, memory, whole, paged);
    }
    job.header_sent = paged;
    job.next += bytes;
    unflushed_ += bytes;
    ++job.open;
    return true;
  }

  void send(Job& job, uint8_t* memory, size_t bytes, bool paged) {
    Transfer transfer{.action = Action::write,
                      .file = job.work->file,
                      .offset = job.work->offset + kPage + job.next,
                      .owner = &job,
                      .position = job.next,
                      .body = true};
    if (paged) {
      transfer.offset = job.work->offset;
      flights_.hold(transfer.add(job.page, kPage).add(memory, bytes));
      last_ = &job;
    } else {
      transfer.buffer = job.next < job.in_place ? job.slot : channel_.own_slot();
      flights_.send(transfer.add(memory, bytes));
    }
  }

  // False, and the outcome is set: the bytes are not what their writer said.
  bool finish_header(Job& job) {
    if (crc32c_join(table(job), job.work->length, job.piece, shift_of(job.piece)) != job.work->crc) {
      job.work->outcome = wrong_bytes;
      return false;
    }
    seal_page(job.page);
    return true;
  }

  bool send_header(Job& job) {
    if (!flights_.room_for_header()) return false;
    if (!finish_header(job)) return true;
    Transfer transfer{.action = Action::write,
                      .file = job.work->file,
                      .offset = job.work->offset,
                      .buffer = channel_.own_slot(),
                      .owner = &job};
    flights_.send(transfer.add(job.page, kPage));
    ++job.open;
    return true;
  }

  void receive(Transfer* transfer) {
    int part = transfer->count > 1 ? 1 : 0;  // behind its page, if that went along
    for (Job* job = static_cast<Job*>(transfer->owner); job != nullptr; part += 2) {
      Job* next = job->joined;
      if (transfer->error != 0 && job->work->outcome == done_well) job->work->outcome = transfer->error;
      if (transfer->body && transfer->position >= job->in_place)
        channel_.arena().bounces.push_back(static_cast<uint8_t*>(transfer->parts[part].iov_base));
      release(*job);
      job = next;
    }
    flights_.end(transfer);
  }

  void release(Job& job) {
    if (--job.open != 0) return;
    channel_.arena().pages.push_back(job.page);
    delete &job;
  }

  static uint32_t* table(Job& job) { return reinterpret_cast<uint32_t*>(job.page + kHead); }

  Channel& channel_;
  std::span<const Registered> registered_;
  std::span<WriteWork> work_;
  Flights flights_;
  size_t at_ = 0, unflushed_ = 0;
  Job* current_ = nullptr;
  Job* last_ = nullptr;  // of the stroke that is held
};

}  // namespace hostless
