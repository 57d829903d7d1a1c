#include "iteration_log.hpp"

#include <algorithm>
#include <bit>

namespace serving {

namespace {

constexpr double kPsPerSecond = 1e12;

// What one step of an iteration communicates: the time that it waits for collectives.
TimePs step_communication_ps(const RunningIteration& iteration, std::size_t step) {
    if (iteration.is_pipelined())
        return iteration.communication_ps();  // stages overlap with those of other running iterations
    const TimePs begin_ps = step ? iteration.ends_ps[step - 1] : iteration.start_ps;
    return iteration.ends_ps[step] - begin_ps - iteration.compute_ps[step];
}

}  // namespace

double KvUse::block_seconds(std::int32_t instance) const {
    return static_cast<double>(instances_[static_cast<std::size_t>(instance)].twice_integral) / (2 * kPsPerSecond);
}

void KvUse::move_to(std::int32_t instance, TimePs at_ps, std::int64_t twice_the_mean, std::int64_t used) {
    Use& use = at(instance);
    use.twice_integral += static_cast<Wide>(twice_the_mean) * (at_ps - use.since_ps);
    use.since_ps = at_ps;
    use.used = used;
    use.peak = std::max(use.peak, used);
}

IterationLog::IterationLog(std::size_t instances, bool keeps_runs, bool keeps_members)
    : busy_ps(instances, 0),
      computing_ps(instances, 0),
      busy_at_arrival_ps(instances, 0),
      attention_ps(instances, 0),
      ffn_ps(instances, 0),
      kv_use_(instances),
      keeps_runs_(keeps_runs),
      keeps_members_(keeps_members) {
    for (auto& of_kind : activity) of_kind.resize(instances);
}

InstanceTime IterationLog::add(const RunningIteration& iteration) {
    InstanceTime time;
    for (const TimePs step_ps : iteration.compute_ps) time.compute_ps += step_ps;
    for (std::size_t step = 0; step < iteration.ends_ps.size(); ++step) {
        time.communication_ps += step_communication_ps(iteration, step);
    }
    const auto instance = static_cast<std::size_t>(iteration.instance);
    iterations += iteration.steps();
    busy_ps[instance] += time.compute_ps + time.communication_ps;
    computing_ps[instance] += time.compute_ps;
    compute_ps += time.compute_ps;
    communication_ps += time.communication_ps;
    time.contention_ps = time.communication_ps;
    for (const Stage& stage : iteration.stages) {
        const TimePs idle_ps = stage.idle_exposed_ps * iteration.steps();
        idle_communication_ps += idle_ps;
        time.contention_ps -= idle_ps;
        estimated_ps += stage.estimated_ps * iteration.steps();
        attention_ps[instance] += stage.attention_ps * iteration.steps();
        ffn_ps[instance] += stage.ffn_ps * iteration.steps();
    }
    idle_communication_ps += iteration.layer_wait_ps;
    time.contention_ps -= iteration.layer_wait_ps;
    add_activity(iteration, time);
    return time;
}

namespace {

// Half octave of a number: 0 for 0 and 1, 2 for 2, 3 for 3, 4 for 4 and 5, 5 for 6 and 7, 6 for 8 to 11.
std::size_t half_octave(std::int64_t number) {
    if (number < 2) return 0;
    const auto whole = static_cast<std::uint64_t>(number);
    const auto octave = static_cast<std::size_t>(std::bit_width(whole)) - 1;
    return 2 * octave + ((whole >> (octave - 1)) & 1U);
}

}  // namespace

// In each step of a run every request attends to one more token.
void IterationLog::add_activity(const RunningIteration& iteration, const InstanceTime& time) {
    const BatchSums& first = iteration.sums;
    const std::int64_t steps = iteration.steps(), later = first.requests * (steps * (steps - 1) / 2);
    std::vector<Activity>& sizes = activity[first.has_prompts ? 0 : 1][static_cast<std::size_t>(iteration.instance)];
    const std::size_t size = half_octave(first.new_tokens);
    if (sizes.size() <= size) sizes.resize(size + 1);
    Activity& of = sizes[size];
    of.iterations += steps;
    of.busy_ps += time.compute_ps + time.communication_ps;
    of.computing_ps += time.compute_ps;
    for (std::int64_t step = 0; step < steps; ++step) of.host_ps += iteration.host_ps(static_cast<std::size_t>(step));
    of.requests += steps * first.requests;
    of.new_tokens += steps * first.new_tokens;
    of.kv_tokens += steps * first.kv_tokens + later;
    of.token_pairs += static_cast<double>(steps * first.token_pairs + later);
    of.decodes += steps * first.decodes;
    of.decode_kv += steps * first.decode_kv + first.decodes * (steps * (steps - 1) / 2);
    const TimePs length_ps = iteration.ends_ps.back() - iteration.start_ps;
    of.request_s += static_cast<double>(first.requests) * static_cast<double>(length_ps) / kPsPerSecond;
}

void IterationLog::keep(const RunningIteration& iteration, const Served& served) {
    if (!keeps_runs_) return;
    Stage sum;
    sum.idle_exposed_ps = iteration.layer_wait_ps;
    for (const Stage& stage : iteration.stages) {
        sum.idle_exposed_ps += stage.idle_exposed_ps;
        sum.estimated_ps += stage.estimated_ps;
        for (std::size_t phase = 0; phase < kComputePhases; ++phase) sum.phase_ps[phase] += stage.phase_ps[phase];
    }
    runs_.number.push_back(iteration.number);
    runs_.instance.push_back(iteration.instance);
    runs_.steps.push_back(iteration.steps());
    runs_.start_ps.push_back(iteration.start_ps);
    runs_.idle_communication_ps.push_back(sum.idle_exposed_ps);
    runs_.estimated_ps.push_back(sum.estimated_ps);
    runs_.requests.push_back(served.requests);
    runs_.prefill_tokens.push_back(served.prefill_tokens);
    runs_.decode_tokens.push_back(served.decode_tokens);
    runs_.waiting.push_back(served.waiting);
    runs_.running.push_back(served.running);
    runs_.kv_blocks_first.push_back(iteration.kv_blocks);
    runs_.kv_blocks_last.push_back(iteration.is_run() ? served.kv_blocks : iteration.kv_blocks);
    for (std::size_t phase = 0; phase < kComputePhases; ++phase) runs_.phase_ps[phase].push_back(sum.phase_ps[phase]);
    runs_.ends_ps.insert(runs_.ends_ps.end(), iteration.ends_ps.begin(), iteration.ends_ps.end());
    runs_.compute_ps.insert(runs_.compute_ps.end(), iteration.compute_ps.begin(), iteration.compute_ps.end());
    for (std::size_t step = 0; step < iteration.ends_ps.size(); ++step) {
        runs_.host_ps.push_back(iteration.host_ps(step));
        runs_.communication_ps.push_back(step_communication_ps(iteration, step));
    }
}

void IterationLog::keep_members(const RunningIteration& iteration, const RankGroup& group) {
    if (!keeps_members_) return;
    if (iteration.is_run()) {
        for (const RequestPtr& request : group.running()) {
            members_.add(iteration.number, *request, 1, request->computed_tokens + 1);
        }
        return;
    }
    for (const BatchPtr& batch : iteration.batch->batches) {
        for (std::size_t place = 0; batch && place < batch->requests.size(); ++place) {
            members_.add(iteration.number, *batch->requests[place], batch->new_tokens[place], batch->kv_tokens[place]);
        }
    }
}

void IterationLog::add_gaps(const RunningIteration& iteration, std::int64_t requests) {
    for (std::size_t step = 1; step < iteration.ends_ps.size(); ++step) {
        gaps_->add(iteration.ends_ps[step] - iteration.ends_ps[step - 1], requests);
    }
}

}  // namespace serving
