// _bpe: the exact BPE encoder for Python. What it does not do exactly it refuses when it is made.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <optional>
#include <thread>

#include "bpe.hpp"
#include "python_text.hpp"
#include "result_array.hpp"
#include "vocabulary.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace hostless;
using namespace hostless::bpe;

namespace {

constexpr std::size_t kKeptBytes = 16 << 20;  // of a thread's arena between calls; ten times a prompt of 32,000 tokens
constexpr std::size_t kBrief = 2048;  // bytes of text: encoded sooner than another thread would give the lock back

const std::uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const std::uint8_t*>(text.data()); }

Arena& own_arena() {
  thread_local Arena arena;
  return arena;
}

class Encoder {
 public:
  Encoder(nb::dict vocabulary, nb::list merges, std::optional<nb::list> ranks, nb::list raw, nb::list rewritten,
          bool composed, std::optional<scan::Pattern> pattern, bool ignore_merges, bool prepend_space) {
    bool marked = !pattern;
    std::vector<TokenText> tokens = tokens_of(vocabulary);
    std::vector<AddedToken> found = added_of(raw), found_later = added_of(rewritten);
    std::vector<std::uint32_t> special;
    for (const auto* added : {&found, &found_later}) {
      for (const AddedToken& token : *added) {
        if (token.special) special.push_back(token.id);
      }
    }
    Tables tables =
        VocabularyReader(tokens, marked).tables(merges_of(merges, std::move(ranks)), ignore_merges, special);
    Rewriting how{composed, prepend_space, marked};
    bpe_.emplace(std::move(tables), AddedTokens(std::move(found)), AddedTokens(std::move(found_later)), how,
                 pattern ? scan::cutter(*pattern) : nullptr);
  }

  nb::object encode(nb::handle text, bool trusting) const {
    Arena& arena = own_arena();
    std::size_t count = run(encodable(text, arena.utf8), trusting, arena);
    nb::object ids = array_of(arena.ids.data(), count);
    arena.trim(kKeptBytes);
    return ids;
  }

  std::size_t encode_into(nb::handle text, nb::handle buffer, bool trusting) const {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_CONTIG) != 0) throw nb::python_error();
    std::size_t room = static_cast<std::size_t>(view.len) / sizeof(std::uint32_t), count = room + 1;
    try {
      Arena& arena = own_arena();
      count = run(encodable(text, arena.utf8), trusting, arena);
      if (count <= room) std::memcpy(view.buf, arena.ids.data(), count * sizeof(std::uint32_t));
      arena.trim(kKeptBytes);
    } catch (...) {
      PyBuffer_Release(&view);
      throw;
    }
    PyBuffer_Release(&view);
    if (count > room) throw nb::value_error("the buffer is smaller than the text's ids");
    return count;
  }

  nb::list encode_batch(nb::list texts, bool trusting, std::size_t threads) const {
    std::vector<std::string_view> views;
    for (nb::handle text : texts) views.push_back(brief_enough(utf8(text)));
    std::vector<std::vector<std::uint32_t>> ids(views.size());
    std::vector<std::exception_ptr> failures(std::max<std::size_t>(threads, 1));
    {
      nb::gil_scoped_release unlocked;
      std::atomic<std::size_t> next{0};
      auto work = [&](std::size_t worker) {
        try {
          Arena& arena = own_arena();
          for (std::size_t i; (i = next++) < views.size();) {
            std::size_t count = bpe_->encode(bytes_of(views[i]), views[i].size(), trusting, arena);
            ids[i].assign(arena.ids.data(), arena.ids.data() + count);
            arena.trim(kKeptBytes);
          }
        } catch (...) {
          failures[worker] = std::current_exception();
        }
      };
      std::vector<std::jthread> others;
      for (std::size_t i = 1; i < failures.size() && i < views.size(); ++i) others.emplace_back(work, i);
      work(0);
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    nb::list made;
    for (const auto& each : ids) made.append(array_of(each.data(), each.size()));
    return made;
  }

  nb::list texts() const {
    nb::list made;
    for (const std::string& text : bpe_->texts()) made.append(nb::bytes(text.data(), text.size()));
    return made;
  }

  std::size_t table_bytes() const { return bpe_->table_bytes(); }

 private:
  std::size_t run(std::string_view text, bool trusting, Arena& arena) const {
    if (text.size() < kBrief) return bpe_->encode(bytes_of(text), text.size(), trusting, arena);
    nb::gil_scoped_release unlocked;
    return bpe_->encode(bytes_of(text), text.size(), trusting, arena);
  }

  std::optional<Bpe> bpe_;
};

}  // namespace

NB_MODULE(_bpe, module) {
  import_numpy();
  nb::exception<Unsupported>(module, "UnsupportedVocabulary", PyExc_ValueError);
  nb::enum_<scan::Pattern>(module, "Pattern")
      .value("GPT2", scan::Pattern::gpt2)
      .value("SMOLLM", scan::Pattern::smollm)
      .value("CL100K", scan::Pattern::cl100k)
      .value("QWEN2", scan::Pattern::qwen2)
      .value("O200K", scan::Pattern::o200k)
      .value("DEEPSEEK3", scan::Pattern::deepseek3);
  nb::class_<Encoder>(module, "Encoder")
      .def(nb::init<nb::dict, nb::list, std::optional<nb::list>, nb::list, nb::list, bool, std::optional<scan::Pattern>,
                    bool, bool>(),
           nb::kw_only(), "vocabulary"_a, "merges"_a, "ranks"_a.none(), "raw"_a, "rewritten"_a, "composed"_a,
           "pattern"_a.none(), "ignore_merges"_a, "prepend_space"_a)
      .def("encode", &Encoder::encode, "text"_a, "trusting"_a)
      .def("encode_into", &Encoder::encode_into, "text"_a, "buffer"_a, "trusting"_a)
      .def("encode_batch", &Encoder::encode_batch, "texts"_a, "trusting"_a, "threads"_a)
      .def("texts", &Encoder::texts)
      .def_prop_ro("table_bytes", &Encoder::table_bytes);
}
