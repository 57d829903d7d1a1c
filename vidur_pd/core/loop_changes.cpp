// What comes to a loop from outside: requests that end, faults, and other traffic.
#include <algorithm>
#include <cmath>
#include <optional>

#include "loop.hpp"

namespace serving {

namespace {

// Relative change of a stretch below which an iteration in progress is left alone: keeps the work per change small, at
// an error of that order.
constexpr double kSmallestChange = 1e-3;
// Of updating instances that meet at one instant; our choice.
constexpr int kMostRounds = 4;
// Of slowing down those that meet on one link; a bound for what rounding might do.
constexpr int kMostTurns = 1000;

// Stretches with which a flight takes `factor` times as long from now on.
std::vector<double> slower(const Flight& flight, double factor, TimePs now_ps) {
    std::vector<double> stretches;
    for (const Stage& stage : flight.stages) {
        if (stage.communication_ps == 0) {
            stretches.push_back(stage.stretch);
            continue;
        }
        const TimePs step_ps =
            flight.is_pipelined() ? stage.compute_ps + stage.exposed_ps : step_period_ps(flight, now_ps);
        const double more_ps = std::ceil(static_cast<double>(step_ps) * (factor - 1.0)) + 1.0;
        stretches.push_back(
            std::max(stage.stretch, stage.stretch_for(stage.exposed_ps + static_cast<TimePs>(more_ps))));
    }
    return stretches;
}

}  // namespace

void Loop::wake(std::int32_t index) {
    Instance& instance = at(index);
    if (!instance.is_full()) {
        dispatch_later(index, now_ps());
    } else if (instance.flights[0]->is_run() && truncate(*instance.flights[0], now_ps())) {
        schedule_landing(instance.flights[0]);
    }
}

std::int64_t Loop::note_kv_use(std::int32_t instance) {
    const std::int64_t used = at(instance).group.used_blocks();
    iterations.kv_use().hold(instance, now_ps(), used);
    return used;
}

std::vector<RequestPtr> Loop::break_off(const FlightPtr& flight) {
    Instance& instance = at(flight->instance);
    remove(instance, flight);
    ensure(flight->batch != nullptr, "what may fail has one step");
    if (flight->ends_ps[0] > flight->start_ps) {
        flight->compute_ps[0] = std::min(flight->compute_ps[0], flight->ends_ps[0] - flight->start_ps);
        const InstanceTime took = iterations.add(*flight);
        instance.group.done.compute_ps += took.compute_ps;
        instance.group.done.communication_ps += took.communication_ps;
        iterations.keep(*flight, {flight->batch->requests, flight->batch->prefill_tokens, flight->batch->decode_tokens,
                                  instance.group.waiting_requests(), instance.group.running_requests(),
                                  instance.group.used_blocks()});
    }
    std::vector<RequestPtr> lost = instance.group.abandon(*flight->batch);
    note_kv_use(flight->instance);
    dispatch_later(flight->instance, now_ps());
    return lost;
}

std::vector<RequestPtr> Loop::halt(std::int32_t index) {
    Instance& instance = at(index);
    instance.is_up = false;
    instance.dispatch_at_ps.reset();
    for (const FlightPtr& flight : std::exchange(instance.flights, {})) {
        book(*flight, now_ps());
        if (flight->is_run() && keep_ended(*flight, now_ps())) credit(instance, *flight);
    }
    std::vector<RequestPtr> lost = instance.group.clear();
    note_kv_use(index);
    return lost;
}

void Loop::resume(std::int32_t index) {
    Instance& instance = at(index);
    instance.is_up = true;
    std::fill(instance.stage_free_ps.begin(), instance.stage_free_ps.end(), now_ps());
    dispatch_later(index, now_ps());
}

void Loop::set_pace(std::int32_t index, double factor) {
    at(index).pace = factor;
    cut_short(at(index));
}

// A run ends with the iteration in progress.
void Loop::cut_short(Instance& instance) {
    if (!instance.flights.empty() && truncate(*instance.flights[0], now_ps())) schedule_landing(instance.flights[0]);
}

void Loop::set_communication(std::int32_t instance, std::int64_t stage, std::int64_t number,
                             Communicated communicated) {
    auto& known = at(instance).communicated.at(static_cast<std::size_t>(stage));
    if (static_cast<std::size_t>(number) >= known.size()) known.resize(static_cast<std::size_t>(number) + 1);
    known[static_cast<std::size_t>(number)] = communicated;
}

void Loop::forget_communication(std::int32_t index) {
    for (auto& known : at(index).communicated) known.clear();
    cut_short(at(index));
}

void Loop::couple(std::vector<double> capacity_bps) {
    coupling_ = std::make_unique<FluidCoupling>(std::move(capacity_bps), announced_);
}

std::int32_t Loop::remember(LinkLoad load) {
    loads_.push_back(std::make_shared<const LinkLoad>(std::move(load)));
    if (coupling_) coupling_->remember(loads_.back());
    return static_cast<std::int32_t>(loads_.size()) - 1;
}

void Loop::add_transfer(const Links& on, const std::vector<std::int64_t>& flows) {
    if (coupling_) coupling_->add_transfer(on, flows);
}

void Loop::launch_coupled(const FlightPtr& flight) {
    coupling_->withdraw(flight->instance);
    const std::vector<double> stretches = coupling_->stretches(*flight);
    for (std::size_t stage = 0; stage < stretches.size(); ++stage) flight->stages[stage].set_stretch(stretches[stage]);
    set_out(*flight, at(flight->instance).stage_free_ps);
    schedule_landing(flight);
    enter(flight->instance);
    if (coupling_->take_shift()) {
        update_coupling();
    } else {
        hold_back();
    }
}

// Puts what an instance has in flight on its links.
void Loop::enter(std::int32_t index) {
    for (const FlightPtr& flight : at(index).flights) {
        const TimePs period_ps = step_period_ps(*flight, now_ps());
        if (period_ps > 0) coupling_->enter(*flight, period_ps);
    }
}

void Loop::update_coupling() {
    for (int round = 0; round < kMostRounds; ++round) {
        update_concerned();
        if (!coupling_->take_shift()) break;
    }
    hold_back();
}

// Each instance in turn, beside what others have on its links now.
void Loop::update_concerned() {
    for (const std::int32_t index : coupling_->take_concerned()) {
        const std::vector<FlightPtr>& flights = at(index).flights;
        coupling_->withdraw(index);
        if (flights.empty()) continue;
        std::vector<std::vector<double>> stretches;
        bool has_changed = false;
        for (const FlightPtr& flight : flights) {
            stretches.push_back(coupling_->stretches(*flight));
            for (std::size_t stage = 0; stage < flight->stages.size(); ++stage) {
                const double old = flight->stages[stage].stretch;
                has_changed |= std::abs(stretches.back()[stage] - old) > kSmallestChange * old;
            }
        }
        if (has_changed) retime(index, stretches);
        enter(index);
    }
}

// No link carries more than it can: where the rule leaves instances more, all that are there slow down alike.
void Loop::hold_back() {
    for (int turn = 0; turn < kMostTurns; ++turn) {
        const std::optional<Excess> excess = coupling_->excess();
        if (!excess) return;
        for (const std::int32_t index : excess->instances) {
            coupling_->withdraw(index);
            if (at(index).flights.empty()) continue;
            std::vector<std::vector<double>> stretches;
            for (const FlightPtr& flight : at(index).flights) {
                stretches.push_back(slower(*flight, excess->factor, now_ps()));
            }
            retime(index, stretches);
            enter(index);
        }
    }
}

void Loop::retime(std::int32_t index, const std::vector<std::vector<double>>& stretches) {
    Instance& instance = at(index);
    for (const FlightPtr& flight : instance.flights) book(*flight, now_ps());
    if (instance.flights[0]->is_pipelined()) {
        retime_stages(instance.flights, stretches, instance.stage_free_ps, now_ps());
        wake(index);
    } else {
        retime_steps(*instance.flights[0], stretches[0][0], now_ps());
    }
    for (const FlightPtr& flight : instance.flights) schedule_landing(flight);
}

void Loop::complete(Request& request) {
    request.status = Status::kCompleted;
    request.completed_ps = now_ps();
    requests.add(request);
}

void Loop::give_up(Request& request, Status status, const std::string& reason) {
    request.status = status;
    request.status_reason = reason;
    requests.add(request);
}

std::vector<std::int32_t> Loop::flying() const {
    std::vector<std::int32_t> flying;
    for (std::size_t number = 0; number < instances_.size(); ++number) {
        if (!instances_[number].flights.empty()) flying.push_back(static_cast<std::int32_t>(number));
    }
    return flying;
}

std::vector<std::int64_t> Loop::estimates_met(std::int32_t instance) const {
    const std::vector<bool>& has_met = at(instance).has_met;
    std::vector<std::int64_t> numbers;
    for (std::size_t number = 0; number < has_met.size(); ++number) {
        if (has_met[number]) numbers.push_back(static_cast<std::int64_t>(number));
    }
    return numbers;
}

}  // namespace serving
