// _segments: batches of blocks between memory and segment files, with their checksums. Which file and where, Python
// says.
#include <fcntl.h>

#include "channels.hpp"
#include "lost_pages.hpp"
#include "place_table.hpp"

using namespace hostless;
using namespace nb::literals;

namespace {

PlaceTable::Key key_of(nb::bytes bytes) {
  PlaceTable::Key key;
  std::memcpy(key.data(), exactly(bytes, key.size(), "a key"), key.size());
  return key;
}

uint32_t checksum(nb::handle data, bool instruction) {
  Buffer buffer(data, false);
  const uint8_t* begin = buffer.at(0, buffer.size());
  size_t bytes = buffer.size(), third = bytes / 24 * 8;
  nb::gil_scoped_release let_others_run;
  if (bytes < kPage) return crc32c(begin, bytes, instruction);
  uint32_t crcs[4];  // the last for what three equal parts leave
  crc32c_pieces(begin, bytes, third, crcs, instruction);
  uint32_t factor = crc_shift_by(third), whole = 0;
  for (int part = 0; part < 3; ++part) whole = crc_multiply(factor, whole) ^ crcs[part];
  size_t rest = bytes - 3 * third;
  return rest == 0 ? whole : crc_multiply(crc_shift_by(rest), whole) ^ crcs[3];
}

void change_room(int fd, int mode, uint64_t offset, uint64_t bytes) {
  int error;
  {
    nb::gil_scoped_release let_others_run;
    do {
      error = fallocate(fd, mode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
  }
  if (error == 0) return;
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

}  // namespace

NB_MODULE(_segments, m) {
  m.attr("PAGE") = kPage, m.attr("IDENTITY_BYTES") = kIdentity, m.attr("HEAD_BYTES") = kHead;
  m.attr("LARGEST_BLOCK") = kLargestBlock;
  m.attr("DONE") = static_cast<int>(done_well), m.attr("NOT_THERE") = static_cast<int>(not_there);
  m.attr("WRONG_BYTES") = static_cast<int>(wrong_bytes);
  m.attr("CRC_INSTRUCTION") = kCrcInstruction;
  m.def("piece_bytes", [](size_t length) { return piece_bytes(block_length(length)); }, "length"_a);
  m.def("crc32c", &checksum, "data"_a, "instruction"_a = kCrcInstruction);
  m.def(
      "allocate", [](int fd, uint64_t offset, uint64_t bytes) { change_room(fd, 0, offset, bytes); }, "fd"_a,
      "offset"_a, "bytes"_a);
  m.def(
      "punch",
      [](int fd, uint64_t offset, uint64_t bytes) {
        change_room(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
      },
      "fd"_a, "offset"_a, "bytes"_a);
  m.def(
      "guard",
      [](nb::handle memory) {
        Buffer buffer(memory, false);
        return LostPages::guard(buffer.at(0, 0) - kPage, kPage + buffer.size());
      },
      "memory"_a);
  m.def("unguard", [](nb::handle memory) { LostPages::unguard(Buffer(memory, false).at(0, 0) - kPage); }, "memory"_a);
  nb::class_<PlaceTable>(m, "PlaceTable")
      .def(nb::init<>())
      .def("__len__", &PlaceTable::size)
      .def_prop_ro("memory", &PlaceTable::memory)
      .def(
          "get", [](const PlaceTable& table, nb::bytes key) { return table.get(key_of(key)); }, "key"_a)
      .def(
          "set",
          [](PlaceTable& table, nb::bytes key, uint64_t place) {
            if (place == 0) throw nb::value_error("0 is no place");
            return table.set(key_of(key), place);
          },
          "key"_a, "place"_a)
      .def("pop", [](PlaceTable& table, nb::bytes key) { return table.pop(key_of(key)); }, "key"_a);
  nb::class_<Channels>(m, "Channels")
      .def(nb::init<unsigned, unsigned, const std::string&>(), "count"_a, "depth"_a, "kind"_a = "auto")
      .def_prop_ro("kind", &Channels::kind)
      .def_prop_ro("why", &Channels::why)
      .def("add_file", &Channels::add_file, "fd"_a)
      .def("drop_file", &Channels::drop_file, "slot"_a)
      .def("add_memory", &Channels::add_memory, "memory"_a)
      .def("drop_memory", &Channels::drop_memory, "memory"_a)
      .def("read", &Channels::read, "requests"_a)
      .def("write", &Channels::write, "requests"_a)
      .def("sync", &Channels::sync, "files"_a);
}
