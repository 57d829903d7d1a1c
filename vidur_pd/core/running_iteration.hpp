// An iteration, or a run of equal decode iterations, in progress on an instance, and when its steps end.
#pragma once

#include <aicb/two_batch.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "host_clock.hpp"
#include "rank_group.hpp"
#include "request.hpp"

namespace serving {

// Phases that compute time is divided into, in the order of vidur_pd.metrics.iterations.COMPUTE_PHASES.
constexpr std::size_t kComputePhases = 5;

using OverlapSegment = aicb::OverlapSegment;

// One pipeline stage of an iteration: what it computes, and what it communicates on an idle fabric and now.
struct Stage {
    TimePs compute_ps = 0;    // of the first step
    TimePs host_ps = 0;       // part of it
    HostWork host;            // what the host does for it
    TimePs estimated_ps = 0;  // part of `compute_ps` that rests on flagged estimates
    std::array<TimePs, kComputePhases> phase_ps{};
    TimePs communication_ps = 0;             // all collectives one after another on an idle fabric
    TimePs idle_exposed_ps = 0;              // what compute does not hide of it: all, but for two-batch overlap
    TimePs exposed_ps = 0;                   // the same at the present slowdown
    std::vector<OverlapSegment> overlapped;  // with two-batch overlap, or with FFN workers
    double not_overlapped_ps = 0.0;          // with either: what no communication overlaps, less `compute_ps`
    double slowdown = 1.0;                   // how much longer communication takes than on an idle fabric
    std::int32_t load = -1;                  // what it leaves on links, by number (`Loop::remember`)
    TimePs attention_ps = 0, ffn_ps = 0;     // where attention workers and FFN workers are apart: what each compute
    std::vector<TimePs> pauses_ps;           // the same piece by piece, for flow graphs of such iterations

    // What compute does not hide when communication takes so many times as long.
    TimePs exposed_at(double slowdown) const;
    // A slowdown at which that is no less; the smallest but for two-batch overlap.
    double slowdown_for(TimePs exposed_ps) const;
    void set_slowdown(double slowdown) {
        this->slowdown = slowdown;
        exposed_ps = exposed_at(slowdown);
    }
};

// What the batches of all ranks compute in one step.
struct BatchSums {
    std::int64_t requests = 0;
    Tokens new_tokens = 0;
    Tokens kv_tokens = 0;      // that attention reads: past and new ones of every request
    Tokens token_pairs = 0;    // that attention computes: of every new token with all up to it
    std::int64_t decodes = 0;  // requests with a past that compute one token
    Tokens decode_kv = 0;      // that these read
    bool has_prompts = false;
};

// Work between a scheduling decision and its result; its owner is the instance that launched it. A run repeats the
// running decodes of every rank; it has no batch because nothing is decided until it ends.
struct RunningIteration {
    std::int64_t number = 0;  // unique
    std::int32_t instance = 0;
    std::shared_ptr<GroupBatch> batch;
    std::vector<Stage> stages;
    TimePs decided_ps = 0;
    TimePs start_ps = 0;
    std::vector<TimePs> compute_ps;                      // [steps] summed over pipeline stages
    std::vector<TimePs> launched_ps;                     // [steps] when the host is done with it; not in a pipeline
    std::vector<TimePs> exposed_host_ps;                 // [steps] what the host adds to each; not in a pipeline
    std::vector<TimePs> ends_ps;                         // [steps] as far as known; set when launched
    std::vector<TimePs> stage_begins_ps, stage_ends_ps;  // [stages] with pipeline parallelism
    std::int64_t kv_blocks = 0;                          // held by the instance at the start
    BatchSums sums;                                      // of the first step
    std::int64_t end_event = 0;                          // number of the event that ends it
    TimePs booked_ps = 0;                                // up to when its collectives have been booked on links
    double booked_steps = 0.0;                           // how many of them that was; a step in progress is a fraction
    PassedSteps passed;                                  // of a run, where there is a frontend
    std::vector<std::pair<RequestPtr, std::shared_ptr<LayerArrivals>>> awaited;  // loads, with who runs, and writes
    bool is_launch_to_report = false;
    bool launches_at_once = false;  // see `Instance::launches_at_once`
    bool is_timed = false;          // `ends_ps` is when it would end without them
    TimePs layer_wait_ps = 0;       // by how much they have prolonged it

    std::int64_t steps() const { return static_cast<std::int64_t>(compute_ps.size()); }
    bool is_run() const { return batch == nullptr; }
    bool is_pipelined() const { return stages.size() > 1; }
    // Host time of a step, over all stages: kernels that prepare inputs, gaps, and what the host adds.
    TimePs host_ps(std::size_t step) const {
        TimePs total_ps = exposed_host_ps.empty() ? 0 : exposed_host_ps[step] - exposed_host_ps[0];
        for (const Stage& stage : stages) total_ps += stage.host_ps;
        return total_ps;
    }
    // Some layers that it waits for have not come.
    bool waits_for_layers() const {
        return std::any_of(awaited.begin(), awaited.end(), [](const auto& load) { return !load.second->have_come(); });
    }
    // Of one step at the present slowdown, over all stages, as far as compute does not hide it.
    TimePs communication_ps() const {
        TimePs total_ps = 0;
        for (const Stage& stage : stages) total_ps += stage.exposed_ps;
        return total_ps;
    }
};

using RunningIterationPtr = std::shared_ptr<RunningIteration>;

// Adds what the host exposes to an iteration that has the price of the device and begins now.
void expose_host(RunningIteration& iteration, const HostClock& host);

// Makes an iteration that has its price compute so many times as long, host included.
void slow_down(RunningIteration& iteration, double factor);

// Times of an iteration that starts now: step after step, or through stages that take one iteration at a time.
void set_end_times(RunningIteration& iteration, std::vector<TimePs>& stage_free_ps);

// Steps that are done by now, of a step in progress a fraction. A change of speed is to be preceded by a booking.
double steps_done(const RunningIteration& iteration, TimePs now_ps);

// What a step takes at the speed of the one in progress; through all stages with pipeline parallelism. 0: all are done.
TimePs step_period_ps(const RunningIteration& iteration, TimePs now_ps);

// Gives communication a new slowdown: what is done of the step in progress stays done, the rest follows suit.
void retime_steps(RunningIteration& iteration, double slowdown, TimePs now_ps);

// The same for all running iterations in a pipeline, first in, first out; `slowdowns` is [running_iterations][stages],
// `stage_free_ps` is set to what follows from it.
void retime_stages(const std::vector<RunningIterationPtr>& running_iterations,
                   const std::vector<std::vector<double>>& slowdowns, std::vector<TimePs>& stage_free_ps,
                   TimePs now_ps);

// Moves the end of an iteration whose loads have come: each layer begins when the one before has ended and its KV is
// there. Layers take equal shares of what the iteration would take without them.
void wait_for_layers(RunningIteration& iteration);

// Ends a run with the last step that has ended; false where none has.
bool keep_ended(RunningIteration& iteration, TimePs now_ps);

// Ends a run with the step in progress, or with one that ends at this very instant; true if that cuts it short.
bool truncate(RunningIteration& iteration, TimePs now_ps);

}  // namespace serving
