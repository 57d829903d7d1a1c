#include "flight.hpp"

#include <algorithm>
#include <cmath>

namespace serving {

namespace {

__extension__ using Wide = __int128;

TimePs stage_ps(const Stage& stage) { return stage.compute_ps + stage.exposed_ps; }

// What is left of something whose whole duration changes; never nothing. Products exceed 64 bits.
TimePs rescaled(TimePs left_ps, TimePs old_duration_ps, TimePs duration_ps) {
    const Wide product = static_cast<Wide>(left_ps) * duration_ps;
    return static_cast<TimePs>((product + old_duration_ps - 1) / old_duration_ps);
}

void pass_stages(Flight& flight, std::vector<TimePs>& stage_free_ps) {
    TimePs at_ps = flight.start_ps;
    for (std::size_t stage = 0; stage < flight.stages.size(); ++stage) {
        flight.stage_begins_ps.push_back(std::max(at_ps, stage_free_ps[stage]));
        at_ps = flight.stage_begins_ps.back() + stage_ps(flight.stages[stage]);
        flight.stage_ends_ps.push_back(at_ps);
        stage_free_ps[stage] = at_ps;
    }
    flight.ends_ps.assign(1, at_ps);
}

}  // namespace

TimePs Stage::exposed_at(double stretch) const {
    if (beside.empty()) return static_cast<TimePs>(std::nearbyint(static_cast<double>(communication_ps) * stretch));
    return static_cast<TimePs>(std::nearbyint(aicb::overlapped_ps(alone_ps, beside, stretch)));
}

double Stage::stretch_for(TimePs exposed_ps) const {
    if (beside.empty()) return static_cast<double>(exposed_ps) / static_cast<double>(communication_ps);
    double communicating_ps = 0.0;
    for (const Beside& part : beside) communicating_ps += part.share * part.communication_ps;
    return (static_cast<double>(exposed_ps) - alone_ps) / communicating_ps;
}

// The whole is rounded as such, as in a run; the largest phase takes what its parts differ by.
void slow_down(Flight& flight, double factor) {
    const auto scaled = [factor](TimePs time_ps) {
        return static_cast<TimePs>(std::nearbyint(static_cast<double>(time_ps) * factor));
    };
    for (TimePs& step_ps : flight.compute_ps) step_ps = scaled(step_ps);
    for (Stage& stage : flight.stages) {
        TimePs phases_ps = 0, scaled_ps = 0;
        for (TimePs& phase_ps : stage.phase_ps) {
            phases_ps += phase_ps;
            scaled_ps += phase_ps = scaled(phase_ps);
        }
        *std::max_element(stage.phase_ps.begin(), stage.phase_ps.end()) += scaled(phases_ps) - scaled_ps;
        stage.compute_ps = scaled(stage.compute_ps);
        stage.host_ps = scaled(stage.host_ps);
        stage.estimated_ps = scaled(stage.estimated_ps);
        stage.alone_ps *= factor;
        for (Beside& part : stage.beside) part.compute_ps *= factor;
        stage.set_stretch(stage.stretch);
        stage.idle_exposed_ps = stage.exposed_at(1.0);
    }
    if (flight.stages.size() == 1) return;  // steps of several stages are sums of rounded ones
    flight.compute_ps[0] = 0;
    for (const Stage& stage : flight.stages) flight.compute_ps[0] += stage.compute_ps;
}

void set_out(Flight& flight, std::vector<TimePs>& stage_free_ps) {
    if (flight.is_pipelined()) {
        pass_stages(flight, stage_free_ps);
        return;
    }
    TimePs at_ps = flight.start_ps;
    flight.ends_ps.clear();
    for (const TimePs compute_ps : flight.compute_ps) {
        flight.ends_ps.push_back(at_ps += compute_ps + flight.stages[0].exposed_ps);
    }
}

double steps_done(const Flight& flight, TimePs now_ps) {
    const auto in_progress = std::upper_bound(flight.ends_ps.begin(), flight.ends_ps.end(), now_ps);
    const auto step = static_cast<std::size_t>(in_progress - flight.ends_ps.begin());
    if (in_progress == flight.ends_ps.end()) return static_cast<double>(step);
    TimePs since_ps = step ? flight.ends_ps[step - 1] : flight.start_ps;
    auto done = static_cast<double>(step);
    if (flight.booked_ps > since_ps) {
        since_ps = flight.booked_ps;
        done = flight.booked_steps;
    }
    if (now_ps <= since_ps) return done;
    const double part = static_cast<double>(now_ps - since_ps) / static_cast<double>(*in_progress - since_ps);
    return done + part * (static_cast<double>(step + 1) - done);
}

TimePs step_period_ps(const Flight& flight, TimePs now_ps) {
    if (flight.is_pipelined()) {
        const double left = 1.0 - steps_done(flight, now_ps);
        if (left <= 0.0) return 0;
        return static_cast<TimePs>(std::ceil(static_cast<double>(flight.ends_ps.back() - now_ps) / left));
    }
    const auto in_progress = std::upper_bound(flight.ends_ps.begin(), flight.ends_ps.end(), now_ps);
    if (in_progress == flight.ends_ps.end()) return 0;
    return flight.compute_ps[static_cast<std::size_t>(in_progress - flight.ends_ps.begin())] +
           flight.stages[0].exposed_ps;
}

void retime_steps(Flight& flight, double stretch, TimePs now_ps) {
    const auto first_left = std::upper_bound(flight.ends_ps.begin(), flight.ends_ps.end(), now_ps);
    const auto step = static_cast<std::size_t>(first_left - flight.ends_ps.begin());
    const TimePs old_exposed_ps = flight.stages[0].exposed_ps;
    flight.stages[0].set_stretch(stretch);
    const TimePs exposed_ps = flight.stages[0].exposed_ps;
    if (step == flight.ends_ps.size()) return;
    const TimePs compute_ps = flight.compute_ps[step];
    const TimePs left_ps = flight.ends_ps[step] - now_ps;
    TimePs at_ps = now_ps + rescaled(left_ps, compute_ps + old_exposed_ps, compute_ps + exposed_ps);
    flight.ends_ps[step] = at_ps;
    for (std::size_t later = step + 1; later < flight.ends_ps.size(); ++later) {
        flight.ends_ps[later] = at_ps += flight.compute_ps[later] + exposed_ps;
    }
}

void retime_stages(const std::vector<FlightPtr>& flights, const std::vector<std::vector<double>>& stretches,
                   std::vector<TimePs>& stage_free_ps, TimePs now_ps) {
    std::vector<TimePs> free_ps(stage_free_ps.size(), 0);
    for (std::size_t place = 0; place < flights.size(); ++place) {
        Flight& flight = *flights[place];
        std::vector<TimePs>&begins_ps = flight.stage_begins_ps, &ends_ps = flight.stage_ends_ps;
        for (std::size_t stage = 0; stage < free_ps.size(); ++stage) {
            const TimePs old_ps = stage_ps(flight.stages[stage]);
            flight.stages[stage].set_stretch(stretches[place][stage]);
            const TimePs new_ps = stage_ps(flight.stages[stage]);
            if (begins_ps[stage] >= now_ps) {
                // Not before now, whoever it has waited for: flights that have landed are not among `flights`.
                begins_ps[stage] = std::max({stage ? ends_ps[stage - 1] : flight.start_ps, free_ps[stage], now_ps});
                ends_ps[stage] = begins_ps[stage] + new_ps;
            } else if (ends_ps[stage] > now_ps) {
                ends_ps[stage] = now_ps + rescaled(ends_ps[stage] - now_ps, old_ps, new_ps);
            }
            free_ps[stage] = ends_ps[stage];
        }
        flight.ends_ps.assign(1, ends_ps.back());
    }
    stage_free_ps = std::move(free_ps);
}

bool keep_ended(Flight& flight, TimePs now_ps) {
    const auto in_progress = std::upper_bound(flight.ends_ps.begin(), flight.ends_ps.end(), now_ps);
    const auto steps = static_cast<std::size_t>(in_progress - flight.ends_ps.begin());
    flight.compute_ps.resize(steps);
    flight.ends_ps.resize(steps);
    return steps > 0;
}

bool truncate(Flight& flight, TimePs now_ps) {
    const auto in_progress = std::lower_bound(flight.ends_ps.begin(), flight.ends_ps.end(), now_ps);
    const auto steps = static_cast<std::size_t>(in_progress - flight.ends_ps.begin()) + 1;
    if (steps >= flight.ends_ps.size()) return false;
    flight.compute_ps.resize(steps);
    flight.ends_ps.resize(steps);
    return true;
}

}  // namespace serving
