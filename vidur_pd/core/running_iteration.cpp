#include "running_iteration.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

namespace serving {

namespace {

__extension__ using Wide = __int128;

TimePs stage_ps(const Stage& stage) { return stage.compute_ps + stage.exposed_ps; }

// What is left of something whose whole duration changes; never nothing. Products exceed 64 bits.
TimePs rescaled(TimePs left_ps, TimePs old_duration_ps, TimePs duration_ps) {
    const Wide product = static_cast<Wide>(left_ps) * duration_ps;
    return static_cast<TimePs>((product + old_duration_ps - 1) / old_duration_ps);
}

// That many of so many equal parts of a time.
TimePs share_of(TimePs time_ps, TimePs parts, TimePs of_parts) {
    return static_cast<TimePs>(static_cast<Wide>(time_ps) * parts / of_parts);
}

void pass_stages(RunningIteration& iteration, std::vector<TimePs>& stage_free_ps) {
    TimePs at_ps = iteration.start_ps;
    for (std::size_t stage = 0; stage < iteration.stages.size(); ++stage) {
        iteration.stage_begins_ps.push_back(std::max(at_ps, stage_free_ps[stage]));
        at_ps = iteration.stage_begins_ps.back() + stage_ps(iteration.stages[stage]);
        iteration.stage_ends_ps.push_back(at_ps);
        stage_free_ps[stage] = at_ps;
    }
    iteration.ends_ps.assign(1, at_ps);
}

}  // namespace

TimePs Stage::exposed_at(double slowdown) const {
    if (overlapped.empty())
        return static_cast<TimePs>(std::nearbyint(static_cast<double>(communication_ps) * slowdown));
    return static_cast<TimePs>(std::nearbyint(aicb::overlapped_ps(not_overlapped_ps, overlapped, slowdown)));
}

double Stage::slowdown_for(TimePs exposed_ps) const {
    if (overlapped.empty()) return static_cast<double>(exposed_ps) / static_cast<double>(communication_ps);
    double communicating_ps = 0.0;
    for (const OverlapSegment& part : overlapped) communicating_ps += part.share * part.communication_ps;
    return (static_cast<double>(exposed_ps) - not_overlapped_ps) / communicating_ps;
}

// In a pipeline every stage has a host of its own, which is taken to work ahead.
void expose_host(RunningIteration& iteration, const HostClock& host) {
    const auto add = [](Stage& stage, TimePs exposed_ps) {
        stage.compute_ps += exposed_ps;
        stage.host_ps += exposed_ps;
    };
    if (iteration.is_pipelined()) {
        for (Stage& stage : iteration.stages) {
            const TimePs exposed_ps = std::max<TimePs>(stage.host.period_ps() - stage.compute_ps, 0);
            add(stage, exposed_ps);
            iteration.compute_ps[0] += exposed_ps;
        }
        return;
    }
    Stage& stage = iteration.stages[0];
    const std::vector<TimePs> device_ps = iteration.compute_ps;
    iteration.launched_ps =
        host.expose(stage.host, iteration.decided_ps, iteration.start_ps, stage.exposed_ps, iteration.compute_ps);
    iteration.exposed_host_ps.resize(device_ps.size());
    std::transform(iteration.compute_ps.begin(), iteration.compute_ps.end(), device_ps.begin(),
                   iteration.exposed_host_ps.begin(), std::minus<>());
    add(stage, iteration.exposed_host_ps[0]);
}

// The whole is rounded as such, as in a run; the largest phase takes what its parts differ by.
void slow_down(RunningIteration& iteration, double factor) {
    const auto scaled = [factor](TimePs time_ps) {
        return static_cast<TimePs>(std::nearbyint(static_cast<double>(time_ps) * factor));
    };
    for (TimePs& step_ps : iteration.compute_ps) step_ps = scaled(step_ps);
    for (Stage& stage : iteration.stages) {
        TimePs phases_ps = 0, scaled_ps = 0;
        for (TimePs& phase_ps : stage.phase_ps) {
            phases_ps += phase_ps;
            scaled_ps += phase_ps = scaled(phase_ps);
        }
        *std::max_element(stage.phase_ps.begin(), stage.phase_ps.end()) += scaled(phases_ps) - scaled_ps;
        stage.compute_ps = scaled(stage.compute_ps);
        stage.host_ps = scaled(stage.host_ps);
        stage.estimated_ps = scaled(stage.estimated_ps);
        stage.attention_ps = scaled(stage.attention_ps);
        stage.ffn_ps = scaled(stage.ffn_ps);
        for (TimePs& pause_ps : stage.pauses_ps) pause_ps = scaled(pause_ps);
        stage.not_overlapped_ps *= factor;
        for (OverlapSegment& part : stage.overlapped) part.compute_ps *= factor;
        stage.set_slowdown(stage.slowdown);
        stage.idle_exposed_ps = stage.exposed_at(1.0);
    }
    if (iteration.stages.size() == 1) return;  // steps of several stages are sums of rounded ones
    iteration.compute_ps[0] = 0;
    for (const Stage& stage : iteration.stages) iteration.compute_ps[0] += stage.compute_ps;
}

void set_end_times(RunningIteration& iteration, std::vector<TimePs>& stage_free_ps) {
    if (iteration.is_pipelined()) {
        pass_stages(iteration, stage_free_ps);
        return;
    }
    TimePs at_ps = iteration.start_ps;
    iteration.ends_ps.clear();
    for (const TimePs compute_ps : iteration.compute_ps) {
        iteration.ends_ps.push_back(at_ps += compute_ps + iteration.stages[0].exposed_ps);
    }
}

double steps_done(const RunningIteration& iteration, TimePs now_ps) {
    const auto in_progress = std::upper_bound(iteration.ends_ps.begin(), iteration.ends_ps.end(), now_ps);
    const auto step = static_cast<std::size_t>(in_progress - iteration.ends_ps.begin());
    if (in_progress == iteration.ends_ps.end()) return static_cast<double>(step);
    TimePs since_ps = step ? iteration.ends_ps[step - 1] : iteration.start_ps;
    auto done = static_cast<double>(step);
    if (iteration.booked_ps > since_ps) {
        since_ps = iteration.booked_ps;
        done = iteration.booked_steps;
    }
    if (now_ps <= since_ps) return done;
    const double part = static_cast<double>(now_ps - since_ps) / static_cast<double>(*in_progress - since_ps);
    return done + part * (static_cast<double>(step + 1) - done);
}

TimePs step_period_ps(const RunningIteration& iteration, TimePs now_ps) {
    if (iteration.is_pipelined()) {
        const double left = 1.0 - steps_done(iteration, now_ps);
        if (left <= 0.0) return 0;
        return static_cast<TimePs>(std::ceil(static_cast<double>(iteration.ends_ps.back() - now_ps) / left));
    }
    const auto in_progress = std::upper_bound(iteration.ends_ps.begin(), iteration.ends_ps.end(), now_ps);
    if (in_progress == iteration.ends_ps.end()) return 0;
    return iteration.compute_ps[static_cast<std::size_t>(in_progress - iteration.ends_ps.begin())] +
           iteration.stages[0].exposed_ps;
}

void retime_steps(RunningIteration& iteration, double slowdown, TimePs now_ps) {
    const auto first_left = std::upper_bound(iteration.ends_ps.begin(), iteration.ends_ps.end(), now_ps);
    const auto step = static_cast<std::size_t>(first_left - iteration.ends_ps.begin());
    const TimePs old_exposed_ps = iteration.stages[0].exposed_ps;
    iteration.stages[0].set_slowdown(slowdown);
    const TimePs exposed_ps = iteration.stages[0].exposed_ps;
    if (step == iteration.ends_ps.size()) return;
    const TimePs compute_ps = iteration.compute_ps[step];
    const TimePs left_ps = iteration.ends_ps[step] - now_ps;
    TimePs at_ps = now_ps + rescaled(left_ps, compute_ps + old_exposed_ps, compute_ps + exposed_ps);
    iteration.ends_ps[step] = at_ps;
    for (std::size_t later = step + 1; later < iteration.ends_ps.size(); ++later) {
        iteration.ends_ps[later] = at_ps += iteration.compute_ps[later] + exposed_ps;
    }
}

void retime_stages(const std::vector<RunningIterationPtr>& running_iterations,
                   const std::vector<std::vector<double>>& slowdowns, std::vector<TimePs>& stage_free_ps,
                   TimePs now_ps) {
    std::vector<TimePs> free_ps(stage_free_ps.size(), 0);
    for (std::size_t place = 0; place < running_iterations.size(); ++place) {
        RunningIteration& iteration = *running_iterations[place];
        std::vector<TimePs>&begins_ps = iteration.stage_begins_ps, &ends_ps = iteration.stage_ends_ps;
        for (std::size_t stage = 0; stage < free_ps.size(); ++stage) {
            const TimePs old_ps = stage_ps(iteration.stages[stage]);
            iteration.stages[stage].set_slowdown(slowdowns[place][stage]);
            const TimePs new_ps = stage_ps(iteration.stages[stage]);
            if (begins_ps[stage] >= now_ps) {
                // Not before now, whoever it has waited for: iterations that have ended are not among
                // `running iterations`.
                begins_ps[stage] = std::max({stage ? ends_ps[stage - 1] : iteration.start_ps, free_ps[stage], now_ps});
                ends_ps[stage] = begins_ps[stage] + new_ps;
            } else if (ends_ps[stage] > now_ps) {
                ends_ps[stage] = now_ps + rescaled(ends_ps[stage] - now_ps, old_ps, new_ps);
            }
            free_ps[stage] = ends_ps[stage];
        }
        iteration.ends_ps.assign(1, ends_ps.back());
    }
    stage_free_ps = std::move(free_ps);
}

void wait_for_layers(RunningIteration& iteration) {
    const TimePs alone_ps = iteration.ends_ps[0] - iteration.start_ps;
    TimePs end_ps = iteration.start_ps, recomputing_ps = 0;
    std::size_t most_layers = 1;
    for (const auto& [request, arrivals] : iteration.awaited)
        most_layers = std::max(most_layers, arrivals->at_ps.size());
    const auto layers = static_cast<TimePs>(most_layers);
    for (TimePs layer = 0; layer < layers; ++layer) {
        for (const auto& [request, arrivals] : iteration.awaited) {
            const auto from = std::min(static_cast<std::size_t>(layer), arrivals->at_ps.size() - 1);
            end_ps = std::max(end_ps, arrivals->at_ps[from]);
        }
        end_ps += share_of(alone_ps, layer + 1, layers) - share_of(alone_ps, layer, layers);
    }
    for (const auto& [request, arrivals] : iteration.awaited) recomputing_ps += arrivals->recomputing_ps;
    iteration.ends_ps[0] = end_ps + recomputing_ps;
    iteration.layer_wait_ps = iteration.ends_ps[0] - iteration.start_ps - alone_ps;
    for (const auto& [request, arrivals] : iteration.awaited) {
        if (!request) continue;
        request->tier_tokens = request->tier_tokens.value_or(0) + arrivals->tokens;
        request->tier_wait_ps = request->tier_wait_ps.value_or(0) + iteration.layer_wait_ps;
    }
    iteration.awaited.clear();
}

bool keep_ended(RunningIteration& iteration, TimePs now_ps) {
    const auto in_progress = std::upper_bound(iteration.ends_ps.begin(), iteration.ends_ps.end(), now_ps);
    const auto steps = static_cast<std::size_t>(in_progress - iteration.ends_ps.begin());
    iteration.compute_ps.resize(steps);
    iteration.ends_ps.resize(steps);
    return steps > 0;
}

bool truncate(RunningIteration& iteration, TimePs now_ps) {
    const auto in_progress = std::lower_bound(iteration.ends_ps.begin(), iteration.ends_ps.end(), now_ps);
    const auto steps = static_cast<std::size_t>(in_progress - iteration.ends_ps.begin()) + 1;
    if (steps >= iteration.ends_ps.size()) return false;
    iteration.compute_ps.resize(steps);
    iteration.ends_ps.resize(steps);
    return true;
}

}  // namespace serving
