// A C++ struct as numpy.dtype takes it, its types read from the struct itself.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <type_traits>

namespace hostless {

// numpy's name of a field's type.
template <class T>
std::string format_of() {
  if constexpr (std::is_array_v<T>) {
    return std::to_string(std::extent_v<T>).insert(0, 1, '(').append(",)").append(format_of<std::remove_extent_t<T>>());
  } else {
    std::string kind = std::is_class_v<T> ? "V" : std::is_floating_point_v<T> ? "<f" : "<u";
    return kind.append(std::to_string(sizeof(T)));
  }
}

// A struct as numpy.dtype takes it: {"names": ..., "formats": ..., "offsets": ..., "itemsize": ...}.
class StructLayout {
 public:
  explicit StructLayout(size_t itemsize) : itemsize_(itemsize) {}
  template <class T>
  StructLayout& field(const char* name, size_t offset) {
    names_.append(name), formats_.append(format_of<T>()), offsets_.append(offset);
    return *this;
  }
  nanobind::dict dict() const {
    nanobind::dict d;
    d["names"] = names_, d["formats"] = formats_, d["offsets"] = offsets_, d["itemsize"] = itemsize_;
    return d;
  }

 private:
  nanobind::list names_, formats_, offsets_;
  size_t itemsize_;
};

}  // namespace hostless

// StructLayout(sizeof(S)) FIELD(S, a) FIELD(S, b).dict()
#define FIELD(Struct, name) .field<decltype(Struct::name)>(#name, offsetof(Struct, name))
