// Python's strings and lists as the encoder takes them.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.hpp"
#include "aligned.hpp"
#include "vocabulary.hpp"

namespace hostless::bpe {

namespace nb = nanobind;

// UTF-8 of a str, as long as that lives. Raises UnicodeEncodeError for half a surrogate pair.
inline std::string_view utf8(nb::handle text) {
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error("expected a str");
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (!data) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

inline std::string_view brief_enough(std::string_view text) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw nb::value_error("a text of 2 GiB or more can't be encoded");
  }
  return text;
}

// UTF-8 of characters as Python holds them; returns its end, or null for half a surrogate pair.
template <class Character>
std::uint8_t* write_utf8(const Character* at, const Character* end, std::uint8_t* out) {
  auto trail = [](std::uint32_t bits) { return static_cast<std::uint8_t>(0x80 | (bits & 0x3F)); };
  for (; at < end; ++at) {
    std::uint32_t point = *at;
    if (point < 0x80) {
      *out++ = static_cast<std::uint8_t>(point);
    } else if (point < 0x800) {
      *out++ = static_cast<std::uint8_t>(0xC0 | point >> 6);
      *out++ = trail(point);
    } else if (point < 0x10000) {
      if (point - 0xD800 < 0x800) return nullptr;
      *out++ = static_cast<std::uint8_t>(0xE0 | point >> 12);
      *out++ = trail(point >> 6);
      *out++ = trail(point);
    } else {
      *out++ = static_cast<std::uint8_t>(0xF0 | point >> 18);
      *out++ = trail(point >> 12);
      *out++ = trail(point >> 6);
      *out++ = trail(point);
    }
  }
  return out;
}

// UTF-8 of a str to be encoded, as long as that lives and `room` is left alone: Python would allocate it.
inline std::string_view encodable(nb::handle text, Scratch<std::uint8_t>& room) {
  PyObject* str = text.ptr();
  if (!PyUnicode_Check(str) || PyUnicode_IS_ASCII(str)) return brief_enough(utf8(text));
  auto length = static_cast<std::size_t>(PyUnicode_GET_LENGTH(str));
  auto write = [&](auto* characters, std::size_t most) {
    return write_utf8(characters, characters + length, room.need(length * most));
  };
  std::uint8_t* end = PyUnicode_KIND(str) == PyUnicode_1BYTE_KIND   ? write(PyUnicode_1BYTE_DATA(str), 2)
                      : PyUnicode_KIND(str) == PyUnicode_2BYTE_KIND ? write(PyUnicode_2BYTE_DATA(str), 3)
                                                                    : write(PyUnicode_4BYTE_DATA(str), 4);
  if (!end) return utf8(text);  // which raises what there is to say
  return brief_enough({reinterpret_cast<const char*>(room.data()), static_cast<std::size_t>(end - room.data())});
}

// A part of a tokenizer's file, as T; Unsupported, which names `what` it is, if it is nothing of the kind.
template <class T>
T part(nb::handle value, const char* what) {
  T made{};
  if (!nb::try_cast(value, made)) {
    throw Unsupported(std::string(what) + " can't be " + nb::cast<std::string>(nb::repr(value)));
  }
  return made;
}

template <>
inline std::string_view part(nb::handle value, const char* what) {
  if (PyUnicode_Check(value.ptr())) return utf8(value);
  throw Unsupported(std::string(what) + " can't be " + nb::cast<std::string>(nb::repr(value)));
}

inline std::vector<TokenText> tokens_of(nb::dict vocabulary) {
  std::vector<TokenText> tokens;
  tokens.reserve(vocabulary.size());
  for (auto [text, id] : vocabulary) {
    tokens.push_back({part<std::string_view>(text, "a token"), part<std::uint32_t>(id, "a token's id")});
  }
  return tokens;
}

// Each "left right" with one space, or a list or tuple of both. Ranks by place in the list, where there are none.
inline std::vector<MergeText> merges_of(nb::list list, std::optional<nb::list> ranks) {
  if (ranks && ranks->size() != list.size()) throw Unsupported("not as many ranks as merges");
  std::vector<MergeText> merges;
  merges.reserve(list.size());
  for (nb::handle item : list) {
    std::size_t place = merges.size();
    auto rank = ranks ? part<std::uint32_t>((*ranks)[place], "a merge's rank") : static_cast<std::uint32_t>(place);
    if (PyUnicode_Check(item.ptr())) {
      std::string_view line = utf8(item);
      std::size_t space = line.find(' ');
      if (space == line.npos || line.find(' ', space + 1) != line.npos) {
        throw Unsupported("the merge '" + std::string(line) + "' is not of two parts");
      }
      merges.push_back({line.substr(0, space), line.substr(space + 1), rank});
    } else {
      // Nothing but these holds its parts for as long as the views of them are used.
      bool pair = PyList_Check(item.ptr()) || PyTuple_Check(item.ptr());
      if (!pair || nb::len(item) != 2) {
        throw Unsupported("the merge " + nb::cast<std::string>(nb::repr(item)) + " is not of two parts");
      }
      auto side = [&](int which) { return part<std::string_view>(nb::object(item[which]), "a part of a merge"); };
      merges.push_back({side(0), side(1), rank});
    }
  }
  return merges;
}

// Of tuples (text, id, special, swallows space before, after).
inline std::vector<AddedToken> added_of(nb::list list) {
  std::vector<AddedToken> tokens;
  for (nb::handle item : list) {
    auto field = nb::cast<nb::tuple>(item);
    auto flag = [&](int which) { return part<bool>(field[which], "what an added token says of itself"); };
    tokens.push_back({std::string(part<std::string_view>(nb::object(field[0]), "an added token")),
                      part<std::uint32_t>(field[1], "an added token's id"), flag(2), flag(3), flag(4)});
    if (tokens.back().text.empty()) throw Unsupported("an added token has no text");
  }
  return tokens;
}

}  // namespace hostless::bpe
