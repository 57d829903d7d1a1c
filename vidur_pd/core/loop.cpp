#include "loop.hpp"

#include <algorithm>

namespace serving {

namespace {

constexpr std::int64_t kLongestRun = 4096;   // decode iterations in one iteration; bounds the memory of a run
constexpr netsim::Traffic kCollectives = 1;  // as in vidur_pd.execution.coupling.plan.TRAFFIC

}  // namespace

Loop::Loop(std::int64_t instances, bool keeps_runs, bool keeps_members, std::shared_ptr<netsim::LinkLog> links)
    : iterations(static_cast<std::size_t>(instances), keeps_runs, keeps_members),
      announced_(static_cast<std::size_t>(instances)),
      links_(std::move(links)) {
    instances_.reserve(announced_);
}

void Loop::add(InstancePtr instance, Traits traits, std::vector<Pricing> pricing) {
    ensure(instances_.size() < announced_, "more instances than were announced");
    ensure(static_cast<std::size_t>(instance->index) == instances_.size(), "instances are added in their order");
    ensure(instance->loop == nullptr, "an instance is in one loop");
    instance->loop = this;
    instance->traits = traits;
    instance->host = HostClock(instance->group.plans_ahead(), traits.launches_apart);
    instance->pricing = std::move(pricing);
    instance->group.count_gaps_in(iterations.gaps());
    instance->group.deliver_through(frontend_);
    instances_.push_back(std::move(instance));
}

std::optional<Notice> Loop::run(TimePs before_ps) {
    while (true) {
        while (work_.step != Step::kNone) {
            if (auto notice = proceed()) return notice;
        }
        if (!ending_.empty()) {
            work_ = {Step::kEnd, ending_.front()->instance, ending_.front()};
            ending_.pop_front();
            continue;
        }
        if (const auto completion = take_completion()) {
            return GraphEnded{completion->graph, completion->is_failed};
        }
        const auto next_ps = next_own_event_ps();
        const TimePs network_ps = network_ ? network_->next_event_ps() : netsim::kNever;
        if (std::min(next_ps.value_or(netsim::kNever), network_ps) >= before_ps) return std::nullopt;
        if (!next_ps || network_ps <= *next_ps) {
            advance_network(network_ps, next_ps);
            continue;
        }
        const Event event = queue_.top();
        queue_.pop();
        queue_.move_to(event.at_ps);
        ++executed_;
        if (event.kind == Event::Kind::kCall) return CallDue{event.number};
        if (event.kind == Event::Kind::kTraffic) {
            update_traffic();
        } else {
            begin(event);
        }
    }
}

std::optional<TimePs> Loop::next_event_ps() {
    const auto own_ps = next_own_event_ps();
    const TimePs network_ps = network_ ? network_->next_event_ps() : netsim::kNever;
    if (network_ps == netsim::kNever) return own_ps;
    return std::min(own_ps.value_or(network_ps), network_ps);
}

// The next event, those before it that no longer count dropped.
std::optional<TimePs> Loop::next_own_event_ps() {
    while (!queue_.is_empty() && !counts(queue_.top())) queue_.pop();
    return queue_.is_empty() ? std::nullopt : std::optional(queue_.top().at_ps);
}

std::int64_t Loop::schedule_call(TimePs at_ps, Priority priority) {
    queue_.schedule(at_ps, priority, Event::Kind::kCall, 0, ++calls_);
    return calls_;
}

bool Loop::counts(const Event& event) const {
    if (event.kind == Event::Kind::kCall || event.kind == Event::Kind::kTraffic) return true;
    const Instance& instance = at(event.instance);
    if (event.kind == Event::Kind::kDispatch) return instance.dispatch_at_ps == event.at_ps;
    if (event.kind == Event::Kind::kDecision) return instance.decide_at_ps == event.at_ps;
    return std::any_of(instance.running_iterations.begin(), instance.running_iterations.end(),
                       [&](const RunningIterationPtr& iteration) { return iteration->end_event == event.number; });
}

void Loop::begin(const Event& event) {
    if (event.kind == Event::Kind::kDispatch) {
        at(event.instance).dispatch_at_ps.reset();
        work_ = {Step::kDispatch, event.instance};
        return;
    }
    if (event.kind == Event::Kind::kDecision) {
        work_ = {Step::kDecideAhead, event.instance};
        return;
    }
    for (const RunningIterationPtr& iteration : at(event.instance).running_iterations) {
        if (iteration->end_event == event.number) work_ = {Step::kEnd, event.instance, iteration};
    }
}

// One step of the work at hand; a notice where Python has to do its part before the next one.
std::optional<Notice> Loop::proceed() {
    Instance& instance = at(work_.instance);
    switch (work_.step) {
        case Step::kDispatch:
            dispatch(instance);
            return work_.step == Step::kDecide ? begin_decision(instance) : std::nullopt;
        case Step::kDecideAhead:
            return begin_decision(instance);
        case Step::kDecide:
            return decide(instance);
        case Step::kPlan:
            plan(instance);
            if (instance.group.has_news_for_tiers()) return TiersDue{here()};
            return std::nullopt;
        case Step::kForm:
            work_.iteration = form(instance);
            work_.step = Step::kPrice;
            return std::nullopt;
        case Step::kPrice:
            return price(instance, *work_.iteration);
        case Step::kLaunch:
            instance.running_iterations.push_back(work_.iteration);
            work_.step = Step::kLaunched;
            return launch(instance);
        case Step::kLaunched:
            work_.step = Step::kAfterLaunch;
            work_.iteration->is_launch_to_report = instance.traits.reports_launches;
            return work_.iteration->awaited.empty() ? report_launch() : std::nullopt;
        case Step::kAfterLaunch:
            return go_on_after_launch(instance);
        case Step::kEnd:
            if (auto launched = report_launch()) return launched;
            remove(instance, work_.iteration);
            work_.step = Step::kNextHost;
            if (instance.traits.has_drafts) return AcceptDrafts{here(), work_.iteration};
            return std::nullopt;
        case Step::kNextHost:
            end_host(instance, *work_.iteration);
            work_.step = Step::kCredit;
            return ask_next_host(instance, *work_.iteration);
        case Step::kCredit:
            work_.outcome = credit(instance, *work_.iteration, work_.late_ps);
            work_.step = Step::kReport;
            return std::nullopt;
        case Step::kReport:
            return report();
        case Step::kAfterEnd:
            note_kv_use(work_.instance);
            dispatch_later(work_.instance, now_ps());
            return rest(instance);
        case Step::kNone:
            break;
    }
    return std::nullopt;
}

// Takes the next step if an iteration may start now.
void Loop::dispatch(Instance& instance) {
    work_.step = Step::kNone;
    if (instance.is_full()) return;
    if (instance.free_ps() > now_ps()) {
        dispatch_later(work_.instance, instance.free_ps());
    } else {
        work_.step = instance.plan ? Step::kForm : Step::kDecide;
    }
}

void Loop::dispatch_later(std::int32_t instance, TimePs at_ps) {
    std::optional<TimePs>& dispatch_at_ps = at(instance).dispatch_at_ps;
    if (!at(instance).is_up || (dispatch_at_ps && *dispatch_at_ps <= at_ps)) return;
    dispatch_at_ps = at_ps;
    queue_.schedule(at_ps, Priority::kDispatch, Event::Kind::kDispatch, instance, 0);
}

// Before what else happens then, arrivals included: an iteration ends when it has been launched, at the earliest.
void Loop::decide_later(Instance& instance, TimePs at_ps) {
    instance.decide_at_ps = at_ps;
    queue_.schedule(at_ps, Priority::kDecision, Event::Kind::kDecision, instance.index, 0);
}

std::optional<Notice> Loop::begin_decision(Instance& instance) {
    work_ = {Step::kDecide, instance.index};
    if (instance.waits_for_room || instance.polls) return BeforeStep{here()};
    return std::nullopt;
}

// Whether at least two decode iterations are next in which no rank's batch changes; asks policies in Python.
std::optional<Notice> Loop::decide(Instance& instance) {
    if (!instance.is_full() && instance.free_ps() > now_ps()) {  // the host has just become busy with transfers
        work_.step = Step::kNone;
        dispatch_later(work_.instance, instance.free_ps());
        return std::nullopt;
    }
    work_.step = Step::kPlan;
    instance.decide_at_ps.reset();
    const bool may_run = instance.traits.has_runs && instance.stage_free_ps.size() == 1 && !instance.polls &&
                         (!instance.decides_after_launch() || instance.launches_at_once(nullptr));
    std::int64_t steps = may_run ? instance.group.plain_decode_steps(kLongestRun) : 0;
    if (steps && instance.group.plans_ahead()) --steps;  // the last one follows the run
    if (instance.group.asks_policy()) {
        work_.offered_steps = steps;
        return DecideIteration{here(), steps};
    }
    if (steps && instance.group.is_steady()) work_.steps = steps;
    return std::nullopt;
}

// The run, or the next micro-batch; it begins now, unless an iteration is under way that has to end first.
void Loop::plan(Instance& instance) {
    if (work_.steps) {
        instance.plan = Plan{nullptr, work_.steps, now_ps()};
    } else if (auto batch = instance.group.schedule(now_ps())) {
        instance.plan = Plan{std::move(batch), 0, now_ps()};
    }
    note_kv_use(work_.instance);
    work_.step = instance.plan && !instance.is_full() ? Step::kForm : Step::kNone;
}

// What has been planned, as it begins.
RunningIterationPtr Loop::form(Instance& instance) {
    auto iteration = std::make_shared<RunningIteration>();
    const Plan plan = *std::exchange(instance.plan, std::nullopt);
    if (plan.steps) {
        iteration->compute_ps.resize(static_cast<std::size_t>(plan.steps));
        if (instance.group.plans_ahead()) instance.plan = Plan{};
    } else {
        iteration->batch = plan.batch ? plan.batch : instance.group.schedule_plain(now_ps());
        iteration->compute_ps.resize(1);
        instance.group.begin(*iteration->batch, now_ps());
        for (const auto& write : plan.awaited) iteration->awaited.emplace_back(nullptr, write);
        await_layers(*iteration);
    }
    iteration->kv_blocks = note_kv_use(work_.instance);
    iteration->number = ++launched_;
    iteration->instance = work_.instance;
    iteration->decided_ps = plan.decided_ps;
    iteration->start_ps = now_ps();
    collect(instance.group, iteration->batch.get());
    iteration->sums = batches_.sums();
    iteration->sums.has_prompts = iteration->batch && iteration->batch->prefill_tokens > 0;
    iteration->launches_at_once = instance.launches_at_once(iteration->batch.get());
    return iteration;
}

BatchSums PricedBatches::sums() const {
    BatchSums sums;
    sums.requests = static_cast<std::int64_t>(new_tokens.size());
    for (std::size_t place = 0; place < new_tokens.size(); ++place) {
        const Tokens tokens = new_tokens[place], kv = kv_tokens[place];
        sums.new_tokens += tokens;
        sums.kv_tokens += kv;
        sums.token_pairs += tokens * kv - tokens * (tokens - 1) / 2;
        if (tokens == 1 && kv > 1) {
            ++sums.decodes;
            sums.decode_kv += kv;
        }
    }
    return sums;
}

// Notes what an iteration computes; without a batch it decodes one token of every running request.
void Loop::collect(const RankGroup& group, const GroupBatch* batch) {
    PricedBatches& found = batches_;
    found.new_tokens.clear();
    found.kv_tokens.clear();
    if (!batch) {
        found.requests = group.decode_kv_tokens(found.kv_tokens);
        found.logit_rows = found.requests;
        found.new_tokens.assign(found.kv_tokens.size(), 1);
        return;
    }
    found.requests.clear();
    found.logit_rows.clear();
    for (const BatchPtr& of_rank : batch->batches) {
        found.requests.push_back(of_rank ? static_cast<std::int64_t>(of_rank->requests.size()) : 0);
        found.logit_rows.push_back(of_rank ? of_rank->logit_rows : 0);
        if (!of_rank) continue;
        found.new_tokens.insert(found.new_tokens.end(), of_rank->new_tokens.begin(), of_rank->new_tokens.end());
        found.kv_tokens.insert(found.kv_tokens.end(), of_rank->kv_tokens.begin(), of_rank->kv_tokens.end());
    }
}

// A view of it; `is_plain`: a token of every request.
aicb::RankBatches Loop::collected(bool is_plain) const {
    return {is_plain ? nullptr : batches_.new_tokens.data(), batches_.kv_tokens.data(), batches_.requests.data(),
            batches_.logit_rows.data(), batches_.requests.size()};
}

// Prices an iteration by the instance's own pricing as far as that knows it, or asks for what is missing.
std::optional<Notice> Loop::price(Instance& instance, RunningIteration& iteration) {
    if (!iteration.stages.empty()) {
        if (instance.compute_slowdown != 1.0) slow_down(iteration, instance.compute_slowdown);
        expose_host(iteration, instance.host);
        work_.step = Step::kLaunch;
        return std::nullopt;
    }
    if (instance.pricing.empty()) return PriceIteration{here(), work_.iteration};
    std::vector<Stage> stages(instance.pricing.size());
    std::fill(iteration.compute_ps.begin(), iteration.compute_ps.end(), 0);
    for (std::size_t number = 0; number < stages.size(); ++number) {
        aicb::IterationCost cost;
        if (!price_stage(instance, iteration, number, cost)) return PriceOperators{here()};
        auto& known = instance.communicated[number];
        const auto list = static_cast<std::size_t>(cost.communications);
        if (list >= known.size() || !known[list]) {
            return PriceCollectives{here(), static_cast<std::int64_t>(number), cost.communications};
        }
        Stage& stage = stages[number];
        stage.compute_ps = cost.compute_ps;
        stage.host_ps = cost.host_ps;
        stage.host = cost.host;
        stage.estimated_ps = cost.estimated_ps;
        std::copy_n(cost.phase_ps.begin(), kComputePhases, stage.phase_ps.begin());
        stage.communication_ps = stage.idle_exposed_ps = stage.exposed_ps = known[list]->communication_ps;
        stage.load = known[list]->load;
        if (static_cast<std::size_t>(cost.estimated) >= instance.has_met.size()) {
            instance.has_met.resize(static_cast<std::size_t>(cost.estimated) + 1, false);
        }
        instance.has_met[static_cast<std::size_t>(cost.estimated)] = true;
    }
    iteration.stages = std::move(stages);
    return std::nullopt;
}

// Prices one stage and adds its compute time to that of each step.
bool Loop::price_stage(Instance& instance, RunningIteration& iteration, std::size_t stage, aicb::IterationCost& cost) {
    const aicb::RankBatches batches = collected(iteration.is_run());
    if (!instance.pricing[stage]->price(batches, iteration.steps(), cost, stage_compute_ps_)) return false;
    for (std::size_t step = 0; step < iteration.compute_ps.size(); ++step) {
        iteration.compute_ps[step] += stage_compute_ps_[step];
    }
    return true;
}

void Loop::remove(Instance& instance, const RunningIterationPtr& iteration) {
    const auto place = std::find(instance.running_iterations.begin(), instance.running_iterations.end(), iteration);
    ensure(place != instance.running_iterations.end(), "an iteration ends once");
    instance.running_iterations.erase(place);
    ++instance.iterations_ended;
}

// Gives requests their tokens and stamps, and writes down what the iteration was.
GroupOutcome Loop::credit(Instance& instance, RunningIteration& iteration, TimePs late_ps) {
    book(iteration, iteration.ends_ps.back());
    const InstanceTime took = iterations.add(iteration);
    instance.group.done.compute_ps += took.compute_ps;
    instance.group.done.communication_ps += took.communication_ps;
    instance.group.done.contention_ps += took.contention_ps;
    iterations.keep_members(iteration, instance.group);
    const StepTimes times{iteration.ends_ps.front(), iteration.ends_ps.back(), late_ps};
    GroupOutcome outcome;
    if (frontend_) pass_tokens(&iteration);
    if (iteration.is_run()) {
        outcome = instance.group.advance_decode(iteration.steps(), times, iteration.passed);
        iterations.kv_use().ramp(iteration.instance, now_ps(), instance.group.used_blocks());
        if (!frontend_) iterations.add_gaps(iteration, outcome.produced);
    } else {
        outcome = instance.group.finish(*iteration.batch, draft_results_, times);
        draft_results_ = {};
    }
    const GroupBatch* batch = iteration.batch.get();
    const std::int64_t produced = outcome.produced;
    iterations.keep(iteration, {batch ? batch->requests : produced, batch ? batch->prefill_tokens : 0,
                                batch ? batch->decode_tokens : produced, instance.group.waiting_requests(),
                                instance.group.running_requests(), instance.group.used_blocks()});
    return outcome;
}

// Of the last step; in a pipeline hosts are taken to work ahead.
void Loop::end_host(Instance& instance, const RunningIteration& iteration) {
    if (iteration.launched_ps.empty()) return;
    const auto steps = static_cast<std::size_t>(iteration.steps());
    const TimePs began_ps = steps > 1 ? iteration.ends_ps[steps - 2] : iteration.start_ps;
    instance.host.end(iteration.launched_ps[steps - 1], began_ps, iteration.ends_ps.back());
}

// The host hands out tokens later than the device has them where its one thread launches the next iteration first, if
// that has been decided: by the host work of that. Between decodes that are replayed it is taken to be ahead: runs of
// them have no such delay.
std::optional<Notice> Loop::ask_next_host(Instance& instance, const RunningIteration& iteration) {
    if (!instance.decides_after_launch() || iteration.is_run() || !instance.plan) return std::nullopt;
    const std::shared_ptr<GroupBatch>& next = instance.plan->batch;
    if (iteration.launches_at_once && instance.launches_at_once(next.get())) return std::nullopt;
    collect(instance.group, next.get());
    if (instance.pricing.empty()) return PriceNextHost{here(), next};
    set_next_host(instance.pricing[0]->host_work(collected(!next)));
    return std::nullopt;
}

void Loop::set_next_host(const HostWork& work) {
    const Instance& instance = at(work_.instance);
    const TimePs launched_ps = instance.host.ready(instance.plan->decided_ps) + work.total_ps();
    work_.late_ps = std::max<TimePs>(launched_ps - work_.iteration->ends_ps.back(), 0);
}

// Gives the frontend the tokens of all steps of runs that have ended by now, in the order of their ends; `ending` is an
// iteration that no longer runs.
void Loop::pass_tokens(RunningIteration* ending) {
    struct Ended {
        TimePs at_ps;
        RunningIteration* run;
    };
    std::vector<Ended> ended;
    const auto collect_of = [&](RunningIteration& run) {
        if (!run.is_run()) return;
        if (run.passed.tokens.empty()) run.passed.tokens = at(run.instance).group.tokens_of_servers();
        for (auto step = static_cast<std::size_t>(run.passed.steps); step < run.ends_ps.size(); ++step) {
            if (run.ends_ps[step] > now_ps()) break;
            ended.push_back({run.ends_ps[step], &run});
        }
    };
    for (const InstancePtr& instance : instances_) {
        for (const RunningIterationPtr& run : instance->running_iterations) collect_of(*run);
    }
    if (ending) collect_of(*ending);
    std::stable_sort(ended.begin(), ended.end(), [](const Ended& a, const Ended& b) { return a.at_ps < b.at_ps; });
    for (const Ended& step : ended) frontend_->pass(step.run->passed, step.at_ps, *iterations.gaps());
}

// Puts on links what the collectives of an iteration have carried since this was last done. At one speed they carry
// evenly.
void Loop::book(RunningIteration& iteration, TimePs until_ps) {
    const TimePs from_ps = std::max(iteration.booked_ps, iteration.start_ps);
    const double done = steps_done(iteration, until_ps), steps = done - iteration.booked_steps;
    if (steps <= 0.0) return;
    for (const Stage& stage : iteration.stages) {
        if (!links_ || stage.load < 0) continue;
        const netsim::LinkLoad& load = *loads_[static_cast<std::size_t>(stage.load)];
        links_->spread(kCollectives, load.links, load.link_bytes, from_ps, until_ps, steps);
    }
    iteration.booked_ps = until_ps;
    iteration.booked_steps = done;
}

// Tells of the prompts that are done, one after another; those that have got all their tokens end.
std::optional<Notice> Loop::report() {
    if (!work_.outcome.computed.empty()) return PromptsComputed{here(), std::exchange(work_.outcome.computed, {})};
    if (work_.reported < work_.outcome.prefilled.size()) {
        return PromptPrefilled{work_.outcome.prefilled[work_.reported++]};
    }
    for (const RequestPtr& request : work_.outcome.completed) complete(*request);
    work_.step = Step::kAfterEnd;
    if (reports_completions_ && !work_.outcome.completed.empty()) return RequestsCompleted{work_.outcome.completed};
    return std::nullopt;
}

// Sets the times of an iteration, where that is not up to Python.
std::optional<Notice> Loop::launch(Instance& instance) {
    const RunningIterationPtr& iteration = work_.iteration;
    if (!instance.traits.launches_itself) return LaunchIteration{here(), work_.iteration};
    if (placed_) {
        for (const Stage& stage : iteration->stages) placed_->announce(work_.instance, stage.load);
        if (placed_->is_affected(work_.instance)) {
            launch_with_others(iteration);
            return std::nullopt;
        }
    }
    set_end_times(*iteration, instance.stage_free_ps);
    schedule_end(iteration);
    return std::nullopt;
}

// Tells of an iteration whose end is known, once; of one that has waited for layers when it ends, as it was not before.
std::optional<Notice> Loop::report_launch() {
    if (!std::exchange(work_.iteration->is_launch_to_report, false)) return std::nullopt;
    return IterationLaunched{here(), work_.iteration};
}

// When what follows an iteration is decided, where instances plan ahead: by the thread that has launched it, or as soon
// as it begins, where workers launch. Launching decodes that are replayed is taken to need no time, in runs of them and
// alone.
TimePs Loop::decides_next_ps(const Instance& instance, const RunningIteration& iteration) {
    const bool is_launching = !iteration.launches_at_once && !iteration.launched_ps.empty();
    return is_launching && instance.decides_after_launch() ? iteration.launched_ps.back() : iteration.start_ps;
}

// The next iteration is decided as soon as it may begin, or before, where instances plan ahead.
std::optional<Notice> Loop::go_on_after_launch(Instance& instance) {
    if (instance.group.plans_ahead() && !instance.plan) {
        const TimePs at_ps = decides_next_ps(instance, *work_.iteration);
        if (at_ps <= now_ps()) return begin_decision(instance);
        decide_later(instance, at_ps);
    }
    if (!instance.is_full()) dispatch_later(work_.instance, instance.stage_free_ps[0]);
    work_ = {};
    return std::nullopt;
}

// The work on an end is done; others hear of the load that has gone with the last iteration of an instance.
std::optional<Notice> Loop::rest(Instance& instance) {
    if (placed_ && instance.running_iterations.empty() && placed_->is_affected(work_.instance))
        traffic_changes(now_ps());
    const InstancePtr rests = instance.traits.reports_rest && !instance.group.has_work() ? here() : nullptr;
    work_ = {};
    if (rests) return InstanceRests{rests};
    return std::nullopt;
}

}  // namespace serving
