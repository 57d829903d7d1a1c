// Adds the congestion controllers to the Python module of the core.
#pragma once

#include <pybind11/pybind11.h>

namespace netsim {

void bind_congestion(pybind11::module_& module);

}  // namespace netsim
