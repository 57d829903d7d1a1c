// Python bindings that all engines share; netsim.backends.rdma.engines describes the methods.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <vector>

#include "engine.hpp"

namespace netsim::rdma {

template <typename T>
std::vector<T> column(const pybind11::dict& columns, const char* name) {
    using Array = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;
    const auto array = columns[name].cast<Array>();
    return {array.data(), array.data() + array.size()};
}

inline RankPlan plan_from(const pybind11::dict& columns) {
    RankPlan plan;
    plan.flows = columns["flows"].cast<std::int64_t>();
    plan.send_flow = column<std::uint32_t>(columns, "send_flow");
    plan.send_peer = column<std::int32_t>(columns, "send_peer");
    plan.send_bytes = column<std::int64_t>(columns, "send_bytes");
    plan.send_place = column<std::int64_t>(columns, "send_place");
    plan.send_label = column<std::uint32_t>(columns, "send_label");
    plan.send_ready_ns = column<Nanoseconds>(columns, "send_ready_ns");
    plan.send_delay_ns = column<Nanoseconds>(columns, "send_delay_ns");
    plan.send_max_bps = column<std::int64_t>(columns, "send_max_bps");
    plan.send_waits = column<std::int32_t>(columns, "send_waits");
    plan.receive_flow = column<std::uint32_t>(columns, "receive_flow");
    plan.receive_bytes = column<std::int64_t>(columns, "receive_bytes");
    plan.receive_place = column<std::int64_t>(columns, "receive_place");
    plan.dependents = {column<std::int64_t>(columns, "dependent_offsets"), column<std::int32_t>(columns, "dependents")};
    plan.informed = {column<std::int64_t>(columns, "informed_offsets"), column<std::int32_t>(columns, "informed")};
    plan.expected_messages = columns["expected_messages"].cast<std::int64_t>();
    return plan;
}

inline pybind11::array_t<Nanoseconds> as_array(const std::vector<Nanoseconds>& values) {
    return pybind11::array_t<Nanoseconds>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

inline EngineOptions options_from(const pybind11::dict& fields) {
    EngineOptions options;
    options.rank = fields["rank"].cast<int>();
    options.ranks = fields["ranks"].cast<int>();
    options.address = fields["address"].cast<std::string>();
    options.device = fields["device"].cast<std::string>();
    options.channels = fields["channels"].cast<int>();
    options.spin = fields["spin"].cast<bool>();
    options.must_verify = fields["must_verify"].cast<bool>();
    return options;
}

// All but the constructor.
template <typename E>
pybind11::class_<E> bind_engine(pybind11::module_& module, const char* name) {
    namespace py = pybind11;
    py::register_local_exception_translator([](std::exception_ptr error) {
        try {
            if (error) std::rethrow_exception(error);
        } catch (const EngineError& e) {
            py::set_error(py::module_::import("netsim.backends.rdma.errors").attr("TransferFailure"), e.what());
        }
    });
    return py::class_<E>(module, name)
        .def("load",
             [](E& engine, const py::dict& columns) {
                 RankPlan plan = plan_from(columns);
                 const py::gil_scoped_release released;
                 engine.load(std::move(plan));
             })
        .def("offer", &E::offer, py::arg("out_ranks"), py::arg("in_ranks"))
        .def("connect", &E::connect, py::arg("offered"), py::arg("timeout_ns"),
             py::call_guard<py::gil_scoped_release>())
        .def("lanes", &E::lanes)
        .def_property_readonly("device", &E::device)
        .def("run", &E::run, py::arg("t0_ns"), py::call_guard<py::gil_scoped_release>())
        .def("stop", &E::stop)
        .def_property_readonly("done_descriptor", &E::done_descriptor)
        .def("times", [](const E& engine) {
            const RankTimes times = engine.times();
            return py::make_tuple(as_array(times.ready_ns), as_array(times.posted_ns), as_array(times.left_ns),
                                  as_array(times.arrived_ns));
        });
}

}  // namespace netsim::rdma
