// _tcp: transport tcp's two ends and the arbiter of their link, for Python. Nothing here runs Python while it waits.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <memory>

#include "memory.hpp"
#include "tcp_agent.hpp"
#include "tcp_channel.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;

namespace {

class Agent {
 public:
  Agent(const std::string& host, const std::string& port) : agent_(host, port) {}
  void publish(uint64_t generation, uint64_t rkey, uint32_t rights, nb::handle memory) {
    Buffer buffer(memory, true);  // the caller keeps it until end()
    agent_.publish(generation, {buffer.at(0, buffer.size()), buffer.size(), rkey, rights});
  }
  void end(uint64_t generation) {
    nb::gil_scoped_release let_others_run;
    agent_.end(generation);
  }
  void close() {
    nb::gil_scoped_release let_others_run;
    agent_.close();
  }
  uint16_t port() const { return agent_.port(); }
  size_t connections() const { return agent_.connections(); }

 private:
  tcp::Agent agent_;
};

// A batch of operations on Python's memory, held until they have run.
class Work {
 public:
  explicit Work(uint64_t length) : length_(length) {}

  void add(tcp::Kind kind, uint64_t offset, nb::handle memory) {
    const Buffer& buffer = buffers_.emplace_back(memory, kind == tcp::Kind::read);
    inside(length_, offset, buffer.size());
    operations.push_back({kind, offset, buffer.at(0, buffer.size()), buffer.size()});
  }

  void pieces(tcp::Kind kind, nb::handle offsets, nb::handle lengths, nb::handle flat) {
    Buffer offset_buffer(offsets, false), length_buffer(lengths, false);
    const Buffer& buffer = buffers_.emplace_back(flat, kind == tcp::Kind::read);
    const size_t count = offset_buffer.size() / 8;
    const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
    const auto* length = length_buffer.array<uint64_t>(count, "lengths");
    uint64_t total = 0;
    for (size_t i = 0; i < count; total += length[i], ++i) {
      inside(length_, offset[i], length[i]);
      operations.push_back({kind, offset[i], buffer.at(total, length[i]), length[i]});
    }
    if (total != buffer.size()) throw nb::value_error("the lengths don't add up to the flat buffer's bytes");
  }

  void atomic(tcp::Kind kind, uint64_t offset, uint64_t first, uint64_t second, uint64_t* found) {
    inside(length_, offset, tcp::kWord);
    aligned_word(offset);
    operations.push_back({kind, offset, reinterpret_cast<uint8_t*>(found), tcp::kWord, first, second});
  }

  std::vector<tcp::Operation> operations;

 private:
  uint64_t length_;
  std::deque<Buffer> buffers_;
};

class Channel {
 public:
  Channel(const std::string& host, const std::string& port, uint64_t generation, uint64_t rkey, uint64_t length,
          uint32_t rights, uint32_t traffic_class, bool bulk, Link& link, double silence_s)
      : length_(length) {
    const Traffic traffic = bulk ? Traffic::kv : Traffic::model;
    tcp::Target target{host, port, generation, rkey, rights, traffic_class, traffic, silence_s};
    nb::gil_scoped_release let_others_run;
    channel_ = std::make_unique<tcp::Channel>(std::move(target), link);
  }

  // (kind, offset, memory or the atomic's first word, its second or 0) each; answers the words that atomics found.
  nb::list post(nb::list operations) {
    Work work(length_);
    const size_t count = nb::len(operations);
    std::vector<uint64_t> found(count);
    std::vector<tcp::Kind> kinds(count);
    for (size_t i = 0; i < count; ++i) {
      const auto operation = nb::cast<nb::tuple>(operations[i]);
      const uint64_t offset = unsigned_of(operation[1]);
      kinds[i] = static_cast<tcp::Kind>(nb::cast<uint32_t>(operation[0]));
      if (tcp::atomic(kinds[i]))
        work.atomic(kinds[i], offset, unsigned_of(operation[2]), unsigned_of(operation[3]), &found[i]);
      else
        work.add(kinds[i], offset, operation[2]);
    }
    run(work);
    nb::list answers;
    for (size_t i = 0; i < count; ++i) {
      if (tcp::atomic(kinds[i]))
        answers.append(found[i]);
      else
        answers.append(nb::none());
    }
    return answers;
  }

