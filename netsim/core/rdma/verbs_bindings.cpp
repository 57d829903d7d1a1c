// Python bindings of engine `verbs`; netsim/_verbs.pyi describes the module.
#include "engine_bindings.hpp"
#include "verbs_engine.hpp"

PYBIND11_MODULE(_verbs, module) {
    using namespace netsim::rdma;
    namespace py = pybind11;
    bind_engine<VerbsEngine>(module, "VerbsEngine")
        .def(py::init([](const py::dict& options, int queue_pairs, bool split, std::optional<int> mtu_bytes,
                         std::optional<int> gid_index, int traffic_class, int service_level, int timeout,
                         int retry_count, int rnr_retry) {
                 return std::make_unique<VerbsEngine>(
                     options_from(options), VerbsOptions{queue_pairs, split, mtu_bytes, gid_index, traffic_class,
                                                         service_level, timeout, retry_count, rnr_retry});
             }),
             py::arg("options"), py::kw_only(), py::arg("queue_pairs"), py::arg("split"), py::arg("mtu_bytes"),
             py::arg("gid_index"), py::arg("traffic_class"), py::arg("service_level"), py::arg("timeout"),
             py::arg("retry_count"), py::arg("rnr_retry"));
}
