// Python bindings of the simulations; netsim/_core.pyi describes them.
#include "bindings_simulation.hpp"

#include <pybind11/stl.h>

#include "bindings_arrays.hpp"
#include "simulation.hpp"

namespace py = pybind11;

namespace netsim {

namespace {

Traffic checked_traffic(std::int64_t traffic) {
    if (traffic >= 0 && traffic < static_cast<std::int64_t>(kTrafficKinds)) return static_cast<Traffic>(traffic);
    throw MisuseError("traffic: found " + std::to_string(traffic) + ", expected 0 to " +
                      std::to_string(kTrafficKinds - 1));
}

// The arrays of a netsim.flow.FlowGraph.
FlowGraph read_graph(const py::object& graph) {
    const auto read = [&]<typename T, typename U = T>(const char* name) {
        return to_vector<T, U>(graph.attr(name).cast<Array<U>>());
    };
    return {.src = read.operator()<std::int32_t>("src"),
            .dst = read.operator()<std::int32_t>("dst"),
            .size_bytes = read.operator()<std::int64_t>("size_bytes"),
            .ready_ps = read.operator()<TimePs>("ready_ps"),
            .delay_ps = read.operator()<TimePs>("delay_ps"),
            .dep_offsets = read.operator()<std::int64_t>("dep_offsets"),
            .deps = read.operator()<std::int64_t>("deps"),
            .flow_label = read.operator()<std::uint32_t>("flow_label"),
            .notify = read.operator()<bool>("notify"),
            .max_rate_bps = read.operator()<std::int64_t>("max_rate_bps"),
            .after = read.operator()<std::int64_t>("after"),
            .credit_offsets = read.operator()<std::int64_t>("credit_offsets"),
            .credits = read.operator()<std::int64_t>("credits"),
            .priority = read.operator()<std::uint8_t>("priority"),
            .traffic = checked_traffic(graph.attr("traffic").cast<std::int64_t>())};
}

void check_span(const Array<std::int64_t>& links, const Array<double>& link_bytes, std::pair<TimePs, TimePs> span_ps) {
    if (links.size() == link_bytes.size() && span_ps.first >= 0 && span_ps.first <= span_ps.second) return;
    throw MisuseError("spread: found " + std::to_string(link_bytes.size()) + " sizes for " +
                      std::to_string(links.size()) + " links, from " + std::to_string(span_ps.first) + " to " +
                      std::to_string(span_ps.second) +
                      " ps, expected one for each and a time that does not run backwards");
}

void bind_link_log(py::module_& module) {
    py::class_<LinkLog, std::shared_ptr<LinkLog>>(module, "LinkLog")
        .def(py::init<std::size_t, std::int64_t, TimePs>(), py::arg("links"), py::arg("windows"), py::arg("window_ps"))
        .def_property_readonly("window_ps", &LinkLog::window_ps)
        .def_property_readonly("burst_ps", &LinkLog::burst_ps)
        .def(
            "spread",
            [](LinkLog& log, std::int64_t traffic, const Array<std::int64_t>& links, const Array<double>& link_bytes,
               std::pair<TimePs, TimePs> span_ps) {
                check_span(links, link_bytes, span_ps);
                log.spread(checked_traffic(traffic), to_vector<std::int64_t>(links), to_vector<double>(link_bytes),
                           span_ps.first, span_ps.second);
            },
            py::arg("traffic"), py::arg("links"), py::arg("link_bytes"), py::arg("span_ps"))
        .def(
            "total_bytes",
            [](const LinkLog& log, std::int64_t traffic) {
                return to_array(log.total_bytes(checked_traffic(traffic)));
            },
            py::arg("traffic"))
        .def("rows", [](const LinkLog& log) {
            const CarriedRows rows = log.rows();
            return py::make_tuple(to_array(rows.traffic), to_array(rows.window), to_array(rows.link),
                                  to_array(rows.carried_bytes), to_array(rows.burst_bytes));
        });
}

void bind_base(py::module_& module) {
    py::class_<SteppedNetwork, std::shared_ptr<SteppedNetwork>>(module, "SteppedNetwork");
    py::class_<Simulation, SteppedNetwork, std::shared_ptr<Simulation>>(module, "Simulation")
        .def_property_readonly("now_ps", &Simulation::now_ps)
        .def_property_readonly("running_graphs", [](Simulation& self) { return self.executor()->running_graphs(); })
        .def(
            "submit",
            [](Simulation& self, const py::object& graph, TimePs at_ps) {
                FlowGraph arrays = read_graph(graph);
                auto executor = self.executor();
                const py::gil_scoped_release released;
                return executor->submit(std::move(arrays), at_ps);
            },
            py::arg("graph"), py::arg("at_ps"))
        .def(
            "advance",
            [](Simulation& self, TimePs until_ps) {
                auto executor = self.executor();
                std::vector<Completion> completions;
                {
                    const py::gil_scoped_release released;
                    completions = executor->advance(until_ps);
                }
                py::list result;
                for (const Completion& c : completions) {
                    result.append(py::make_tuple(c.graph, c.flow, c.at_ps, c.is_failed));
                }
                return result;
            },
            py::arg("until_ps"))
        .def("next_event_ps",
             [](Simulation& self) -> std::optional<TimePs> {
                 const TimePs next = self.next_event_ps();
                 return next == kNever ? std::nullopt : std::optional(next);
             })
        .def(
            "cancel", [](Simulation& self, Handle handle) { self.executor()->cancel(handle); }, py::arg("handle"))
        .def(
            "forget", [](Simulation& self, Handle handle) { self.executor()->forget(handle); }, py::arg("handle"))
        .def(
            "sent_bytes", [](Simulation& self, Handle handle) { return to_array(self.executor()->sent_bytes(handle)); },
            py::arg("handle"))
        .def(
            "flow_times",
            [](Simulation& self, Handle handle) {
                auto executor = self.executor();
                const std::vector<bool>& failed = executor->has_failed(handle);
                const auto flows = static_cast<py::ssize_t>(executor->end_ps(handle).size());
                Array<bool> has_failed(flows);
                for (py::ssize_t i = 0; i < flows; ++i) {
                    has_failed.mutable_at(i) = !failed.empty() && failed[static_cast<std::size_t>(i)];
                }
                return py::make_tuple(to_array(executor->start_ps(handle)), to_array(executor->end_ps(handle)),
                                      has_failed);
            },
            py::arg("handle"))
        .def(
            "canonical",
            [](Simulation& self, const py::object& graph, bool names_by_use) {
                const CanonicalGraph canonical = self.canonical(read_graph(graph), names_by_use);
                return py::make_tuple(to_array(canonical.form), to_array(canonical.links));
            },
            py::arg("graph"), py::arg("names_by_use"))
        .def("log_links", &Simulation::log_links, py::arg("windows"), py::arg("window_ps"))
        .def("update_link_log", &Simulation::update_link_log)
        .def(
            "link_totals",
            [](Simulation& self, const std::optional<Array<std::int64_t>>& links) {
                const LinkTotals totals = links ? self.totals(to_vector<std::int64_t>(*links)) : self.totals();
                return py::make_tuple(to_array(totals.carried_bytes), to_array(totals.busy_ps));
            },
            py::arg("links") = std::nullopt);
}

void bind_flow_simulation(py::module_& module) {
    py::enum_<Sharing>(module, "Sharing").value("MAX_MIN", Sharing::max_min).value("UNCONTENDED", Sharing::uncontended);
    py::class_<WireFormat>(module, "WireFormat")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t, std::int64_t>(), py::arg("mtu_bytes"),
             py::arg("header_bytes"), py::arg("ack_bytes"), py::arg("packets_per_ack"));
    py::class_<PeriodicLoads, std::shared_ptr<PeriodicLoads>>(module, "PeriodicLoads");
    py::class_<FlowSimulation, Simulation, std::shared_ptr<FlowSimulation>>(module, "FlowSimulation")
        .def(py::init<Network, Sharing, std::optional<WireFormat>, double>(), py::arg("network"), py::arg("sharing"),
             py::arg("wire") = std::nullopt, py::arg("rate_tolerance") = 0.0)
        .def(
            "set_background_bps",
            [](FlowSimulation& self, const Array<std::int64_t>& links, const Array<double>& rates_bps) {
                self.set_background_bps(to_vector<std::int64_t>(links), to_vector<double>(rates_bps));
            },
            py::arg("links"), py::arg("rates_bps"))
        .def(
            "link_rates_bps",
            [](FlowSimulation& self, const std::optional<Array<std::int64_t>>& links) {
                if (!links) return to_array(self.link_rates_bps());
                return to_array(self.link_rates_bps(to_vector<std::int64_t>(*links)));
            },
            py::arg("links") = std::nullopt)
        .def("set_link_up", &FlowSimulation::set_link_up, py::arg("link"), py::arg("is_up"))
        .def("set_capacity_share", &FlowSimulation::set_capacity_share, py::arg("link"), py::arg("share"))
        .def(
            "load_periodically",
            [](const std::shared_ptr<FlowSimulation>& self, std::size_t sources) {
                return std::shared_ptr<PeriodicLoads>(self, &self->load_periodically(sources));
            },
            py::arg("sources"));
}

void bind_parameters(py::module_& module) {
    py::enum_<roce::LoadBalancing>(module, "LoadBalancing")
        .value("ECMP", roce::LoadBalancing::ecmp)
        .value("FLOWLET", roce::LoadBalancing::flowlet)
        .value("ADAPTIVE", roce::LoadBalancing::adaptive);
    py::enum_<roce::Recovery>(module, "Recovery")
        .value("GO_BACK_N", roce::Recovery::go_back_n)
        .value("SELECTIVE_REPEAT", roce::Recovery::selective_repeat);
    const auto set_red = [](roce::Parameters& self, const Array<std::int64_t>& kmin_bytes,
                            const Array<std::int64_t>& kmax_bytes, const Array<double>& pmax) {
        self.red.clear();
        for (py::ssize_t i = 0; i < kmin_bytes.size(); ++i) {
            self.red.push_back({kmin_bytes.at(i), kmax_bytes.at(i), pmax.at(i)});
        }
    };
    using roce::Parameters;
    py::class_<Parameters>(module, "RoceParameters")
        .def(py::init<>())
        .def_readwrite("wire", &Parameters::wire)
        .def_readwrite("cell_packets", &Parameters::cell_packets)
        .def_readwrite("pfc_frame_bytes", &Parameters::pfc_frame_bytes)
        .def_readwrite("transport", &Parameters::transport)
        .def_readwrite("recovery", &Parameters::recovery)
        .def_readwrite("retransmission_timeout_ps", &Parameters::retransmission_timeout_ps)
        .def_readwrite("nack_interval_ps", &Parameters::nack_interval_ps)
        .def_readwrite("max_retries", &Parameters::max_retries)
        .def_readwrite("congestion", &Parameters::congestion)
        .def_readwrite("switch_buffer_bytes", &Parameters::switch_buffer_bytes)
        .def_readwrite("reserve_bytes", &Parameters::reserve_bytes)
        .def_readwrite("resume_offset_bytes", &Parameters::resume_offset_bytes)
        .def_readwrite("has_pfc", &Parameters::has_pfc)
        .def(
            "set_headroom",
            [](Parameters& self, const Array<std::int64_t>& bytes) {
                self.headroom_bytes = to_vector<std::int64_t>(bytes);
            },
            py::arg("bytes"))
        .def(
            "set_threshold_shift",
            [](Parameters& self, const Array<std::uint8_t>& shift) {
                self.threshold_shift = to_vector<std::uint8_t>(shift);
            },
            py::arg("shift"))
        .def(
            "set_credit",
            [](Parameters& self, const Array<std::int64_t>& bytes) {
                self.credit_bytes = to_vector<std::int64_t>(bytes);
            },
            py::arg("bytes"))
        .def("set_red", set_red, py::arg("kmin_bytes"), py::arg("kmax_bytes"), py::arg("pmax"))
        .def_readwrite("load_balancing", &Parameters::load_balancing)
        .def_readwrite("flowlet_gap_ps", &Parameters::flowlet_gap_ps)
        .def_readwrite("reroute_delay_ps", &Parameters::reroute_delay_ps)
        .def_readwrite("seed", &Parameters::seed)
        .def_readwrite("skip_tolerance", &Parameters::skip_tolerance);
}

py::dict figures_of(const roce::LinkFigures& figures) {
    py::dict result;
    result["packets"] = to_array(figures.packets);
    result["wire_bytes"] = to_array(figures.wire_bytes);
    result["payload_bytes"] = to_array(figures.payload_bytes);
    result["busy_ps"] = to_array(figures.busy_ps);
    result["paused_ps"] = to_array(figures.paused_ps);
    result["pauses"] = to_array(figures.pauses);
    result["marks"] = to_array(figures.marks);
    result["drops"] = to_array(figures.drops);
    result["queued_bytes"] = to_array(figures.queued_bytes);
    return result;
}

py::dict series_of(const roce::TimeSeries& series) {
    const auto samples = static_cast<py::ssize_t>(series.at_ps.size());
    const auto table = [&](const std::vector<std::int64_t>& values) {
        const py::ssize_t links = samples > 0 ? static_cast<py::ssize_t>(values.size()) / samples : 0;
        return to_array(values).reshape({samples, links});
    };
    py::dict result;
    result["at_ps"] = to_array(series.at_ps);
    result["wire_bytes"] = table(series.wire_bytes);
    result["queued_bytes"] = table(series.queued_bytes);
    result["paused_ps"] = table(series.paused_ps);
    result["pauses"] = table(series.pauses);
    result["marks"] = table(series.marks);
    return result;
}

void bind_packet_simulation(py::module_& module) {
    py::class_<PacketSimulation, Simulation, std::shared_ptr<PacketSimulation>>(module, "PacketSimulation")
        .def("figures", [](PacketSimulation& self) { return figures_of(self.figures()); })
        .def("largest_queues_bytes", [](PacketSimulation& self) { return to_array(self.largest_queues_bytes()); })
        .def("packet_hops", &PacketSimulation::packet_hops)
        .def("skipped_ps", &PacketSimulation::skipped_ps)
        .def("look_effort",
             [](PacketSimulation& self) {
                 const roce::LookEffort effort = self.look_effort();
                 return py::make_tuple(effort.instants, effort.units);
             })
        .def("sample_every", &PacketSimulation::sample_every, py::arg("interval_ps"))
        .def("time_series", [](PacketSimulation& self) { return series_of(self.time_series()); })
        .def("keep_log", &PacketSimulation::keep_log, py::arg("is_kept"))
        .def("pauses",
             [](PacketSimulation& self) {
                 py::list rows;
                 for (const roce::PauseEvent& event : self.pauses()) {
                     rows.append(py::make_tuple(event.at_ps, event.link, event.priority, event.is_pause));
                 }
                 return rows;
             })
        .def("acknowledgements",
             [](PacketSimulation& self) {
                 py::list rows;
                 for (const roce::Acknowledgement& ack : self.acknowledgements()) {
                     rows.append(py::make_tuple(ack.flow.graph, ack.flow.flow, ack.at_ps));
                 }
                 return rows;
             })
        .def("set_link_up", &PacketSimulation::set_link_up, py::arg("link"), py::arg("is_up"))
        .def("set_capacity_share", &PacketSimulation::set_capacity_share, py::arg("link"), py::arg("share"))
        .def("set_storm", &PacketSimulation::set_storm, py::arg("link"), py::arg("priority"), py::arg("is_storming"));
    module.def(
        "make_packet_simulation",
        [](Network network, std::uint32_t ecmp_seed, const roce::Parameters& parameters) {
            return std::shared_ptr<PacketSimulation>(make_packet_simulation(std::move(network), ecmp_seed, parameters));
        },
        py::arg("network"), py::arg("ecmp_seed"), py::arg("parameters"));
}

}  // namespace

void bind_simulation(py::module_& module) {
    bind_link_log(module);
    bind_base(module);
    bind_flow_simulation(module);
    bind_parameters(module);
    bind_packet_simulation(module);
}

}  // namespace netsim
