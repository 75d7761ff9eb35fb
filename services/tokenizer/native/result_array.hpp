// Ids as NumPy has them, in memory that is taken again once the array is gone.
#pragma once

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#include <nanobind/nanobind.h>
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstdint>

#include "result_blocks.hpp"

namespace hostless::bpe {

// Once for the module, before the first array.
inline void import_numpy() {
  if (PyArray_ImportNumPyAPI() < 0) throw nanobind::python_error();
}

inline nanobind::object array_of(const std::uint32_t* ids, std::size_t count) {
  std::uint32_t* block = ResultBlocks::all().take(count);
  std::copy_n(ids, count, block);
  PyObject* owner = PyCapsule_New(block, nullptr, [](PyObject* capsule) {
    auto given = static_cast<std::uint32_t*>(PyCapsule_GetPointer(capsule, nullptr));
    ResultBlocks::all().give(given, reinterpret_cast<std::size_t>(PyCapsule_GetContext(capsule)));
  });
  if (!owner) {
    ResultBlocks::all().give(block, count);
    throw nanobind::python_error();
  }
  PyCapsule_SetContext(owner, reinterpret_cast<void*>(count));
  auto size = static_cast<npy_intp>(count);
  PyObject* array = PyArray_SimpleNewFromData(1, &size, NPY_UINT32, block);
  if (!array) {
    Py_DECREF(owner);
    throw nanobind::python_error();
  }
  nanobind::object held = nanobind::steal(array);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), owner) < 0) throw nanobind::python_error();
  return held;
}

}  // namespace hostless::bpe
