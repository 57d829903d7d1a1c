// What the binding files share.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "rank_group.hpp"

namespace py = pybind11;

namespace serving {

// A copy as a numpy array.
template <typename T>
py::array_t<T> array(const std::vector<T>& values) {
    return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

// A copy of a numpy array.
template <typename T>
std::vector<T> values_of(const py::array_t<T, py::array::c_style | py::array::forcecast>& array) {
    return std::vector<T>(array.data(), array.data() + array.size());
}

using Numbers = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;
using Reals = py::array_t<double, py::array::c_style | py::array::forcecast>;

inline const char* name_of(Role role) {
    switch (role) {
        case Role::kMixed:
            return "mixed";
        case Role::kPrefill:
            return "prefill";
        case Role::kDecode:
            return "decode";
    }
    throw BrokenInvariant("a role without a name");
}

void bind_running_iteration(py::module_& module);
void bind_loop(py::module_& module);
void bind_policy(py::module_& module);

}  // namespace serving
