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

inline std::string_view encodable(nb::handle text) {
  std::string_view view = utf8(text);
  if (view.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw nb::value_error("a text of 2 GiB or more can't be encoded");
  }
  return view;
}

inline std::vector<TokenText> tokens_of(nb::dict vocabulary) {
  std::vector<TokenText> tokens;
  tokens.reserve(vocabulary.size());
  for (auto [text, id] : vocabulary) tokens.push_back({utf8(text), nb::cast<std::uint32_t>(id)});
  return tokens;
}

// Each "left right" with one space, or a pair. Ranks by place in the list, where there are none.
inline std::vector<MergeText> merges_of(nb::list list, std::optional<nb::list> ranks) {
  if (ranks && ranks->size() != list.size()) throw Unsupported("not as many ranks as merges");
  std::vector<MergeText> merges;
  merges.reserve(list.size());
  for (nb::handle item : list) {
    std::size_t place = merges.size();
    auto rank = ranks ? nb::cast<std::uint32_t>((*ranks)[place]) : static_cast<std::uint32_t>(place);
    if (PyUnicode_Check(item.ptr())) {
      std::string_view line = utf8(item);
      std::size_t space = line.find(' ');
      if (space == line.npos || line.find(' ', space + 1) != line.npos) {
        throw Unsupported("the merge '" + std::string(line) + "' is not of two parts");
      }
      merges.push_back({line.substr(0, space), line.substr(space + 1), rank});
    } else {
      nb::sequence pair = nb::cast<nb::sequence>(item);
      if (nb::len(pair) != 2) throw Unsupported("a merge is not of two parts");
      merges.push_back({utf8(nb::object(pair[0])), utf8(nb::object(pair[1])), rank});
    }
  }
  return merges;
}

// Of tuples (text, id, special, swallows space before, after).
inline std::vector<AddedToken> added_of(nb::list list) {
  std::vector<AddedToken> tokens;
  for (nb::handle item : list) {
    auto field = nb::cast<nb::tuple>(item);
    tokens.push_back({std::string(utf8(nb::object(field[0]))), nb::cast<std::uint32_t>(field[1]),
                      nb::cast<bool>(field[2]), nb::cast<bool>(field[3]), nb::cast<bool>(field[4])});
    if (tokens.back().text.empty()) throw Unsupported("an added token has no text");
  }
  return tokens;
}

}  // namespace hostless::bpe
