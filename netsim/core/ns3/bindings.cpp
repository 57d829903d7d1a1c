// Python bindings of the ns-3 part; netsim/_ns3.pyi describes the module.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "event_script.hpp"
#include "ns3_simulation.hpp"

namespace py = pybind11;

namespace netsim {

namespace {

// The one place where C++ exceptions of this module become Python exceptions of netsim.
void translate(std::exception_ptr error) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const MisuseError& e) {
        py::set_error(py::module_::import("netsim.errors").attr("BackendError"), e.what());
    }
}

using ScriptRow = std::tuple<std::int64_t, How, TimePs, Act, std::int64_t>;

py::list run_rows(Engine engine, const std::vector<ScriptRow>& rows, TimePs step_ps) {
    std::vector<ScriptedEvent> events;
    for (const auto& [parent, how, delay_ps, act, target] : rows) {
        events.push_back({parent, how, delay_ps, act, target});
    }
    std::vector<ScriptLog> log;
    {
        const py::gil_scoped_release released;
        log = run_script(engine, events, step_ps);
    }
    py::list result;
    for (const ScriptLog& seen : log) {
        result.append(
            py::make_tuple(seen.at_ps, seen.event, seen.context, seen.has_target_expired, seen.target_left_ps));
    }
    return result;
}

void bind_script(py::module_& module) {
    py::enum_<Engine>(module, "Engine").value("STEPPED", Engine::stepped).value("STOCK", Engine::stock);
    py::enum_<How>(module, "How")
        .value("SCHEDULE", How::schedule)
        .value("WITH_CONTEXT", How::with_context)
        .value("NOW", How::now)
        .value("AT_DESTROY", How::at_destroy);
    py::enum_<Act>(module, "Act")
        .value("NONE", Act::none)
        .value("CANCEL", Act::cancel)
        .value("REMOVE", Act::remove)
        .value("STOP", Act::stop)
        .value("FAIL", Act::fail);
    module.def("run_script", &run_rows, py::arg("engine"), py::arg("events"), py::arg("step_ps"));
}

Ns3Simulation* make_simulation(const Network& network, std::uint32_t ecmp_seed, const roce::Parameters& parameters,
                               const std::vector<std::string>& node_names) {
    return new Ns3Simulation(network, ecmp_seed, parameters, node_names);
}

// Derives from a class that the core's own module binds.
void bind_simulation(py::module_& module) {
    py::module_::import("netsim._core");
    py::class_<Ns3Simulation, PacketSimulation, std::shared_ptr<Ns3Simulation>>(module, "Ns3Simulation")
        .def(py::init(&make_simulation), py::arg("network"), py::arg("ecmp_seed"), py::arg("parameters"),
             py::arg("node_names"))
        .def(
            "capture",
            [](Ns3Simulation& self, const std::string& folder, const std::optional<std::vector<std::int64_t>>& links,
               std::int64_t most_bytes) { self.capture(folder, links ? &*links : nullptr, most_bytes); },
            py::arg("folder"), py::arg("links"), py::arg("most_bytes"))
        .def("attributes", &Ns3Simulation::attributes, py::arg("path"))
        .def("trace", &Ns3Simulation::trace, py::arg("path"))
        .def("traced",
             [](Ns3Simulation& self) {
                 py::list rows;
                 for (const TraceRow& row : self.traced()) {
                     rows.append(py::make_tuple(row.at_ps, *row.path, py::tuple(py::cast(row.values))));
                 }
                 return rows;
             })
        .def_property_readonly("simulator_now_ps", &Ns3Simulation::simulator_now_ps);
}

}  // namespace

PYBIND11_MODULE(_ns3, module) {
    module.doc() = "Stock ns-3 3.44 under an event engine of netsim's own.";
    py::register_local_exception_translator(&translate);
    prepare_process();
    bind_script(module);
    bind_simulation(module);
}

}  // namespace netsim
