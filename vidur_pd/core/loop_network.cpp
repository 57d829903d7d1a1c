// The loop and the network: its clock, and iterations as loads on the links that carry transfers.
#include <algorithm>
#include <cmath>
#include <optional>

#include "loop.hpp"

namespace serving {

namespace {

// Later than any simulated instant.
constexpr TimePs kFarPs = TimePs{1} << 62;
// Relative change of a slow-down below which an iteration in progress is left alone: keeps the work per change small,
// at an error of that order.
constexpr double kSmallestChange = 1e-3;
// Of telling each kind of traffic of the other at one instant: transfers slow iterations, which leave more to
// transfers.
constexpr int kMostExchanges = 10;
// Of updating instances that meet at one instant; our choice.
constexpr int kMostRounds = 4;
// Of slowing down those that meet on one link; a bound for what rounding might do.
constexpr int kMostTurns = 1000;

// Slow-downs with which an iteration takes `factor` times as long from now on.
std::vector<double> slower(const RunningIteration& iteration, double factor, TimePs now_ps) {
    std::vector<double> slowdowns;
    for (const Stage& stage : iteration.stages) {
        if (stage.communication_ps == 0) {
            slowdowns.push_back(stage.slowdown);
            continue;
        }
        const TimePs step_ps =
            iteration.is_pipelined() ? stage.compute_ps + stage.exposed_ps : step_period_ps(iteration, now_ps);
        const double more_ps = std::ceil(static_cast<double>(step_ps) * (factor - 1.0)) + 1.0;
        slowdowns.push_back(
            std::max(stage.slowdown, stage.slowdown_for(stage.exposed_ps + static_cast<TimePs>(more_ps))));
    }
    return slowdowns;
}

}  // namespace

void Loop::arrive(TimePs at_ps, const std::vector<std::pair<std::int64_t, bool>>& graphs) {
    queue_.move_to(at_ps);
    for (const auto& [graph, is_failed] : graphs) {
        completions_.push_back({graph, netsim::kWholeGraph, at_ps, is_failed});
    }
}

std::optional<netsim::Completion> Loop::take_completion() {
    if (completions_.empty()) return std::nullopt;
    const netsim::Completion first = completions_.front();
    completions_.pop_front();
    return first;
}

// Runs the network to the next event of the loop, or to the first instant at which something completes. Where
// iterations are loads, only to its own next event, as rates may change with it.
void Loop::advance_network(TimePs network_ps, std::optional<TimePs> next_ps) {
    const TimePs until_ps = next_ps.value_or(kFarPs);
    const std::vector<netsim::Completion> completions =
        network_->advance(placed_ ? std::min(until_ps, network_ps) : until_ps);
    if (completions.empty()) {
        if (placed_ && !placed_->do_flow_rates_hold()) traffic_changes(network_->now_ps());
        return;
    }
    queue_.move_to(completions.front().at_ps);
    for (const netsim::Completion& completion : completions) {
        if (completion.flow == netsim::kWholeGraph) completions_.push_back(completion);
    }
}

std::int32_t Loop::remember(netsim::LinkLoad load) {
    loads_.push_back(std::make_shared<const netsim::LinkLoad>(std::move(load)));
    if (placed_) placed_->add(loads_.back());
    return static_cast<std::int32_t>(loads_.size()) - 1;
}

void Loop::traffic_changes(TimePs at_ps) {
    if (!placed_ || !updates_ps_.insert(at_ps).second) return;
    queue_.schedule(at_ps, Priority::kDispatch, Event::Kind::kTraffic, 0, 0);
}

// Both kinds of traffic in turn, until transfers have the rates that iterations see.
void Loop::update_traffic() {
    updates_ps_.erase(now_ps());
    for (int exchange = 0; exchange < kMostExchanges; ++exchange) {
        placed_->read_flow_rates();
        update_loads();
        placed_->share_links(now_ps());
        if (placed_->do_flow_rates_hold()) break;
    }
}

void Loop::launch_with_others(const RunningIterationPtr& iteration) {
    if (!placed_->has_flows()) return place_and_settle(iteration);
    placed_->read_flow_rates();
    place_and_settle(iteration);
    placed_->share_links(now_ps());
    if (!placed_->do_flow_rates_hold()) traffic_changes(now_ps());
}

void Loop::place_and_settle(const RunningIterationPtr& iteration) {
    placed_->withdraw(iteration->instance);
    const std::vector<double> slowdowns = slowdowns_of(*iteration);
    for (std::size_t stage = 0; stage < slowdowns.size(); ++stage)
        iteration->stages[stage].set_slowdown(slowdowns[stage]);
    set_end_times(*iteration, at(iteration->instance).stage_free_ps);
    schedule_end(iteration);
    place(iteration->instance);
    if (placed_->take_shift()) {
        update_loads();
    } else {
        hold_back();
    }
}

// Of each stage's communication, with what other instances and transfers have on its links.
std::vector<double> Loop::slowdowns_of(const RunningIteration& iteration) const {
    std::vector<double> slowdowns;
    for (const Stage& stage : iteration.stages) {
        slowdowns.push_back(placed_->slowdown(stage.load, stage.communication_ps));
    }
    return slowdowns;
}

// Puts what an instance has under way on its links.
void Loop::place(std::int32_t index) {
    for (const RunningIterationPtr& iteration : at(index).running_iterations) {
        const TimePs period_ps = step_period_ps(*iteration, now_ps());
        if (period_ps <= 0) continue;
        for (const Stage& stage : iteration->stages) placed_->place(index, stage.load, period_ps);
    }
}

// New loads of the instances that other traffic affects, and new slow-downs of what they have in iteration.
void Loop::update_loads() {
    for (int round = 0; round < kMostRounds; ++round) {
        update_affected();
        if (!placed_->take_shift()) break;
    }
    hold_back();
}

// Each instance in turn, with what others have on its links now.
void Loop::update_affected() {
    for (const std::int32_t index : placed_->take_affected()) {
        const std::vector<RunningIterationPtr>& running_iterations = at(index).running_iterations;
        placed_->withdraw(index);
        if (running_iterations.empty()) continue;
        std::vector<std::vector<double>> slowdowns;
        bool has_changed = false;
        for (const RunningIterationPtr& iteration : running_iterations) {
            slowdowns.push_back(slowdowns_of(*iteration));
            for (std::size_t stage = 0; stage < iteration->stages.size(); ++stage) {
                const double old = iteration->stages[stage].slowdown;
                has_changed |= std::abs(slowdowns.back()[stage] - old) > kSmallestChange * old;
            }
        }
        if (has_changed) retime(index, slowdowns);
        place(index);
    }
}

// No link carries more than it can: where the rule leaves instances more, all that are there slow down by the same
// factor.
void Loop::hold_back() {
    for (int turn = 0; turn < kMostTurns; ++turn) {
        const auto excess = placed_->excess();
        if (!excess) return;
        for (const std::int32_t index : excess->sources) {
            placed_->withdraw(index);
            if (at(index).running_iterations.empty()) continue;
            std::vector<std::vector<double>> slowdowns;
            for (const RunningIterationPtr& iteration : at(index).running_iterations) {
                slowdowns.push_back(slower(*iteration, excess->factor, now_ps()));
            }
            retime(index, slowdowns);
            place(index);
        }
    }
}

void Loop::retime(std::int32_t index, const std::vector<std::vector<double>>& slowdowns) {
    Instance& instance = at(index);
    for (const RunningIterationPtr& iteration : instance.running_iterations) book(*iteration, now_ps());
    if (instance.running_iterations[0]->is_pipelined()) {
        retime_stages(instance.running_iterations, slowdowns, instance.stage_free_ps, now_ps());
        wake(index);
    } else {
        retime_steps(*instance.running_iterations[0], slowdowns[0][0], now_ps());
    }
    for (const RunningIterationPtr& iteration : instance.running_iterations) schedule_end(iteration);
}

}  // namespace serving
