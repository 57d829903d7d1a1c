// Python bindings of the core; netsim/_core.pyi describes the module.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings_arrays.hpp"
#include "bindings_congestion.hpp"
#include "bindings_simulation.hpp"
#include "ecmp.hpp"
#include "executor.hpp"
#include "routing.hpp"

namespace py = pybind11;

namespace netsim {

namespace {

Network make_network(const Array<std::int8_t>& kinds, const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
                     const Array<std::int64_t>& capacity_bps, const Array<TimePs>& latency_ps) {
    std::vector<NodeKind> nodes;
    for (py::ssize_t i = 0; i < kinds.size(); ++i) nodes.push_back(static_cast<NodeKind>(kinds.at(i)));
    std::vector<Link> links;
    for (py::ssize_t i = 0; i < src.size(); ++i) {
        links.push_back(
            {static_cast<NodeId>(src.at(i)), static_cast<NodeId>(dst.at(i)), capacity_bps.at(i), latency_ps.at(i)});
    }
    return Network(std::move(nodes), std::move(links));
}

// The one place where C++ exceptions become the Python exceptions of netsim.
void translate(std::exception_ptr error) {
    const auto raise = [](const char* module, const char* name, const char* message) {
        py::set_error(py::module_::import(module).attr(name), message);
    };
    try {
        if (error) std::rethrow_exception(error);
    } catch (const NoPath& e) {
        raise("netsim.errors", "NoPath", e.what());
    } catch (const MisuseError& e) {
        raise("netsim.errors", "BackendError", e.what());
    } catch (const GraphError& e) {
        raise("netsim.flow", "FlowGraphError", e.what());
    }
}

}  // namespace

PYBIND11_MODULE(_core, module) {
    module.doc() = "C++ core of netsim.";
    py::register_local_exception_translator(&translate);

    module.attr("WHOLE_GRAPH") = kWholeGraph;
    module.attr("RATE_UNITS_PER_BPS") = kRateUnitsPerBps;
    module.attr("MAX_CAPACITY_BPS") = kMaxCapacityBps;

    module.def(
        "murmur3_32",
        [](const py::bytes& data, std::uint32_t seed) {
            const std::string_view view = data;
            return murmur3_32({reinterpret_cast<const std::uint8_t*>(view.data()), view.size()}, seed);
        },
        py::arg("data"), py::arg("seed"));
    module.def(
        "ecmp_hash",
        [](NodeId src, NodeId dst, std::uint32_t flow_label, NodeId at, bool is_ack, std::uint32_t ecmp_seed) {
            const FlowTuple tuple = flow_tuple(src, dst, flow_label);
            return ecmp_hash(is_ack ? tuple.reversed() : tuple, hash_seed(at, ecmp_seed));
        },
        py::arg("src"), py::arg("dst"), py::arg("flow_label"), py::arg("at"), py::arg("is_ack") = false,
        py::arg("ecmp_seed") = 0);

    py::class_<Path>(module, "Path")
        .def_property_readonly("links", [](const Path& path) { return to_array(path.links); })
        .def_readonly("latency_ps", &Path::latency_ps)
        .def_readonly("bottleneck_bps", &Path::bottleneck_bps);

    py::class_<Network>(module, "Network")
        .def(py::init(&make_network), py::arg("kinds"), py::arg("src"), py::arg("dst"), py::arg("capacity_bps"),
             py::arg("latency_ps"));

    py::class_<Routing>(module, "Routing")
        .def(py::init<const Network&, std::uint32_t>(), py::arg("network"), py::arg("ecmp_seed") = 0,
             py::keep_alive<1, 2>())
        .def("path", &Routing::path, py::arg("src"), py::arg("dst"), py::arg("flow_label"),
             py::return_value_policy::reference_internal)
        .def("reverse_path", &Routing::reverse_path, py::arg("src"), py::arg("dst"), py::arg("flow_label"),
             py::return_value_policy::reference_internal)
        .def(
            "next_hops", [](Routing& self, NodeId at, NodeId dst) { return to_array(self.next_hops(at, dst)); },
            py::arg("at"), py::arg("dst"))
        .def(
            "routes",
            [](Routing& self, const Array<std::uint32_t>& src, const Array<std::uint32_t>& dst,
               const Array<std::uint32_t>& flow_label, bool is_reverse) {
                const PathTable table = paths_of(self, to_vector<NodeId>(src), to_vector<NodeId>(dst),
                                                 to_vector<std::uint32_t>(flow_label), is_reverse);
                return py::make_tuple(to_array(table.offsets), to_array(table.links));
            },
            py::arg("src"), py::arg("dst"), py::arg("flow_label"), py::arg("is_reverse"))
        .def(
            "links_between",
            [](Routing& self, const std::vector<NodeId>& nodes) { return to_array(self.links_between(nodes)); },
            py::arg("nodes"))
        .def(
            "total_hops", [](Routing& self, const std::vector<NodeId>& nodes) { return self.total_hops(nodes); },
            py::arg("nodes"))
        .def_property_readonly("tables_built", &Routing::tables_built)
        .def("set_link_up", &Routing::set_link_up, py::arg("link"), py::arg("is_up"));

    bind_congestion(module);
    bind_simulation(module);
}

}  // namespace netsim
