// Conversions between NumPy arrays and vectors, for the bindings.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace netsim {

template <typename T>
using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

template <typename T, typename U = T>
std::vector<T> to_vector(const Array<U>& array) {
    return std::vector<T>(array.data(), array.data() + array.size());
}

template <typename T>
Array<T> to_array(const std::vector<T>& values) {
    return Array<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

}  // namespace netsim
