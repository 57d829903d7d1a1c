// Python bindings of flights, logs and the loop; vidur_pd/_core.pyi describes the module.
#include "bindings.hpp"
#include "loop.hpp"

namespace serving {

namespace {

Stage make_stage(TimePs compute_ps, TimePs communication_ps, std::int32_t load, TimePs host_ps,
                 const std::vector<TimePs>& phase_ps, TimePs estimated_ps, double alone_ps,
                 const std::vector<std::array<double, 3>>& beside) {
    Stage stage;
    stage.alone_ps = alone_ps;
    for (const auto& [compute, communication, share] : beside) stage.beside.push_back({compute, communication, share});
    stage.compute_ps = compute_ps;
    stage.communication_ps = communication_ps;
    stage.idle_exposed_ps = stage.exposed_ps = stage.exposed_at(1.0);
    stage.load = load;
    stage.host_ps = host_ps;
    stage.estimated_ps = estimated_ps;
    for (std::size_t phase = 0; phase < std::min(phase_ps.size(), kComputePhases); ++phase) {
        stage.phase_ps[phase] = phase_ps[phase];
    }
    return stage;
}

py::dict columns_of(const Runs& runs) {
    py::dict columns;
#define RUN_COLUMN(name) columns[#name] = array(runs.name);
    RUN_COLUMNS(RUN_COLUMN)
#undef RUN_COLUMN
    py::list phases;
    for (const auto& phase_ps : runs.phase_ps) phases.append(array(phase_ps));
    columns["phase_ps"] = phases;
    return columns;
}

py::dict columns_of(const RequestColumns& rows) {
    py::dict columns;
    columns["index"] = array(rows.index);
    columns["status"] = array(rows.status);
#define REQUEST_FIGURE(type, name, is_stage) columns[#name] = array(rows.name);
#include "request_figures.inc"
    columns["reasons"] = rows.reasons;
    return columns;
}

void bind_logs(py::module_& module) {
    py::class_<IterationLog>(module, "IterationLog")
        .def_readonly("iterations", &IterationLog::iterations)
        .def_property_readonly("busy_ps", [](const IterationLog& log) { return array(log.busy_ps); })
        .def_property_readonly("computing_ps", [](const IterationLog& log) { return array(log.computing_ps); })
        .def_readonly("compute_ps", &IterationLog::compute_ps)
        .def_readonly("communication_ps", &IterationLog::communication_ps)
        .def_readonly("idle_communication_ps", &IterationLog::idle_communication_ps)
        .def_readonly("estimated_ps", &IterationLog::estimated_ps)
        .def_property_readonly("gap_counts", &IterationLog::gaps)
        .def("kv_block_seconds",
             [](IterationLog& log, std::int32_t instance) { return log.kv_use().block_seconds(instance); })
        .def("kv_peak", [](IterationLog& log, std::int32_t instance) { return log.kv_use().peak(instance); })
        .def("take_runs", [](IterationLog& log) { return columns_of(log.take_runs()); });
    py::class_<RequestLog>(module, "RequestLog")
        .def_property_readonly("ended", &RequestLog::ended)
        .def("__len__", &RequestLog::size)
        .def("take", [](RequestLog& log) { return columns_of(log.take()); });
}

const char* name_of(Notice::What what) {
    switch (what) {
        case Notice::What::kCall:
            return "call";
        case Notice::What::kBeforeStep:
            return "before_step";
        case Notice::What::kSchedule:
            return "schedule";
        case Notice::What::kPrice:
            return "price";
        case Notice::What::kParts:
            return "parts";
        case Notice::What::kCommunication:
            return "communication";
        case Notice::What::kLaunch:
            return "launch";
        case Notice::What::kLaunched:
            return "launched";
        case Notice::What::kAccept:
            return "accept";
        case Notice::What::kPrefilled:
            return "prefilled";
        case Notice::What::kArrived:
            return "arrived";
    }
    throw BrokenInvariant("a notice without a name");
}

void bind_notice(py::module_& module) {
    py::class_<Notice>(module, "Notice")
        .def_property_readonly("what", [](const Notice& notice) { return name_of(notice.what); })
        .def_readonly("instance", &Notice::instance)
        .def_readonly("rank", &Notice::rank)
        .def_readonly("number", &Notice::number)
        .def_readonly("flight", &Notice::flight)
        .def_readonly("request", &Notice::request)
        .def_readonly("is_failed", &Notice::is_failed);
}

}  // namespace

void bind_flight(py::module_& module) {
    py::class_<Stage>(module, "Stage")
        .def(py::init(&make_stage), py::arg("compute_ps"), py::arg("communication_ps"), py::arg("load"),
             py::arg("host_ps") = 0, py::arg("phase_ps") = std::vector<TimePs>(), py::arg("estimated_ps") = 0,
             py::arg("alone_ps") = 0.0, py::arg("beside") = std::vector<std::array<double, 3>>())
        .def_readonly("compute_ps", &Stage::compute_ps)
        .def_readonly("communication_ps", &Stage::communication_ps)
        .def_readonly("exposed_ps", &Stage::exposed_ps)
        .def_readonly("stretch", &Stage::stretch)
        .def_readonly("load", &Stage::load);
    py::class_<Flight, FlightPtr>(module, "Flight")
        .def(py::init([](std::int32_t instance, std::vector<Stage> stages, const Numbers& compute_ps, TimePs start_ps) {
                 Flight flight;
                 flight.instance = instance;
                 flight.stages = std::move(stages);
                 flight.compute_ps = values_of(compute_ps);
                 flight.start_ps = start_ps;
                 return flight;
             }),
             py::arg("instance"), py::arg("stages"), py::arg("compute_ps"), py::arg("start_ps") = 0)
        .def_readonly("number", &Flight::number)
        .def_readonly("instance", &Flight::instance)
        .def_readonly("batch", &Flight::batch)
        .def_readonly("stages", &Flight::stages)
        .def_readonly("start_ps", &Flight::start_ps)
        .def_property_readonly("compute_ps", [](const Flight& flight) { return array(flight.compute_ps); })
        .def_property(
            "ends_ps", [](const Flight& flight) { return array(flight.ends_ps); },
            [](Flight& flight, const Numbers& ends_ps) { flight.ends_ps = values_of(ends_ps); })
        .def_property_readonly("end_ps", [](const Flight& flight) { return flight.ends_ps.back(); })
        .def_readonly("stage_begins_ps", &Flight::stage_begins_ps)
        .def_readonly("stage_ends_ps", &Flight::stage_ends_ps)
        .def_property_readonly("steps", &Flight::steps)
        .def_property_readonly("is_run", &Flight::is_run)
        .def_property_readonly("is_pipelined", &Flight::is_pipelined)
        .def_property_readonly("communication_ps", &Flight::communication_ps)
        .def(
            "set_stages",
            [](Flight& flight, std::vector<Stage> stages, const Numbers& compute_ps) {
                flight.stages = std::move(stages);
                flight.compute_ps = values_of(compute_ps);
            },
            py::arg("stages"), py::arg("compute_ps"));
    module.def(
        "set_out",
        [](Flight& flight, std::vector<TimePs> stage_free_ps) {
            set_out(flight, stage_free_ps);
            return stage_free_ps;
        },
        py::arg("flight"), py::arg("stage_free_ps"));
    module.def("retime_steps", &retime_steps, py::arg("flight"), py::arg("stretch"), py::arg("now_ps"));
    module.def(
        "retime_stages",
        [](const std::vector<FlightPtr>& flights, const std::vector<std::vector<double>>& stretches,
           std::vector<TimePs> stage_free_ps, TimePs now_ps) {
            retime_stages(flights, stretches, stage_free_ps, now_ps);
            return stage_free_ps;
        },
        py::arg("flights"), py::arg("stretches"), py::arg("stage_free_ps"), py::arg("now_ps"));
    module.def("truncate", &truncate, py::arg("flight"), py::arg("now_ps"));
}

void bind_loop(py::module_& module) {
    bind_logs(module);
    bind_notice(module);
    py::class_<Loop>(module, "Loop")
        .def(py::init<std::int64_t, bool, std::shared_ptr<netsim::LinkLog>>(), py::arg("instances"),
             py::arg("keeps_runs"), py::arg("links"))
        .def(
            "add_instance",
            [](Loop& loop, std::vector<std::shared_ptr<RankState>> ranks, std::shared_ptr<Policy> policy,
               std::int64_t stages, bool has_runs, bool has_drafts, bool tells_launches, bool launches_itself,
               std::vector<Pricing> pricing) {
                const Traits traits{has_runs, has_drafts, tells_launches, launches_itself};
                return loop.add_instance(std::move(ranks), std::move(policy), stages, traits, std::move(pricing));
            },
            py::arg("ranks"), py::arg("policy"), py::arg("stages"), py::kw_only(), py::arg("has_runs"),
            py::arg("has_drafts"), py::arg("tells_launches"), py::arg("launches_itself"), py::arg("pricing"))
        .def("run", &Loop::run, py::arg("before_ps"), py::call_guard<py::gil_scoped_release>())
        .def("batches",
             [](const Loop& loop) {
                 const PricedBatches& batches = loop.batches();
                 return py::make_tuple(array(batches.new_tokens), array(batches.kv_tokens), batches.requests,
                                       batches.logit_rows);
             })
        .def("next_event_ps", &Loop::next_event_ps)
        .def_property_readonly("now_ps", &Loop::now_ps)
        .def_property_readonly("executed", &Loop::executed)
        .def("move_to", &Loop::move_to, py::arg("at_ps"))
        .def(
            "schedule_call",
            [](Loop& loop, TimePs at_ps, int priority) {
                return loop.schedule_call(at_ps, static_cast<Priority>(priority));
            },
            py::arg("at_ps"), py::arg("priority"))
        .def("wake", &Loop::wake, py::arg("instance"))
        .def("note_kv_use", &Loop::note_kv_use, py::arg("instance"))
        .def("schedule_landing", &Loop::schedule_landing, py::arg("flight"))
        .def(
            "set_out",
            [](Loop& loop, const FlightPtr& flight) { set_out(*flight, loop.stage_free_ps(flight->instance)); },
            py::arg("flight"))
        .def("land", &Loop::land, py::arg("flight"))
        .def("break_off", &Loop::break_off, py::arg("flight"))
        .def("halt", &Loop::halt, py::arg("instance"))
        .def("resume", &Loop::resume, py::arg("instance"))
        .def("is_up", &Loop::is_up, py::arg("instance"))
        .def("set_pace", &Loop::set_pace, py::arg("instance"), py::arg("factor"))
        .def(
            "set_communication",
            [](Loop& loop, std::int32_t instance, std::int64_t stage, std::int64_t number, TimePs communication_ps,
               std::int32_t load) { loop.set_communication(instance, stage, number, {communication_ps, load}); },
            py::arg("instance"), py::arg("stage"), py::arg("number"), py::arg("communication_ps"), py::arg("load"))
        .def("forget_communication", &Loop::forget_communication, py::arg("instance"))
        .def("decode_run", &Loop::decode_run)
        .def("set_accepted", &Loop::set_accepted, py::arg("accepted"))
        .def("advance_with", &Loop::advance_with, py::arg("network"))
        .def("arrive", &Loop::arrive, py::arg("at_ps"), py::arg("graphs"))
        .def("couple", &Loop::couple, py::arg("loads"))
        .def("traffic_changes", &Loop::traffic_changes, py::arg("at_ps"))
        .def(
            "remember",
            [](Loop& loop, const Numbers& links, const Reals& link_bytes, const Reals& link_flows,
               const Reals& link_busy_ps) {
                return loop.remember(
                    {values_of(links), values_of(link_bytes), values_of(link_flows), values_of(link_busy_ps)});
            },
            py::arg("links"), py::arg("link_bytes"), py::arg("link_flows"), py::arg("link_busy_ps"))
        .def("complete", &Loop::complete, py::arg("request"))
        .def(
            "reject",
            [](Loop& loop, Request& request, const std::string& reason) {
                loop.give_up(request, Status::kRejected, reason);
            },
            py::arg("request"), py::arg("reason"))
        .def(
            "fail",
            [](Loop& loop, Request& request, const std::string& reason) {
                loop.give_up(request, Status::kFailed, reason);
            },
            py::arg("request"), py::arg("reason"))
        .def("flights", &Loop::flights, py::arg("instance"))
        .def("flying", &Loop::flying)
        .def("estimates_met", &Loop::estimates_met, py::arg("instance"))
        .def("set_waits_for_room", &Loop::set_waits_for_room, py::arg("instance"), py::arg("waits"))
        .def_readonly("iterations", &Loop::iterations)
        .def_readonly("requests", &Loop::requests);
}

}  // namespace serving
