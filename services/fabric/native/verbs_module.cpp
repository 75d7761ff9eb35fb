// services.fabric._verbs: libibverbs for services/fabric/verbs, where it is there when this is built.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "memory.hpp"
#include "verbs_core.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

// libibverbs' errors as OSError.
template <class Do>
auto told(Do act) {
  try {
    return act();
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(errno, error.what()).ptr());
    throw nb::python_error();
  }
}

nb::bytes gid_of(const VerbsDevice& device, int index) {
  ibv_gid gid;
  told([&] { must(ibv_query_gid(device.context, kPort, index, &gid), "GID"); });
  return nb::bytes(reinterpret_cast<const char*>(gid.raw), sizeof gid.raw);
}

void connect(VerbsPair& pair, const VerbsDevice& device, nb::dict how) {
  auto number = [&](const char* name) { return nb::cast<uint32_t>(how[name]); };
  ibv_qp_attr a{};
  a.path_mtu = static_cast<ibv_mtu>(number("mtu"));
  a.dest_qp_num = number("number"), a.rq_psn = number("far_sequence"), a.sq_psn = number("near_sequence");
  a.max_rd_atomic = a.max_dest_rd_atomic = static_cast<uint8_t>(number("reads"));
  a.timeout = static_cast<uint8_t>(number("timeout"));
  a.retry_cnt = a.rnr_retry = static_cast<uint8_t>(number("retries"));
  a.min_rnr_timer = 12;
  a.ah_attr.is_global = 1, a.ah_attr.port_num = kPort;
  a.ah_attr.dlid = static_cast<uint16_t>(number("lid")), a.ah_attr.sl = static_cast<uint8_t>(number("service_level"));
  auto gid = nb::cast<nb::bytes>(how["gid"]);
  if (gid.size() != sizeof(ibv_gid)) throw nb::value_error("a GID has 16 bytes");
  std::memcpy(&a.ah_attr.grh.dgid, gid.c_str(), sizeof(ibv_gid));
  a.ah_attr.grh.sgid_index = static_cast<uint8_t>(number("gid_index")), a.ah_attr.grh.hop_limit = 64;
  a.ah_attr.grh.traffic_class = static_cast<uint8_t>(number("traffic_class"));
  a.ah_attr.grh.flow_label = number("flow_label");
  (void)device;
  told([&] { pair.connect(a); });
}

int run(VerbsPair& pair, std::vector<VerbsOperation>& operations, uint64_t remote, uint64_t length, uint32_t key) {
  for (const VerbsOperation& o : operations) {
    inside(length, o.offset, o.length);
    if (o.kind == VerbsKind::swap || o.kind == VerbsKind::add) aligned_word(o.offset);
  }
  nb::gil_scoped_release others_run;
  return pair.run(operations, remote, length, key);
}

// Reads into, or writes from, one flat buffer that the pieces fill exactly.
int move(VerbsPair& pair, bool write, nb::handle offsets, nb::handle lengths, nb::handle flat, uint64_t remote,
         uint64_t length, uint32_t key) {
  Buffer offset_buffer(offsets, false), length_buffer(lengths, false), memory(flat, !write);
  const size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* bytes = length_buffer.array<uint64_t>(count, "lengths");
  std::vector<VerbsOperation> operations(count);
  uint64_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    operations[i] = {write ? VerbsKind::write : VerbsKind::read, offset[i], memory.at(total, bytes[i]), bytes[i]};
    total += bytes[i];
  }
  if (total != memory.size()) throw nb::value_error("the lengths don't add up to the flat buffer's bytes");
  return run(pair, operations, remote, length, key);
}

int swap(VerbsPair& pair, nb::handle offsets, nb::handle expected, nb::handle desired, nb::handle found,
         uint64_t remote, uint64_t length, uint32_t key) {
  Buffer offset_buffer(offsets, false), expected_buffer(expected, false), desired_buffer(desired, false);
  Buffer found_buffer(found, true);
  const size_t count = offset_buffer.size() / 8;
  const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
  const auto* before = expected_buffer.array<uint64_t>(count, "expected");
  const auto* after = desired_buffer.array<uint64_t>(count, "desired");
  auto* out = reinterpret_cast<uint8_t*>(found_buffer.array<uint64_t>(count, "found"));
  std::vector<VerbsOperation> operations(count);
  for (size_t i = 0; i < count; ++i)
    operations[i] = {VerbsKind::swap, offset[i], out + 8 * i, kWord, before[i], after[i]};
  return run(pair, operations, remote, length, key);
}

