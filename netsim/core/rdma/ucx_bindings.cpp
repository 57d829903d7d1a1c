// Python bindings of engine `ucx`; netsim/_ucx.pyi describes the module.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "clock.hpp"
#include "ucx_engine.hpp"

namespace py = pybind11;

namespace netsim::rdma {

namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
std::vector<T> column(const py::dict& columns, const char* name) {
    const auto array = columns[name].cast<Array<T>>();
    return {array.data(), array.data() + array.size()};
}

RankPlan plan_from(const py::dict& columns) {
    RankPlan plan;
    plan.flows = columns["flows"].cast<std::int64_t>();
    plan.send_flow = column<std::uint32_t>(columns, "send_flow");
    plan.send_peer = column<std::int32_t>(columns, "send_peer");
    plan.send_bytes = column<std::int64_t>(columns, "send_bytes");
    plan.send_label = column<std::uint32_t>(columns, "send_label");
    plan.send_ready_ns = column<Nanoseconds>(columns, "send_ready_ns");
    plan.send_delay_ns = column<Nanoseconds>(columns, "send_delay_ns");
    plan.send_max_bps = column<std::int64_t>(columns, "send_max_bps");
    plan.send_waits = column<std::int32_t>(columns, "send_waits");
    plan.receive_flow = column<std::uint32_t>(columns, "receive_flow");
    plan.receive_bytes = column<std::int64_t>(columns, "receive_bytes");
    plan.dependents = {column<std::int64_t>(columns, "dependent_offsets"), column<std::int32_t>(columns, "dependents")};
    plan.informed = {column<std::int64_t>(columns, "informed_offsets"), column<std::int32_t>(columns, "informed")};
    plan.expected_messages = columns["expected_messages"].cast<std::int64_t>();
    return plan;
}

py::array_t<Nanoseconds> as_array(const std::vector<Nanoseconds>& values) {
    return py::array_t<Nanoseconds>(static_cast<py::ssize_t>(values.size()), values.data());
}

using PeerRow = std::tuple<int, std::string, std::uint16_t>;

}  // namespace

}  // namespace netsim::rdma

PYBIND11_MODULE(_ucx, module) {
    using namespace netsim::rdma;
    py::register_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const EngineError& e) {
            py::set_error(py::module_::import("netsim.rdma.errors").attr("TransferFailure"), e.what());
        }
    });
    module.def("now_ns", &now_ns);
    module.def("version", [] { return std::string(ucp_get_version_string()); });
    py::class_<UcxEngine>(module, "UcxEngine")
        .def(py::init([](int rank, int ranks, std::string address, std::string transports, std::string rndv_threshold,
                         std::string device, std::uint64_t key, int channels, bool spin, bool must_verify) {
                 return std::make_unique<UcxEngine>(UcxOptions{rank, ranks, std::move(address), std::move(transports),
                                                               std::move(rndv_threshold), std::move(device), key,
                                                               channels, spin, must_verify});
             }),
             py::kw_only(), py::arg("rank"), py::arg("ranks"), py::arg("address"), py::arg("transports"),
             py::arg("rndv_threshold"), py::arg("device"), py::arg("key"), py::arg("channels"), py::arg("spin"),
             py::arg("must_verify"))
        .def_property_readonly("port", &UcxEngine::port)
        .def(
            "connect",
            [](UcxEngine& engine, const std::vector<PeerRow>& out, const std::vector<int>& in, Nanoseconds timeout_ns) {
                std::vector<UcxPeer> peers;
                for (const auto& [rank, address, port] : out) peers.push_back({rank, address, port});
                const py::gil_scoped_release released;
                engine.connect(peers, in, timeout_ns);
            },
            py::arg("out"), py::arg("in_ranks"), py::arg("timeout_ns"))
        .def("lanes", &UcxEngine::lanes)
        .def("load",
             [](UcxEngine& engine, const py::dict& columns) {
                 RankPlan plan = plan_from(columns);
                 const py::gil_scoped_release released;
                 engine.load(std::move(plan));
             })
        .def("run", &UcxEngine::run, py::arg("t0_ns"), py::call_guard<py::gil_scoped_release>())
        .def("stop", &UcxEngine::stop)
        .def_property_readonly("done_descriptor", &UcxEngine::done_descriptor)
        .def("times", [](const UcxEngine& engine) {
            const RankTimes times = engine.times();
            return py::make_tuple(as_array(times.ready_ns), as_array(times.posted_ns), as_array(times.left_ns),
                                  as_array(times.arrived_ns));
        });
}
