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

struct Transfer {
  static constexpr size_t kLead = 4096;
  Action action = Action::read;
  File file;
  uint64_t offset = 0;
  uint8_t* lead = nullptr;  // a page that goes before `memory`, in the same stroke; then no buffer is registered
  uint8_t* memory = nullptr;
  size_t bytes = 0;  // of both
  int buffer = -1;  // place of the registered memory around it, or -1
  size_t done = 0;
  int error = 0;           // errno once it has ended
  void* owner = nullptr;   // whose it is
  uint64_t position = 0;     // what it is to the owner: its place in a payload
  bool body = false;         // of a payload; else a header
  bool ended_early = false;  // a read met the end of the file
  iovec parts[2] = {};       // for the device: what `left` said, while the kernel needs it

  // What is left to transfer, as one or two stretches of memory.
  int left(iovec* parts) const {
    size_t leading = lead ? kLead : 0;
    if (done >= leading) return parts[0] = {memory + (done - leading), bytes - done}, 1;
    parts[0] = {lead + done, leading - done};
    parts[1] = {memory, bytes - leading};
    return 2;
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