// A mixed batch: (kind, offset, buffer, expected, desired) each; an atomic's buffer takes the word found.
int post(VerbsPair& pair, nb::list batch, uint64_t remote, uint64_t length, uint32_t key) {
  std::vector<std::unique_ptr<Buffer>> held;
  std::vector<VerbsOperation> operations;
  for (nb::handle entry : batch) {
    auto one = nb::cast<nb::tuple>(entry);
    const auto kind = static_cast<VerbsKind>(nb::cast<uint8_t>(one[0]));
    held.push_back(std::make_unique<Buffer>(one[2], kind != VerbsKind::write));
    const size_t bytes = held.back()->size();
    operations.push_back(
        {kind, unsigned_of(one[1]), held.back()->at(0, bytes), bytes, unsigned_of(one[3]), unsigned_of(one[4])});
  }
  return run(pair, operations, remote, length, key);
}

}  // namespace

NB_MODULE(_verbs, m) {
  m.attr("LATE") = kLate, m.attr("LOST") = kLost, m.attr("REFUSED") = kRefused;

  nb::class_<VerbsMemory>(m, "Memory")
      .def_ro("local_key", &VerbsMemory::local_key)
      .def_ro("remote_key", &VerbsMemory::remote_key)
      .def("close", &VerbsMemory::close);

  nb::class_<VerbsDevice>(m, "Device")
      .def(
          "__init__", [](VerbsDevice* d, const std::string& name) { told([&] { new (d) VerbsDevice(name); }); },
          "name"_a)
      .def_prop_ro("active", [](const VerbsDevice& d) { return d.port.state == IBV_PORT_ACTIVE; })
      .def_prop_ro("lid", [](const VerbsDevice& d) { return d.port.lid; })
      .def_prop_ro("mtu", [](const VerbsDevice& d) { return 128 << d.port.active_mtu; })
      .def_prop_ro("reads", [](const VerbsDevice& d) { return d.reads; })
      .def("gid", &gid_of, "index"_a)
      .def(
          "register",
          [](std::shared_ptr<VerbsDevice> d, uint64_t address, uint64_t length, int access) {
            auto* memory = reinterpret_cast<void*>(address);
            ibv_mr* mr = told([&] { return made(ibv_reg_mr(d->domain, memory, length, access), "registration"); });
            return std::make_shared<VerbsMemory>(d, mr);
          },
          "address"_a, "length"_a, "access"_a)
      .def(
          "register_dmabuf",
          [](std::shared_ptr<VerbsDevice> d, int file, uint64_t offset, uint64_t length, int access) {
            ibv_mr* mr = told(
                [&] { return made(ibv_reg_dmabuf_mr(d->domain, offset, length, 0, file, access), "registration"); });
            return std::make_shared<VerbsMemory>(d, mr);
          },
          "file"_a, "offset"_a, "length"_a, "access"_a);

  nb::class_<VerbsPair>(m, "Pair")
      .def(
          "__init__",
          [](VerbsPair* p, std::shared_ptr<VerbsDevice> d, int access, size_t staging_bytes) {
            told([&] { new (p) VerbsPair(d, access, staging_bytes); });
          },
          "device"_a, "access"_a, "staging_bytes"_a)
      .def_prop_ro("number", &VerbsPair::number)
      .def("connect", &connect, "device"_a, "how"_a)
      .def("move", &move, "write"_a, "offsets"_a, "lengths"_a, "flat"_a, "remote"_a, "length"_a, "key"_a)
      .def("swap", &swap, "offsets"_a, "expected"_a, "desired"_a, "found"_a, "remote"_a, "length"_a, "key"_a)
      .def("post", &post, "batch"_a, "remote"_a, "length"_a, "key"_a)
      .def("lose", &VerbsPair::lose)
      .def("close", &VerbsPair::close);
}
