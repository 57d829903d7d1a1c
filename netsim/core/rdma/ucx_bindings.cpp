// Python bindings of engine `ucx`; netsim/_ucx.pyi describes the module.
#include "engine_bindings.hpp"
#include "ucx_engine.hpp"

PYBIND11_MODULE(_ucx, module) {
    using namespace netsim::rdma;
    namespace py = pybind11;
    module.def("version", [] { return std::string(ucp_get_version_string()); });
    bind_engine<UcxEngine>(module, "UcxEngine")
        .def(py::init([](const py::dict& options, std::string transports, std::string rndv_threshold, std::uint64_t key,
                         int gpu) {
                 return std::make_unique<UcxEngine>(
                     options_from(options), UcxOptions{std::move(transports), std::move(rndv_threshold), key, gpu});
             }),
             py::arg("options"), py::kw_only(), py::arg("transports"), py::arg("rndv_threshold"), py::arg("key"),
             py::arg("gpu"));
}
