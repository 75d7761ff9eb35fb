// Blocks to their places in files: the bytes as they are checksummed, the header last, once their checksum is as said.
// A small block goes in one stroke with its header, which saves the file system half its work.
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
constexpr size_t kOneStroke = 1 << 20;

class Writing {
 public:
  Writing(Channel& channel, std::span<const Registered> registered, std::span<WriteWork> work)
      : channel_(channel), registered_(registered), work_(work), flights_(channel) {}

  // Returns once nothing is under way any more. What was written is not durable before a sync.
  void run() {
    for (;;) {
      fill();
      flush();
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
    unsigned open = 1;  // transfers under way, and one while there is more to send
  };

  void flush() {
    channel_.device().flush();
    unflushed_ = 0;
  }

  void fill() {
    while (current_ != nullptr || begin_next()) {
      Job& job = *current_;
      while (job.next < job.work->length && job.work->outcome == done_well)
        if (!send_more(job)) return;
      if (job.work->outcome == done_well && !job.header_sent && !send_header(job)) return;
      if (unflushed_ >= kEnoughToStart) flush();  // while the next one's checksums are computed
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

  bool send_more(Job& job) {
    if (!flights_.room_for_body()) return false;
    bool in_place = job.next < job.in_place;
    size_t bytes = std::min(in_place ? kDirect : kBounce, (in_place ? job.in_place : job.work->length) - job.next);
    const uint8_t* source = job.work->data + job.next;
    uint8_t* memory = in_place ? const_cast<uint8_t*>(source) : take(channel_.arena().bounces);
    if (memory == nullptr) return false;
    size_t whole = round_up(bytes, kPage);
    if (!in_place) {
      std::memcpy(memory, source, bytes);
      std::memset(memory + bytes, 0, whole - bytes);
    }
    crc32c_pieces(memory, bytes, job.piece, table(job) + job.next / job.piece);
    Transfer transfer{.action = Action::write,
                      .file = job.work->file,
                      .offset = job.work->offset + kPage + job.next,
                      .memory = memory,
                      .bytes = whole,
                      .buffer = in_place ? job.slot : channel_.own_slot(),
                      .owner = &job,
                      .position = job.next,
                      .body = true};
    if (bytes == job.work->length && bytes <= kOneStroke) {
      if (!finish_header(job)) {
        if (!in_place) channel_.arena().bounces.push_back(memory);
        return true;
      }
      transfer.offset = job.work->offset, transfer.lead = job.page, transfer.bytes += kPage, transfer.buffer = -1;
      job.header_sent = true;
    }
    flights_.send(transfer);
    job.next += bytes;
    unflushed_ += bytes;
    ++job.open;
    return true;
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
    flights_.send({.action = Action::write,
                   .file = job.work->file,
                   .offset = job.work->offset,
                   .memory = job.page,
                   .bytes = kPage,
                   .buffer = channel_.own_slot(),
                   .owner = &job});
    ++job.open;
    return true;
  }

  void receive(Transfer* transfer) {
    Job& job = *static_cast<Job*>(transfer->owner);
    if (transfer->error != 0 && job.work->outcome == done_well) job.work->outcome = transfer->error;
    if (transfer->body && transfer->position >= job.in_place) channel_.arena().bounces.push_back(transfer->memory);
    flights_.end(transfer);
    release(job);
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
};

}  // namespace hostless
