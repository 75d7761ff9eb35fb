// One list of transfers between memory and files, under way at once; they end in any order. Two kinds of device:
// io_uring (uring.hpp), and threads (threads.hpp) where the kernel or a container forbids that.
#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hostless {

enum class Action : uint8_t { read, write, sync };

// An open file; `slot` is its place in the device's table of registered files, or -1.
struct File {
  int fd = -1;
  int slot = -1;
};

// Stretches of memory to or from one stretch of a file, in one stroke of the device.
struct Transfer {
  static constexpr int kParts = 16;
  Action action = Action::read;
  File file;
  uint64_t offset = 0;
  int buffer = -1;           // place of the registered memory around its only part, or -1
  void* owner = nullptr;     // whose it is
  uint64_t position = 0;     // what it is to the owner: its place in a payload
  bool body = false;         // of a payload; else a header
  bool ended_early = false;  // a read met the end of the file
  int error = 0;             // errno once it has ended
  size_t bytes = 0, done = 0;
  int count = 0;
  iovec parts[kParts] = {};
  iovec rest[kParts] = {};  // for the device: what `left` said, while the kernel needs it

  Transfer& add(uint8_t* memory, size_t size) {
    parts[count++] = {memory, size};
    bytes += size;
    return *this;
  }

  // Lays out in `rest` what is left to transfer, and says in how many stretches.
  int left() {
    int stretches = 0;
    size_t skip = done;
    for (int part = 0; part < count; ++part) {
      size_t size = parts[part].iov_len, over = skip < size ? skip : size;
      skip -= over;
      if (over < size) rest[stretches++] = {static_cast<uint8_t*>(parts[part].iov_base) + over, size - over};
    }
    return stretches;
  }

  // Takes the kernel's answer to what was left; true when nothing is to be tried again.
  bool settle(int64_t answer) {
    if (answer == -EINTR || answer == -EAGAIN) return false;
    if (answer < 0) return error = static_cast<int>(-answer), true;
    if (action == Action::sync) return true;
    done += static_cast<size_t>(answer);
    if (done >= bytes) return true;
    if (answer != 0) return false;
    if (action == Action::read)
      ended_early = true;
    else
      error = EIO;  // a write that writes nothing
    return true;
  }
};

class Device {
 public:
  virtual ~Device() = default;
  // Takes a transfer, which stays where it is until `wait` returns it. At most `room` may be under way.
  virtual void submit(Transfer& transfer) = 0;
  // Sees to it that all submitted transfers are on their way.
  virtual void flush() = 0;
  // One that has ended, in whole or by an error. To be called only while some are under way.
  virtual Transfer* wait() = 0;

  // Registered memory and files: less work a transfer. False, or -1: not possible, go on without.
  virtual bool add_buffer(int, void*, size_t) { return false; }
  virtual void drop_buffer(int) {}
  virtual bool add_file(int, int) { return false; }
  virtual void drop_file(int) {}
};

}  // namespace hostless
