// A serving instance in the loop: its ranks in lockstep, what prices their iterations, and the iterations that run.
#pragma once

#include <aicb/iteration_pricing.hpp>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "rank_group.hpp"
#include "running_iteration.hpp"

namespace serving {

class Loop;

// What an instance does by itself, and what it asks for.
struct Traits {
    bool has_runs = false;          // decode iterations between two changes of the batches are one event
    bool has_drafts = false;        // Python says how many drafts are kept
    bool reports_launches = false;  // Python wants to know of each iteration that begins
    bool reports_rest = false;      // Python wants to know when an iteration ends and nothing is left to run
    // Its workers launch in processes of their own, so that its scheduler waits for results alone.
    bool launches_apart = false;
    bool launches_itself = true;  // iterations take their time on an idle fabric, unless other traffic affects them
    // Most tokens of a rank for which decodes are one launch, a CUDA graph; others are launched kernel by kernel.
    Tokens replayed_tokens = std::numeric_limits<Tokens>::max();
};

// What a list of collectives takes on an idle fabric, and the number of its load on links.
struct Communicated {
    TimePs communication_ps;
    std::int32_t load;
};

// What an instance does next: a batch, or, without one, a run of `steps` plain decodes. Where the next iteration is
// decided ahead, one more plain decode follows the run, as that is decided before what ends the run.
struct Plan {
    std::shared_ptr<GroupBatch> batch;
    std::int64_t steps = 0;
    TimePs decided_ps = 0;
    std::vector<std::shared_ptr<LayerArrivals>> awaited = {};  // besides loads: writes of chunks whose blocks it takes
};

using Pricing = std::shared_ptr<aicb::IterationPricing>;

// State belongs to the loop that it has been added to.
struct Instance {
    Instance(std::int32_t index, std::vector<std::shared_ptr<RankState>> ranks, std::shared_ptr<Policy> policy,
             std::int64_t stages)
        : index(index), group(std::move(ranks), std::move(policy)), host(group.plans_ahead()) {
        communicated.resize(static_cast<std::size_t>(stages));
        stage_free_ps.assign(static_cast<std::size_t>(stages), 0);
    }

    // One thread decides the next iteration when it has launched one, and takes results after that.
    bool decides_after_launch() const { return group.plans_ahead() && !traits.launches_apart; }
    // Whether launching is taken to need no time: a batch of decodes that is replayed; none: all that run.
    bool launches_at_once(const GroupBatch* batch) const {
        if (batch && batch->prefill_tokens > 0) return false;
        return (batch ? batch->most_tokens : group.most_running()) <= traits.replayed_tokens;
    }
    bool is_full() const { return running_iterations.size() >= stage_free_ps.size(); }
    // Nothing runs, and nothing that ran goes on.
    bool is_idle() const { return running_iterations.empty() && !plan && group.running_requests() == 0; }
    // When the next iteration may begin.
    TimePs free_ps() const { return std::max(stage_free_ps[0], held_until_ps); }

    std::int32_t index;
    Loop* loop = nullptr;
    RankGroup group;
    HostClock host;
    Traits traits;
    std::vector<Pricing> pricing;                                        // [stages]
    std::vector<std::vector<std::optional<Communicated>>> communicated;  // [stages][number]
    std::vector<bool> has_met;                                           // [numbers of sets of estimates]
    std::vector<RunningIterationPtr> running_iterations;
    std::optional<Plan> plan;  // decided, and not begun yet
    std::vector<TimePs> stage_free_ps;
    std::optional<TimePs> dispatch_at_ps;
    std::optional<TimePs> decide_at_ps;  // a decision ahead that waits for the thread that launches
    bool waits_for_room = false;
    bool polls = false;        // it looks in every step for KV that has come: no runs
    TimePs held_until_ps = 0;  // its host is busy until then: no iteration begins before
    std::int64_t iterations_ended = 0;
    bool is_up = true;
    double compute_slowdown = 1.0;
};

using InstancePtr = std::shared_ptr<Instance>;

}  // namespace serving