  void gather(nb::handle offsets, nb::handle lengths, nb::handle out) {
    Work work(length_);
    work.pieces(tcp::Kind::read, offsets, lengths, out);
    run(work);
  }

  void scatter(nb::handle offsets, nb::handle lengths, nb::handle data) {
    Work work(length_);
    work.pieces(tcp::Kind::write, offsets, lengths, data);
    run(work);
  }

  void swap_many(nb::handle offsets, nb::handle expected, nb::handle desired, nb::handle found) {
    Work work(length_);
    Buffer offset_buffer(offsets, false), expected_buffer(expected, false), desired_buffer(desired, false);
    Buffer found_buffer(found, true);
    const size_t count = offset_buffer.size() / 8;
    const auto* offset = offset_buffer.array<uint64_t>(count, "offsets");
    const auto* old = expected_buffer.array<uint64_t>(count, "expected");
    const auto* next = desired_buffer.array<uint64_t>(count, "desired");
    auto* out = found_buffer.array<uint64_t>(count, "found");
    for (size_t i = 0; i < count; ++i) work.atomic(tcp::Kind::swap, offset[i], old[i], next[i], &out[i]);
    run(work);
  }

  void interrupt() { channel_->interrupt(); }
  void close() { channel_->close(); }
  bool closed() const { return channel_->closed(); }

 private:
  void run(const Work& work) {
    nb::gil_scoped_release let_others_run;
    channel_->run(work.operations);
  }

