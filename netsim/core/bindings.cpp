// Python bindings of the core; netsim/_core.pyi describes the module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings_congestion.hpp"
#include "ecmp.hpp"
#include "simulation.hpp"

namespace py = pybind11;

namespace netsim {

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T, typename U = T>
std::vector<T> to_vector(const Array<U>& array) {
    return std::vector<T>(array.data(), array.data() + array.size());
}

template <typename T>
Array<T> to_array(const std::vector<T>& values) {
    return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

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

FlowGraph make_graph(const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
                     const Array<std::int64_t>& size_bytes, const Array<TimePs>& ready_ps,
                     const Array<TimePs>& delay_ps, const Array<std::int64_t>& dep_offsets,
                     const Array<std::int64_t>& deps, const Array<std::uint32_t>& flow_label, const Array<bool>& notify,
                     const Array<std::int64_t>& max_rate_bps, const Array<std::int64_t>& after) {
    return {to_vector<std::int32_t>(src),
            to_vector<std::int32_t>(dst),
            to_vector<std::int64_t>(size_bytes),
            to_vector<TimePs>(ready_ps),
            to_vector<TimePs>(delay_ps),
            to_vector<std::int64_t>(dep_offsets),
            to_vector<std::int64_t>(deps),
            to_vector<std::uint32_t>(flow_label),
            to_vector<bool>(notify),
            to_vector<std::int64_t>(max_rate_bps),
            to_vector<std::int64_t>(after)};
}

// The one place where C++ exceptions become the Python exceptions of netsim.
void translate(std::exception_ptr error) {
    const auto raise = [](const char* module, const char* name, const char* message) {
        py::set_error(py::module_::import(module).attr(name), message);
    };
    try {
        if (error) std::rethrow_exception(error);
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
        .def("set_link_up", &Routing::set_link_up, py::arg("link"), py::arg("is_up"));

    py::enum_<Sharing>(module, "Sharing").value("MAX_MIN", Sharing::max_min).value("UNCONTENDED", Sharing::uncontended);

    py::class_<FlowSimulation>(module, "FlowSimulation")
        .def(py::init<Network, Sharing>(), py::arg("network"), py::arg("sharing"))
        .def_property_readonly("now_ps", [](FlowSimulation& self) { return self.executor()->now_ps(); })
        .def(
            "submit",
            [](FlowSimulation& self, const Array<std::int32_t>& src, const Array<std::int32_t>& dst,
               const Array<std::int64_t>& size_bytes, const Array<TimePs>& ready_ps, const Array<TimePs>& delay_ps,
               const Array<std::int64_t>& dep_offsets, const Array<std::int64_t>& deps,
               const Array<std::uint32_t>& flow_label, const Array<bool>& notify,
               const Array<std::int64_t>& max_rate_bps, const Array<std::int64_t>& after, TimePs at_ps) {
                FlowGraph graph = make_graph(src, dst, size_bytes, ready_ps, delay_ps, dep_offsets, deps, flow_label,
                                             notify, max_rate_bps, after);
                auto executor = self.executor();
                const py::gil_scoped_release released;
                return executor->submit(std::move(graph), at_ps);
            },
            py::arg("src"), py::arg("dst"), py::arg("size_bytes"), py::arg("ready_ps"), py::arg("delay_ps"),
            py::arg("dep_offsets"), py::arg("deps"), py::arg("flow_label"), py::arg("notify"), py::arg("max_rate_bps"),
            py::arg("after"), py::arg("at_ps"))
        .def(
            "advance",
            [](FlowSimulation& self, TimePs until_ps) {
                auto executor = self.executor();
                std::vector<Completion> completions;
                {
                    const py::gil_scoped_release released;
                    completions = executor->advance(until_ps);
                }
                py::list result;
                for (const Completion& c : completions) result.append(py::make_tuple(c.graph, c.flow, c.at_ps));
                return result;
            },
            py::arg("until_ps"))
        .def("next_event_ps",
             [](FlowSimulation& self) -> std::optional<TimePs> {
                 const TimePs next = self.executor()->next_event_ps();
                 return next == kNever ? std::nullopt : std::optional(next);
             })
        .def(
            "cancel", [](FlowSimulation& self, Handle handle) { self.executor()->cancel(handle); }, py::arg("handle"))
        .def(
            "forget", [](FlowSimulation& self, Handle handle) { self.executor()->forget(handle); }, py::arg("handle"))
        .def(
            "flow_times",
            [](FlowSimulation& self, Handle handle) {
                auto executor = self.executor();
                return py::make_tuple(to_array(executor->start_ps(handle)), to_array(executor->end_ps(handle)));
            },
            py::arg("handle"))
        .def("link_totals",
             [](FlowSimulation& self) {
                 const LinkTotals totals = self.totals();
                 return py::make_tuple(to_array(totals.carried_bytes), to_array(totals.busy_ps));
             })
        .def(
            "set_background_bps",
            [](FlowSimulation& self, const Array<std::int64_t>& links, const Array<double>& rates_bps) {
                self.set_background_bps(to_vector<std::int64_t>(links), to_vector<double>(rates_bps));
            },
            py::arg("links"), py::arg("rates_bps"))
        .def("link_rates_bps", [](FlowSimulation& self) { return to_array(self.link_rates_bps()); });

    bind_congestion(module);
}

}  // namespace netsim
