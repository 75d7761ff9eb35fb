// A Device over io_uring, by the kernel's own interface: three calls and two rings are all that is needed of it.
#pragma once

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "device.hpp"

namespace hostless {

constexpr int kBufferSlots = 256;
constexpr int kFileSlots = 4096;

class Uring final : public Device {
 public:
  // Room for `room` transfers under way. Throws std::system_error where io_uring is not to be had.
  explicit Uring(unsigned room) {
    io_uring_params params{};
    params.flags = IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN;
    fd_ = setup(room, params);
    if (fd_ < 0 && errno == EINVAL) {  // older than 5.19
      params = {};
      params.flags = IORING_SETUP_CLAMP;
      fd_ = setup(room, params);
    }
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "io_uring_setup");
    try {
      map(params);
    } catch (...) {
      unmap();
      throw;
    }
    io_uring_rsrc_register table{};
    table.nr = kBufferSlots, table.flags = IORING_RSRC_REGISTER_SPARSE;
    buffers_ = enroll(IORING_REGISTER_BUFFERS2, &table, sizeof table);
    table.nr = kFileSlots;
    files_ = enroll(IORING_REGISTER_FILES2, &table, sizeof table);
  }
  ~Uring() override { unmap(); }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  void submit(Transfer& transfer) override {
    uint32_t tail = *sq_tail_;
    if (tail - std::atomic_ref(*sq_head_).load(std::memory_order_acquire) == sq_entries_) flush();
    io_uring_sqe& entry = sqes_[tail & sq_mask_];
    fill(entry, transfer);
    sq_array_[tail & sq_mask_] = tail & sq_mask_;
    std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
    ++unsubmitted_;
  }

  void flush() override {
    while (unsubmitted_ != 0) enter(0);
  }

  Transfer* wait() override {
    for (;;) {
      while (Transfer* transfer = take()) return transfer;
      enter(1);
    }
  }

  bool add_buffer(int slot, void* memory, size_t bytes) override {
    iovec part{memory, bytes};
    return buffers_ && slot < kBufferSlots && update(IORING_REGISTER_BUFFERS_UPDATE, slot, &part);
  }
  void drop_buffer(int slot) override {
    iovec nothing{};
    if (buffers_) update(IORING_REGISTER_BUFFERS_UPDATE, slot, &nothing);
  }
  bool add_file(int slot, int fd) override {
    return files_ && slot < kFileSlots && update(IORING_REGISTER_FILES_UPDATE2, slot, &fd);
  }
  void drop_file(int slot) override {
    int nothing = -1;
    if (files_) update(IORING_REGISTER_FILES_UPDATE2, slot, &nothing);
  }

 private:
  static int setup(unsigned room, io_uring_params& params) {
    return static_cast<int>(syscall(__NR_io_uring_setup, room, &params));
  }

  bool enroll(unsigned what, void* argument, unsigned count) {
    return syscall(__NR_io_uring_register, fd_, what, argument, count) >= 0;
  }

  bool update(unsigned what, int slot, const void* data) {
    io_uring_rsrc_update2 change{};
    change.offset = static_cast<uint32_t>(slot), change.data = reinterpret_cast<uint64_t>(data), change.nr = 1;
    return enroll(what, &change, sizeof change);
  }

