// Python bindings of running iterations, logs and the loop; vidur_pd/_core.pyi describes the module.
#include "bindings.hpp"
#include "loop.hpp"

namespace serving {

namespace {

Stage make_stage(TimePs compute_ps, TimePs communication_ps, std::int32_t load, TimePs host_ps,
                 const std::vector<TimePs>& phase_ps, TimePs estimated_ps, double not_overlapped_ps,
                 const std::vector<std::array<double, 3>>& overlapped, TimePs prepare_ps, TimePs launch_ps,
                 TimePs attention_ps, TimePs ffn_ps, std::vector<TimePs> pauses_ps, TimePs hand_over_ps) {
    Stage stage;
    stage.attention_ps = attention_ps;
    stage.ffn_ps = ffn_ps;
    stage.pauses_ps = std::move(pauses_ps);
    stage.host = {prepare_ps, launch_ps, hand_over_ps};
    stage.not_overlapped_ps = not_overlapped_ps;
    for (const auto& [compute, communication, share] : overlapped)
        stage.overlapped.push_back({compute, communication, share});
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

// [instances and their sizes], next to which instance and which size.
py::dict columns_of(const std::vector<std::vector<Activity>>& activity) {
    py::dict columns;
    std::vector<std::int64_t> instances, sizes;
    for (std::size_t instance = 0; instance < activity.size(); ++instance) {
        for (std::size_t size = 0; size < activity[instance].size(); ++size) {
            instances.push_back(static_cast<std::int64_t>(instance));
            sizes.push_back(static_cast<std::int64_t>(size));
        }
    }
    columns["instance"] = array(instances);
    columns["size"] = array(sizes);
    const auto add = [&](const char* name, auto member) {
        std::vector<std::decay_t<decltype(Activity{}.*member)>> values;
        for (const auto& of_instance : activity) {
            for (const Activity& of_size : of_instance) values.push_back(of_size.*member);
        }
        columns[name] = array(values);
    };
    add("iterations", &Activity::iterations);
    add("busy_ps", &Activity::busy_ps);
    add("computing_ps", &Activity::computing_ps);
    add("host_ps", &Activity::host_ps);
    add("requests", &Activity::requests);
    add("new_tokens", &Activity::new_tokens);
    add("kv_tokens", &Activity::kv_tokens);
    add("token_pairs", &Activity::token_pairs);
    add("decodes", &Activity::decodes);
    add("decode_kv", &Activity::decode_kv);
    add("request_s", &Activity::request_s);
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
        .def_property_readonly("busy_at_arrival_ps",
                               [](const IterationLog& log) { return array(log.busy_at_arrival_ps); })
        .def_property_readonly("computing_ps", [](const IterationLog& log) { return array(log.computing_ps); })
        .def_property_readonly("attention_ps", [](const IterationLog& log) { return array(log.attention_ps); })
        .def_property_readonly("ffn_ps", [](const IterationLog& log) { return array(log.ffn_ps); })
        .def_property_readonly("activity",
                               [](const IterationLog& log) {
                                   py::list kinds;
                                   for (const auto& of_kind : log.activity) kinds.append(columns_of(of_kind));
                                   return kinds;
                               })
        .def_readonly("compute_ps", &IterationLog::compute_ps)
        .def_readonly("communication_ps", &IterationLog::communication_ps)
        .def_readonly("idle_communication_ps", &IterationLog::idle_communication_ps)
        .def_readonly("estimated_ps", &IterationLog::estimated_ps)
        .def_property_readonly("gap_counts", &IterationLog::gaps)
        .def("kv_block_seconds",
             [](IterationLog& log, std::int32_t instance) { return log.kv_use().block_seconds(instance); })
        .def("kv_peak", [](IterationLog& log, std::int32_t instance) { return log.kv_use().peak(instance); })
        .def("take_runs", [](IterationLog& log) { return columns_of(log.take_runs()); })
        .def("take_members", [](IterationLog& log) {
            const Members members = log.take_members();
            py::dict columns;
            columns["number"] = array(members.number);
            columns["request"] = array(members.request);
            columns["new_tokens"] = array(members.new_tokens);
            columns["kv_tokens"] = array(members.kv_tokens);
            return columns;
        });
    py::class_<RequestLog>(module, "RequestLog")
        .def_property_readonly("ended", &RequestLog::ended)
        .def("__len__", &RequestLog::size)
        .def("take", [](RequestLog& log) { return columns_of(log.take()); });
}

void bind_notices(py::module_& module) {
    py::class_<CallDue>(module, "CallDue").def_readonly("number", &CallDue::number);
    py::class_<BeforeStep>(module, "BeforeStep").def_readonly("instance", &BeforeStep::instance);
    py::class_<DecideIteration>(module, "DecideIteration")
        .def_readonly("instance", &DecideIteration::instance)
        .def_readonly("steps", &DecideIteration::steps);
    py::class_<PriceIteration>(module, "PriceIteration")
        .def_readonly("instance", &PriceIteration::instance)
        .def_readonly("iteration", &PriceIteration::iteration);
    py::class_<PriceNextHost>(module, "PriceNextHost")
        .def_readonly("instance", &PriceNextHost::instance)
        .def_readonly("batch", &PriceNextHost::batch);
    py::class_<PriceOperators>(module, "PriceOperators").def_readonly("instance", &PriceOperators::instance);
    py::class_<PriceCollectives>(module, "PriceCollectives")
        .def_readonly("instance", &PriceCollectives::instance)
        .def_readonly("stage", &PriceCollectives::stage)
        .def_readonly("number", &PriceCollectives::number);
    py::class_<LaunchIteration>(module, "LaunchIteration")
        .def_readonly("instance", &LaunchIteration::instance)
        .def_readonly("iteration", &LaunchIteration::iteration);
    py::class_<IterationLaunched>(module, "IterationLaunched")
        .def_readonly("instance", &IterationLaunched::instance)
        .def_readonly("iteration", &IterationLaunched::iteration);
    py::class_<AcceptDrafts>(module, "AcceptDrafts")
        .def_readonly("instance", &AcceptDrafts::instance)
        .def_readonly("iteration", &AcceptDrafts::iteration);
    py::class_<PromptPrefilled>(module, "PromptPrefilled").def_readonly("request", &PromptPrefilled::request);
    py::class_<TiersDue>(module, "TiersDue").def_readonly("instance", &TiersDue::instance);
    py::class_<PromptsComputed>(module, "PromptsComputed")
        .def_readonly("instance", &PromptsComputed::instance)
        .def_readonly("prompts", &PromptsComputed::prompts);
    py::class_<InstanceRests>(module, "InstanceRests").def_readonly("instance", &InstanceRests::instance);
    py::class_<RequestsCompleted>(module, "RequestsCompleted").def_readonly("requests", &RequestsCompleted::requests);
    py::class_<GraphEnded>(module, "GraphEnded")
        .def_readonly("graph", &GraphEnded::graph)
        .def_readonly("is_failed", &GraphEnded::is_failed);
}

// Methods need an instance that has been added to a loop.
Loop& loop_of(const Instance& instance) {
    ensure(instance.loop != nullptr, "an instance that has been added to a loop");
    return *instance.loop;
}

void bind_instance(py::module_& module) {
    py::class_<Instance, InstancePtr>(module, "Instance")
        .def(py::init<std::int32_t, std::vector<std::shared_ptr<RankState>>, std::shared_ptr<Policy>, std::int64_t>(),
             py::arg("index"), py::arg("ranks"), py::arg("policy"), py::arg("stages"))
        .def_readonly("index", &Instance::index)
        .def_readonly("is_up", &Instance::is_up)
        .def_readonly("running_iterations", &Instance::running_iterations)
        .def(
            "set_waits_for_room", [](Instance& instance, bool waits) { instance.waits_for_room = waits; },
            py::arg("waits"))
        .def(
            "set_polls", [](Instance& instance, bool polls) { instance.polls = polls; }, py::arg("polls"))
        .def_property_readonly("is_idle", &Instance::is_idle)
        .def_readonly("iterations_ended", &Instance::iterations_ended)
        .def(
            "hold", [](Instance& instance, TimePs until_ps) { loop_of(instance).hold(instance.index, until_ps); },
            py::arg("until_ps"))
        .def("wake", [](Instance& instance) { loop_of(instance).wake(instance.index); })
        .def("note_kv_use", [](Instance& instance) { return loop_of(instance).note_kv_use(instance.index); })
        .def(
            "break_off",
            [](Instance& instance, const RunningIterationPtr& iteration) {
                return loop_of(instance).break_off(iteration);
            },
            py::arg("iteration"))
        .def("halt", [](Instance& instance) { return loop_of(instance).halt(instance.index); })
        .def("resume", [](Instance& instance) { loop_of(instance).resume(instance.index); })
        .def(
            "set_compute_slowdown",
            [](Instance& instance, double factor) { loop_of(instance).set_compute_slowdown(instance.index, factor); },
            py::arg("factor"))
        .def(
            "set_communication",
            [](Instance& instance, std::int64_t stage, std::int64_t number, TimePs communication_ps,
               std::int32_t load) {
                loop_of(instance).set_communication(instance.index, stage, number, {communication_ps, load});
            },
            py::arg("stage"), py::arg("number"), py::arg("communication_ps"), py::arg("load"))
        .def("forget_communication", [](Instance& instance) { loop_of(instance).forget_communication(instance.index); })
        .def("estimates_met", [](const Instance& instance) {
            std::vector<std::int64_t> numbers;
            for (std::size_t number = 0; number < instance.has_met.size(); ++number) {
                if (instance.has_met[number]) numbers.push_back(static_cast<std::int64_t>(number));
            }
            return numbers;
        });
}

}  // namespace

void bind_running_iteration(py::module_& module) {
    py::class_<Stage>(module, "Stage")
        .def(py::init(&make_stage), py::arg("compute_ps"), py::arg("communication_ps"), py::arg("load"),
             py::arg("host_ps") = 0, py::arg("phase_ps") = std::vector<TimePs>(), py::arg("estimated_ps") = 0,
             py::arg("not_overlapped_ps") = 0.0, py::arg("overlapped") = std::vector<std::array<double, 3>>(),
             py::arg("prepare_ps") = 0, py::arg("launch_ps") = 0, py::arg("attention_ps") = 0, py::arg("ffn_ps") = 0,
             py::arg("pauses_ps") = std::vector<TimePs>(), py::arg("hand_over_ps") = 0)
        .def_readonly("compute_ps", &Stage::compute_ps)
        .def_readonly("host_ps", &Stage::host_ps)
        .def_property_readonly("pauses_ps", [](const Stage& stage) { return array(stage.pauses_ps); })
        .def_readonly("communication_ps", &Stage::communication_ps)
        .def_readonly("slowdown", &Stage::slowdown)
        .def_readonly("load", &Stage::load);
    py::class_<RunningIteration, RunningIterationPtr>(module, "RunningIteration")
        .def_readonly("number", &RunningIteration::number)
        .def_readonly("instance", &RunningIteration::instance)
        .def_readonly("batch", &RunningIteration::batch)
        .def_readonly("stages", &RunningIteration::stages)
        .def_readonly("start_ps", &RunningIteration::start_ps)
        .def_property_readonly("compute_ps",
                               [](const RunningIteration& iteration) { return array(iteration.compute_ps); })
        .def_property(
            "ends_ps", [](const RunningIteration& iteration) { return array(iteration.ends_ps); },
            [](RunningIteration& iteration, const Numbers& ends_ps) { iteration.ends_ps = values_of(ends_ps); })
        .def_property_readonly("end_ps", [](const RunningIteration& iteration) { return iteration.ends_ps.back(); })
        .def_property_readonly("steps", &RunningIteration::steps)
        .def_property_readonly("is_run", &RunningIteration::is_run)
        .def_property_readonly("is_pipelined", &RunningIteration::is_pipelined)
        .def_property_readonly("communication_ps", &RunningIteration::communication_ps)
        .def(
            "set_stages",
            [](RunningIteration& iteration, std::vector<Stage> stages, const Numbers& compute_ps) {
                iteration.stages = std::move(stages);
                iteration.compute_ps = values_of(compute_ps);
            },
            py::arg("stages"), py::arg("compute_ps"));
}

void bind_host_clock(py::module_& module) {
    py::class_<HostClock>(module, "HostClock")
        .def(py::init<bool, bool>(), py::kw_only(), py::arg("plans_ahead"), py::arg("launches_apart") = false)
        .def(
            "expose",
            [](const HostClock& clock, const std::array<TimePs, 2>& work, TimePs decided_ps, TimePs start_ps,
               const Numbers& device_ps, TimePs communication_ps, TimePs hand_over_ps) {
                std::vector<TimePs> taken_ps = values_of(device_ps);
                const auto launched_ps =
                    clock.expose({work[0], work[1], hand_over_ps}, decided_ps, start_ps, communication_ps, taken_ps);
                return std::pair(array(taken_ps), array(launched_ps));
            },
            py::arg("work"), py::kw_only(), py::arg("decided_ps"), py::arg("start_ps"), py::arg("device_ps"),
            py::arg("communication_ps") = 0, py::arg("hand_over_ps") = 0)
        .def("end", &HostClock::end, py::kw_only(), py::arg("launched_ps"), py::arg("began_ps"), py::arg("ended_ps"))
        .def("ready", &HostClock::ready, py::arg("decided_ps"));
}

void bind_loop(py::module_& module) {
    bind_host_clock(module);
    bind_logs(module);
    bind_instance(module);
    bind_notices(module);
    py::class_<Loop>(module, "Loop")
        .def(py::init([](std::int64_t instances, bool keeps_runs, std::shared_ptr<netsim::LinkLog> links,
                         bool keeps_members) {
                 return std::make_unique<Loop>(instances, keeps_runs, keeps_members, std::move(links));
             }),
             py::arg("instances"), py::arg("keeps_runs"), py::arg("links"), py::arg("keeps_members") = false)
        .def(
            "add",
            [](Loop& loop, InstancePtr instance, bool has_runs, bool has_drafts, bool reports_launches,
               bool launches_itself, std::vector<Pricing> pricing, bool reports_rest, bool launches_apart,
               Tokens replayed_tokens) {
                loop.add(std::move(instance),
                         {has_runs, has_drafts, reports_launches, reports_rest, launches_apart, launches_itself,
                          replayed_tokens},
                         std::move(pricing));
            },
            py::keep_alive<2, 1>(), py::arg("instance"), py::kw_only(), py::arg("has_runs"), py::arg("has_drafts"),
            py::arg("reports_launches"), py::arg("launches_itself"), py::arg("pricing"),
            py::arg("reports_rest") = false, py::arg("launches_apart") = false,
            py::arg("replayed_tokens") = Traits{}.replayed_tokens)
        .def(
            "serve_through",
            [](Loop& loop, std::int64_t servers, TimePs message_ps, TimePs process_ps, TimePs send_ps) {
                loop.serve_through(servers, {message_ps, process_ps, send_ps});
            },
            py::arg("servers"), py::kw_only(), py::arg("message_ps"), py::arg("process_ps"), py::arg("send_ps"))
        .def("work_of_server", &Loop::work_of_server, py::arg("server"), py::arg("work_ps"))
        .def("deliver", &Loop::deliver, py::arg("request"))
        .def("note_arrival", &Loop::note_arrival)
        .def("report_completions", &Loop::report_completions)
        .def("run", &Loop::run, py::arg("before_ps"), py::call_guard<py::gil_scoped_release>())
        .def("batches",
             [](const Loop& loop) {
                 const PricedBatches& batches = loop.batches();
                 return py::make_tuple(array(batches.new_tokens), array(batches.kv_tokens), batches.requests,
                                       batches.logit_rows);
             })
        .def(
            "set_next_host", [](Loop& loop, const Stage& stage) { loop.set_next_host(stage.host); }, py::arg("stage"))
        .def("next_event_ps", &Loop::next_event_ps)
        .def_property_readonly("now_ps", &Loop::now_ps)
        .def_property_readonly("executed", &Loop::executed)
        .def(
            "schedule_call",
            [](Loop& loop, TimePs at_ps, int priority) {
                return loop.schedule_call(at_ps, static_cast<Priority>(priority));
            },
            py::arg("at_ps"), py::arg("priority"))
        .def("schedule_end", &Loop::schedule_end, py::arg("iteration"))
        .def(
            "set_end_times",
            [](Loop& loop, const RunningIterationPtr& iteration) {
                set_end_times(*iteration, loop.stage_free_ps(iteration->instance));
            },
            py::arg("iteration"))
        .def("end", &Loop::end, py::arg("iteration"))
        .def(
            "await_write", [](Loop& loop, const Instance& instance) { return loop.await_write(instance.index); },
            py::arg("instance"))
        .def(
            "set_arrivals",
            [](Loop& loop, const Instance& instance, LayerArrivals& arrivals, const Numbers& at_ps,
               TimePs recomputing_ps) {
                loop.set_arrivals(instance.index, arrivals, values_of(at_ps), recomputing_ps);
            },
            py::arg("instance"), py::arg("arrivals"), py::arg("at_ps"), py::arg("recomputing_ps") = 0)
        .def("decode_run", &Loop::decode_run)
        .def("set_accepted", &Loop::set_accepted, py::arg("accepted"),
             py::arg("drafted") = std::vector<std::vector<Tokens>>())
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
        .def_readonly("iterations", &Loop::iterations)
        .def_readonly("requests", &Loop::requests);
}

}  // namespace serving
