// Times of decode attention of one geometry and batch size, as functions of the KV volume.
//
// aicb/kernels/fitting/volume.py says where the functions come from. Only comparisons, additions, multiplications
// and divisions are used, so that a run of iterations gives the same bits as the iterations one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace aicb {

// Piecewise-linear time [µs] of a volume; the last slope continues to the right.
struct VolumeFunction {
    std::vector<double> volume;   // [knots] rising
    std::vector<double> time_us;  // [knots]
    std::vector<double> slope;    // [knots] right of each knot

    // The last knot at or below `at`, the first if there is none.
    std::size_t knot_of(double at) const;
    double at(double volume) const { return time_at(volume, knot_of(volume)); }
    double time_at(double at, std::size_t knot) const { return time_us[knot] + slope[knot] * (at - volume[knot]); }
};

// How a kernel's volume depends on the lengths: Σ(⌈S / block⌉ + overhead) / parts + overhead blocks.
struct SplitKv {
    std::int64_t block_tokens;
    std::int64_t overhead_blocks;
    std::int64_t parts;
    // The penalty of unequal lengths: at most `unequal_us`, and this share of the time beyond `unequal_from_us`.
    double unequal_us;
    double unequal_share;
    double unequal_from_us;
    double equal_spread;  // the relative spread that costs the full penalty; in proportion below it
    // What a batch takes at least whose longest request is not divided far enough, in full from that spread on.
    double longest_us;
    double longest_token_us;  // per KV token of the longest request

    std::int64_t blocks_of(std::int64_t kv_tokens) const { return (kv_tokens + block_tokens - 1) / block_tokens; }
    double volume_of(std::int64_t blocks) const {
        return static_cast<double>(blocks) / static_cast<double>(parts) + static_cast<double>(overhead_blocks);
    }

    double penalty_us(double equal_us, double spread, double longest_tokens) const {
        const double share = std::min(spread / equal_spread, 1.0);
        const double penalty_us =
            std::min(unequal_us * share, unequal_share * share * std::max(equal_us - unequal_from_us, 0.0));
        const double least_us = longest_us + longest_token_us * longest_tokens;
        return penalty_us + share * std::max(least_us - equal_us - penalty_us, 0.0);
    }
};

// What a kernel that reads the cache asks of a GPU, at some rates, as lines in the KV tokens of its batch.
struct KvCost {
    double tensor_us;      // per KV token: FLOPs
    double memory_us;      // per KV token: reading it
    double own_memory_us;  // of the batch: queries and results

    double reading_us(double kv_tokens) const { return kv_tokens * memory_us + own_memory_us; }
    // The longer of both, a roofline.
    double least_us(double kv_tokens) const { return std::max(kv_tokens * tensor_us, reading_us(kv_tokens)); }
};

// Scaling of a measured time to another GPU (aicb.estimators.transfer): costs at the rates that both reach.
struct DecodeTransfer {
    double origin_latency_us, target_latency_us;
    KvCost origin, target;
    KvCost bound;  // at the nominal rates of the target
};

class DecodeTimes {
  public:
    VolumeFunction time;
    SplitKv split_kv;
    KvCost bound{};    // roofline
    double low = 0.0;  // volumes outside low…high are estimates
    double high = 0.0;
    bool is_estimate = false;
    std::optional<DecodeTransfer> transfer;

    // Times [steps] of `count` requests; in step j every request attends to j more tokens than `kv_tokens` says.
    // Returns whether they are estimates.
    bool over(const std::int64_t* kv_tokens, std::size_t count, std::size_t steps, double* time_us) const;
    // The first step of requests of one length, the same bits as `over`: time, and whether it is an estimate.
    std::pair<double, bool> of_equal(std::int64_t kv_tokens, std::int64_t count) const;

  private:
    double scaled_us(double found_us, double kv_tokens) const;
    void volumes(const std::int64_t* kv_tokens, std::size_t count, std::size_t steps, double* volume) const;
};

}  // namespace aicb