  void map(const io_uring_params& p) {
    sq_bytes_ = p.sq_off.array + p.sq_entries * sizeof(uint32_t);
    cq_bytes_ = p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe);
    sqe_bytes_ = p.sq_entries * sizeof(io_uring_sqe);
    sq_ = map_part(sq_bytes_, IORING_OFF_SQ_RING);
    cq_ = map_part(cq_bytes_, IORING_OFF_CQ_RING);
    sqes_ = reinterpret_cast<io_uring_sqe*>(map_part(sqe_bytes_, IORING_OFF_SQES));
    sq_head_ = word(sq_, p.sq_off.head), sq_tail_ = word(sq_, p.sq_off.tail), sq_array_ = word(sq_, p.sq_off.array);
    sq_mask_ = *word(sq_, p.sq_off.ring_mask), sq_entries_ = p.sq_entries;
    cq_head_ = word(cq_, p.cq_off.head), cq_tail_ = word(cq_, p.cq_off.tail), cq_mask_ = *word(cq_, p.cq_off.ring_mask);
    cqes_ = reinterpret_cast<io_uring_cqe*>(cq_ + p.cq_off.cqes);
  }

  uint8_t* map_part(size_t bytes, off_t offset) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
    if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of io_uring");
    return static_cast<uint8_t*>(at);
  }

  void unmap() {
    if (sqes_) munmap(sqes_, sqe_bytes_);
    if (cq_) munmap(cq_, cq_bytes_);
    if (sq_) munmap(sq_, sq_bytes_);
    close(fd_);
  }

  static uint32_t* word(uint8_t* base, uint32_t offset) { return reinterpret_cast<uint32_t*>(base + offset); }

  static void fill(io_uring_sqe& entry, Transfer& t) {
    std::memset(&entry, 0, sizeof entry);
    entry.fd = t.file.slot >= 0 ? t.file.slot : t.file.fd;
    if (t.file.slot >= 0) entry.flags = IOSQE_FIXED_FILE;
    entry.user_data = reinterpret_cast<uint64_t>(&t);
    if (t.action == Action::sync) {
      entry.opcode = IORING_OP_FSYNC;
      entry.fsync_flags = IORING_FSYNC_DATASYNC;
      return;
    }
    bool fixed = t.buffer >= 0, read = t.action == Action::read;
    entry.off = t.offset + t.done;
    int count = t.left();
    if (count > 1) {
      entry.opcode = read ? IORING_OP_READV : IORING_OP_WRITEV;
      entry.addr = reinterpret_cast<uint64_t>(t.rest);
      entry.len = static_cast<uint32_t>(count);
      return;
    }
    entry.opcode =
        read ? (fixed ? IORING_OP_READ_FIXED : IORING_OP_READ) : (fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE);
    if (fixed) entry.buf_index = static_cast<uint16_t>(t.buffer);
    entry.addr = reinterpret_cast<uint64_t>(t.rest[0].iov_base);
    entry.len = static_cast<uint32_t>(t.rest[0].iov_len);
  }

  void enter(unsigned wait_for) {
    long taken =
        syscall(__NR_io_uring_enter, fd_, unsubmitted_, wait_for, wait_for ? IORING_ENTER_GETEVENTS : 0u, nullptr, 0);
    if (taken >= 0)
      unsubmitted_ -= static_cast<unsigned>(taken);
    else if (errno != EINTR && errno != EAGAIN && errno != EBUSY)
      give_up();
  }

  // The kernel writes to memory that we can no longer account for: nothing that follows could be trusted.
  [[noreturn]] static void give_up() {
    std::perror("io_uring_enter");
    std::abort();
  }

  // The next that has ended; one that must go on is submitted again.
  Transfer* take() {
    for (;;) {
      uint32_t head = *cq_head_;
      if (head == std::atomic_ref(*cq_tail_).load(std::memory_order_acquire)) return nullptr;
      const io_uring_cqe& entry = cqes_[head & cq_mask_];
      auto* transfer = reinterpret_cast<Transfer*>(entry.user_data);
      int32_t answer = entry.res;
      std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
      if (transfer->settle(answer)) return transfer;
      submit(*transfer);
    }
  }

  int fd_ = -1;
  bool buffers_ = false, files_ = false;
  unsigned unsubmitted_ = 0;
  size_t sq_bytes_ = 0, cq_bytes_ = 0, sqe_bytes_ = 0;
  uint8_t *sq_ = nullptr, *cq_ = nullptr;
  io_uring_sqe* sqes_ = nullptr;
  io_uring_cqe* cqes_ = nullptr;
  uint32_t *sq_head_ = nullptr, *sq_tail_ = nullptr, *sq_array_ = nullptr, *cq_head_ = nullptr, *cq_tail_ = nullptr;
  uint32_t sq_mask_ = 0, sq_entries_ = 0, cq_mask_ = 0;
};

}  // namespace hostless
