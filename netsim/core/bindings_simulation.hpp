// Adds the simulations to the Python module of the core.
#pragma once

#include <pybind11/pybind11.h>

namespace netsim {

void bind_simulation(pybind11::module_& module);

}  // namespace netsim
