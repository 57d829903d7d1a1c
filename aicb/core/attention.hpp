// Attention of one rank: decodes over consecutive iterations, and prefills of one iteration.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "decode_times.hpp"
#include "key_span.hpp"
#include "mixed_call.hpp"
#include "prefill_times.hpp"
#include "priced_operators.hpp"

namespace aicb {

// What of a kernel over prompts follows the SM clock, and what the tensor cores would take.
struct KernelLoad {
    std::int64_t count;         // executions
    std::uint64_t name;         // bit in PricedOperators::estimated
    double stream_bytes_per_s;  // bandwidth of large streams
    double load_flops;          // FLOP/s that load the power budget as dense products at their peak
};

// What of a kernel that reads the cache follows the SM clock, and what the tensor cores would take.
struct CacheLoad {
    std::int64_t count;  // executions
    std::uint64_t name;  // bit in PricedOperators::estimated
    KvCost cost;         // at the nominal peak and the bandwidth of large streams
};

// A kernel that reads the KV cache of decodes.
struct DecodeKernel {
    std::shared_ptr<const DecodeTimes> times;
    std::shared_ptr<const DecodeTimes> one_query;  // several queries are not faster than one; nullptr for one
    CacheLoad load;
    std::optional<KeySpan> span;  // lengths of the kernel are those that its last query sees
};

// The same with its times over consecutive steps.
struct TimedKernel {
    CacheLoad load;
    std::vector<double> time_us;          // [steps]
    std::vector<double> one_query_us;     // [steps] or empty
    std::vector<std::int64_t> kv_tokens;  // [steps] that it reads, of all requests
    bool is_estimate;
};

struct PrefillKernel {
    std::shared_ptr<PrefillTimes> times;
    KernelLoad load;
    std::optional<KeySpan> span;     // chunks are requests of their own, a window is that of `times`
    std::optional<MixedCall> mixed;  // decodes of the same batch are in the same call
};

// [steps] times of one rank.
struct StepLoads {
    std::vector<TimePs> total_ps, clocked_ps, tensor_ps;

    void assign(std::size_t steps) {
        for (auto* column : {&total_ps, &clocked_ps, &tensor_ps}) column->assign(steps, 0);
    }
    // Adds a group to every step.
    void add(const PricedOperators& group) {
        for (TimePs& time_ps : total_ps) time_ps += group.total_ps;
        for (TimePs& time_ps : clocked_ps) time_ps += group.clocked_ps;
        for (TimePs& time_ps : tensor_ps) time_ps += group.tensor_ps;
    }
};

// Adds a kernel to every step of `loads`, and its first step to `first`.
void add_steps(const TimedKernel& kernel, StepLoads& loads, PricedOperators& first);

// Decodes of so many requests with so many queries each.
struct DecodeSize {
    std::int64_t requests, queries;
};

// Absorbed attention of chunks of prompts of up to `most_tokens` tokens: a start, and times of each pair of a query and
// a key and of each query, of all heads.
struct ShortChunks {
    std::int64_t most_tokens;
    std::int64_t reach_tokens;  // keys of a chunk beyond which its time is an estimate
    bool is_estimate;           // always
    double start_us, pair_us, query_us;
    double flops_per_pair, bytes_per_query, bytes_per_key;
    KernelLoad load;
};

// Which kernels run over prompts besides those that are functions of all lengths.
struct PromptKernels {
    bool expand_latents;
    bool are_recurrent;  // linear attention
    std::optional<ShortChunks> chunks = std::nullopt;
};

class StageAttention {
  public:
    StageAttention(std::vector<PrefillKernel> prefills, const PromptKernels& others)
        : prefills_(std::move(prefills)), others_(others) {}

    void insert(const DecodeSize& size, std::vector<DecodeKernel> kernels);

    // Adds the kernels that read the cache in `loads.total_ps.size()` steps to `loads`, and those of the first to
    // `first`; with the prompts that were added last: what a call of both takes longer than these.
    void add_decodes(const std::int64_t* kv_tokens, const DecodeSize& size, StepLoads& loads, PricedOperators& first,
                     bool with_prompts = false);
    // Adds prefills with the other kernels over prompts; short chunks apart, if they are absorbed.
    void add_prompts(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                     PricedTable& groups, PricedOperators& sum, bool with_decodes = false);

    std::vector<DecodeSize> missing_sizes;

  private:
    void add_prefills(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                      PricedTable& groups, PricedOperators& sum, bool with_decodes);
    void mix(std::size_t kernel, const std::int64_t* kv_tokens, const DecodeSize& size, const DecodeKernel& decodes);

    const std::vector<DecodeKernel>* kernels_of(const DecodeSize& size);
    void time_over_all(const DecodeKernel& kernel, const std::int64_t* kv_tokens, std::size_t count);
    void time_within_span(const DecodeKernel& kernel, const std::int64_t* kv_tokens, std::size_t count);
    void add_chunks(const ShortChunks& chunks, PricedTable& groups, PricedOperators& sum) const;
    void add_expansions(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                        PricedTable& groups, PricedOperators& sum) const;

    std::vector<PrefillKernel> prefills_;
    PromptKernels others_;
    FlatMap<std::vector<DecodeKernel>> sizes_;
    TimedKernel timed_;
    PromptRequests within_span_;
    std::vector<PromptPart> prompts_;                                      // [prefill kernels] of the prompts at hand
    std::vector<std::int64_t> short_new_, short_kv_, long_new_, long_kv_;  // [chunks] of the prompts at hand
};

}  // namespace aicb
