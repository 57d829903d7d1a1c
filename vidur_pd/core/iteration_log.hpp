// What iterations have done: sums, KV blocks in use, gaps between tokens, and every run of iterations where asked for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rank_group.hpp"
#include "running_iteration.hpp"

namespace serving {

// KV blocks in use over time: their integral and peak on each instance, those held for a transfer included.
class KvUse {
  public:
    explicit KvUse(std::size_t instances) : instances_(instances) {}

    // From `at_ps` on so many blocks are held; until then what was held before.
    void hold(std::int32_t instance, TimePs at_ps, std::int64_t used) {
        move_to(instance, at_ps, 2 * at(instance).used, used);
    }
    // Up to `at_ps` the use has grown evenly to so many blocks: a run of decode iterations.
    void ramp(std::int32_t instance, TimePs at_ps, std::int64_t used) {
        move_to(instance, at_ps, at(instance).used + used, used);
    }
    // Block-seconds from time 0 to the last change.
    double block_seconds(std::int32_t instance) const;
    std::int64_t peak(std::int32_t instance) const { return instances_[static_cast<std::size_t>(instance)].peak; }

  private:
    __extension__ using Wide = __int128;  // blocks times picoseconds of a day exceed 64 bits
    struct Use {
        Wide twice_integral = 0;
        TimePs since_ps = 0;
        std::int64_t used = 0;
        std::int64_t peak = 0;
    };

    Use& at(std::int32_t instance) { return instances_[static_cast<std::size_t>(instance)]; }
    void move_to(std::int32_t instance, TimePs at_ps, std::int64_t twice_the_mean, std::int64_t used);

    std::vector<Use> instances_;
};

// Columns of `Runs`.
// clang-format off
#define RUN_COLUMNS(X)                          \
    /* [runs] */                                \
    X(number)                                   \
    X(instance)                                 \
    X(steps)                                    \
    X(start_ps)                                 \
    X(idle_communication_ps)                    \
    X(estimated_ps)                             \
    X(requests)                                 \
    X(prefill_tokens)                           \
    X(decode_tokens)                            \
    X(waiting)                                  \
    X(running)                                  \
    X(kv_blocks_first)                          \
    X(kv_blocks_last)                           \
    /* [iterations] */                          \
    X(ends_ps)                                  \
    X(compute_ps)                               \
    X(host_ps)                                  \
    X(communication_ps)
// clang-format on

// Runs of iterations, one after another: consecutive iterations of one instance with one composition.
struct Runs {
#define RUN_COLUMN(name) std::vector<std::int64_t> name;
    RUN_COLUMNS(RUN_COLUMN)
#undef RUN_COLUMN
    // [phases][runs] parts of the first iteration's compute time; later ones differ from it in attention and host
    // alone.
    std::array<std::vector<std::int64_t>, kComputePhases> phase_ps;
};

// Who takes part in the iterations of `Runs`, and with what, as columns: [runs and their requests].
struct Members {
    std::vector<std::int64_t> number;                 // of the iteration
    std::vector<std::int64_t> request;                // row in the workload
    std::vector<std::int64_t> new_tokens, kv_tokens;  // of the first step

    void add(std::int64_t of, const Request& member, Tokens computes, Tokens reads) {
        number.push_back(of);
        request.push_back(member.index);
        new_tokens.push_back(computes);
        kv_tokens.push_back(reads);
    }
};

// What iterations of one instance have computed.
struct Activity {
    std::int64_t iterations = 0;
    TimePs busy_ps = 0, computing_ps = 0;  // summed over pipeline stages
    TimePs host_ps = 0;                    // exposed host time, likewise
    std::int64_t requests = 0;             // [iterations] summed, as the next three
    Tokens new_tokens = 0, kv_tokens = 0;
    double token_pairs = 0.0;
    std::int64_t decodes = 0;  // requests with a past that compute one token; [iterations] summed
    Tokens decode_kv = 0;      // that these read
    double request_s = 0.0;    // requests times the length of their iterations
};

// How many requests an iteration served, and what was there when it had ended.
struct Served {
    std::int64_t requests, prefill_tokens, decode_tokens, waiting, running, kv_blocks;
};

class IterationLog {
  public:
    // Without `keeps_runs` only sums and gaps remain of iterations, and of their members with `keeps_members` alone.
    IterationLog(std::size_t instances, bool keeps_runs, bool keeps_members);

    // An iteration has ended; returns the compute and communication time of all its steps.
    InstanceTime add(const RunningIteration& iteration);
    // The same iteration's place in the table of runs.
    void keep(const RunningIteration& iteration, const Served& served);
    // Its members: those of its batches, or of a run, which has none, all that run.
    void keep_members(const RunningIteration& iteration, const RankGroup& group);
    // Gaps between the ends of the steps of a run, each seen by so many requests.
    void add_gaps(const RunningIteration& iteration, std::int64_t requests);
    // Takes the runs kept so far.
    Runs take_runs() { return std::exchange(runs_, {}); }
    Members take_members() { return std::exchange(members_, {}); }

    const std::shared_ptr<GapCounts>& gaps() const { return gaps_; }
    KvUse& kv_use() { return kv_use_; }

    std::int64_t iterations = 0;
    std::vector<TimePs> busy_ps, computing_ps;  // [instances]
    // [instances] `busy_ps` when the last request had arrived.
    std::vector<TimePs> busy_at_arrival_ps;
    std::vector<TimePs> attention_ps, ffn_ps;  // [instances] of attention workers and FFN workers that are apart
    // [instances][sizes] of iterations with prompts, and of those of decodes alone. Sizes are half octaves of new
    // tokens, as bytes do not follow the tokens of an iteration linearly: experts are read by the first that chooses
    // them.
    std::array<std::vector<std::vector<Activity>>, 2> activity;
    TimePs compute_ps = 0, communication_ps = 0, idle_communication_ps = 0, estimated_ps = 0;

  private:
    void add_activity(const RunningIteration& iteration, const InstanceTime& time);

    std::shared_ptr<GapCounts> gaps_ = std::make_shared<GapCounts>();
    KvUse kv_use_;
    bool keeps_runs_, keeps_members_;
    Runs runs_;
    Members members_;
};

}  // namespace serving