  uint64_t length_;
  std::unique_ptr<tcp::Channel> channel_;
};

void add_arbiter(nb::module_& m) {
  nb::enum_<Traffic>(m, "Traffic", nb::is_arithmetic()).value("MODEL", Traffic::model).value("KV", Traffic::kv);
  nb::class_<ArbiterSettings>(m, "ArbiterSettings")
      .def(
          "__init__",
          [](ArbiterSettings* self, uint64_t model_weight, uint64_t kv_weight, double wait_s, uint64_t least_chunk,
             uint64_t most_window) {
            if (model_weight == 0 || kv_weight == 0) throw nb::value_error("model_weight and kv_weight are 1 or more");
            if (!(wait_s > 0)) throw nb::value_error("wait_s is above 0");
            if (least_chunk < 1024 || least_chunk > kMostChunk || most_window < 2 * least_chunk)
              throw nb::value_error("least_chunk is 1024 to 1048576, most_window twice that or more");
            new (self) ArbiterSettings{model_weight, kv_weight, wait_s, least_chunk, most_window};
          },
          "model_weight"_a = 99, "kv_weight"_a = 1, "wait_s"_a = 0.0003, "least_chunk"_a = 2048,
          "most_window"_a = 8 << 20)
      .def_ro("model_weight", &ArbiterSettings::model_weight)
      .def_ro("kv_weight", &ArbiterSettings::kv_weight)
      .def_ro("wait_s", &ArbiterSettings::wait_s)
      .def_ro("least_chunk", &ArbiterSettings::least_chunk)
      .def_ro("most_window", &ArbiterSettings::most_window);
  nb::class_<Arbiter>(m, "Arbiter")
      .def(nb::init<const ArbiterSettings&>(), "settings"_a)
      .def_prop_ro("window", &Arbiter::window)
      .def_prop_ro("chunk", &Arbiter::chunk)
      .def("under_way", &Arbiter::under_way, "traffic"_a)
      .def("waiting", &Arbiter::waiting, "traffic"_a)
      .def("ask", &Arbiter::ask, "traffic"_a, "bytes"_a)
      .def(
          "withdraw",
          [](Arbiter& self, Traffic traffic, size_t place) {
            if (place >= self.waiting(traffic)) throw nb::index_error("nobody waits at that place");
            self.withdraw(traffic, place);
          },
          "traffic"_a, "place"_a)
      .def("grant", &Arbiter::grant)
      .def(
          "done",
          [](Arbiter& self, Traffic traffic, uint64_t bytes) {
            if (bytes > self.under_way(traffic)) throw nb::value_error("so much is not under way");
            self.done(traffic, bytes);
          },
          "traffic"_a, "bytes"_a)
      .def("measured", &Arbiter::measured, "delay_s"_a, "bytes"_a);
  nb::class_<Link>(m, "Link")
      .def(nb::init<const ArbiterSettings&>(), "settings"_a)
      .def_prop_ro("window", &Link::window)
      .def_prop_ro("chunk", &Link::chunk)
      .def_prop_ro("quiet", &Link::quiet)
      .def("take", &Link::take, "traffic"_a, "bytes"_a, "timeout_s"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("done", &Link::done, "traffic"_a, "bytes"_a, "delay_s"_a);
}

}  // namespace

NB_MODULE(_tcp, m) {
  nb::set_leak_warnings(false);  // the process's link lives until its end
  nb::exception<tcp::Lost>(m, "Lost", PyExc_ConnectionError);
  static nb::object refused = nb::exception<tcp::Refused>(m, "Refused", PyExc_PermissionError);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const tcp::Refused& why) {
      PyErr_SetObject(refused.ptr(), nb::make_tuple(static_cast<uint32_t>(why.status)).ptr());
    } catch (const std::system_error& why) {
      const nb::object arguments = nb::make_tuple(why.code().value(), why.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
  m.attr("READ") = static_cast<uint32_t>(tcp::Kind::read);
  m.attr("WRITE") = static_cast<uint32_t>(tcp::Kind::write);
  m.attr("SWAP") = static_cast<uint32_t>(tcp::Kind::swap);
  m.attr("ADD") = static_cast<uint32_t>(tcp::Kind::add);
  m.attr("STALE") = static_cast<uint32_t>(tcp::Status::stale);
  m.attr("WRONG_KEY") = static_cast<uint32_t>(tcp::Status::wrong_key);
  m.attr("NO_RIGHT") = static_cast<uint32_t>(tcp::Status::no_right);
  add_arbiter(m);
  nb::class_<Agent>(m, "Agent")
      .def(nb::init<const std::string&, const std::string&>(), "host"_a, "port"_a)
      .def_prop_ro("port", &Agent::port)
      .def_prop_ro("connections", &Agent::connections)
      .def("publish", &Agent::publish, "generation"_a, "rkey"_a, "rights"_a, "memory"_a)
      .def("end", &Agent::end, "generation"_a)
      .def("close", &Agent::close);
  nb::class_<Channel>(m, "Channel")
      .def(nb::init<const std::string&, const std::string&, uint64_t, uint64_t, uint64_t, uint32_t, uint32_t, bool,
                    Link&, double>(),
           "host"_a, "port"_a, "generation"_a, "rkey"_a, "length"_a, "rights"_a, "traffic_class"_a, "bulk"_a, "link"_a,
           "silence_s"_a, nb::keep_alive<1, 10>())
      .def("post", &Channel::post, "operations"_a)
      .def("gather", &Channel::gather, "offsets"_a, "lengths"_a, "out"_a)
      .def("scatter", &Channel::scatter, "offsets"_a, "lengths"_a, "data"_a)
      .def("swap_many", &Channel::swap_many, "offsets"_a, "expected"_a, "desired"_a, "found"_a)
      .def("interrupt", &Channel::interrupt)
      .def("close", &Channel::close)
      .def_prop_ro("closed", &Channel::closed);
}
