#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "clock.hpp"

namespace aicb {

namespace {

constexpr double kPsPerUs = 1e6;
constexpr std::size_t kAttentionPhase = 0;  // aicb.iteration.pricing.PHASES

TimePs to_ps(double time_us) { return static_cast<TimePs>(std::nearbyint(time_us * kPsPerUs)); }

std::uint64_t packed(const DecodeSize& size) {
    return static_cast<std::uint64_t>(size.requests) << 16 | static_cast<std::uint64_t>(size.queries);
}

void add_attention(PricedOperators& sum, TimePs total_ps, TimePs clocked_ps, TimePs tensor_ps,
                   std::uint64_t estimated) {
    sum.phase_ps[kAttentionPhase] += total_ps;
    sum.total_ps += total_ps;
    sum.clocked_ps += clocked_ps;
    sum.tensor_ps += tensor_ps;
    if (estimated != 0) sum.estimated_ps += total_ps;
    sum.estimated |= estimated;
}

PromptPart prompt_part(const PrefillKernel& kernel, double time_us, const std::int64_t* new_tokens,
                       const std::int64_t* kv_tokens, std::size_t count) {
    PromptPart part{.time_us = time_us};
    if (!kernel.mixed) return part;
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t seen =
            kernel.span ? std::min(kv_tokens[i], new_tokens[i] + kernel.span->tokens) : kv_tokens[i];
        kernel.mixed->add(part, new_tokens[i], seen);
    }
    return part;
}

}  // namespace

void StageAttention::insert(const DecodeSize& size, std::vector<DecodeKernel> kernels) {
    sizes_.insert(packed(size), std::move(kernels));
}

const std::vector<DecodeKernel>* StageAttention::kernels_of(const DecodeSize& size) {
    const auto* found = sizes_.find(packed(size));
    if (found == nullptr) missing_sizes.push_back(size);
    return found;
}

void add_steps(const TimedKernel& kernel, StepLoads& loads, PricedOperators& first) {
    const auto executions = static_cast<double>(kernel.load.count);
    for (std::size_t step = 0; step < loads.total_ps.size(); ++step) {
        double time_us = kernel.time_us[step];
        if (!kernel.one_query_us.empty()) time_us = std::max(time_us, kernel.one_query_us[step]);
        const auto tokens = static_cast<double>(kernel.kv_tokens[step]);
        const TimePs total_ps = to_ps(executions * time_us);
        const double clocked_us = time_us * clocked_share(time_us, kernel.load.cost.reading_us(tokens));
        const TimePs clocked_ps = to_ps(executions * clocked_us);
        const TimePs tensor_ps = to_ps(executions * (tokens * kernel.load.cost.tensor_us));
        loads.total_ps[step] += total_ps;
        loads.clocked_ps[step] += clocked_ps;
        loads.tensor_ps[step] += tensor_ps;
        if (step == 0) add_attention(first, total_ps, clocked_ps, tensor_ps, kernel.is_estimate ? kernel.load.name : 0);
    }
}

void StageAttention::add_decodes(const std::int64_t* kv_tokens, const DecodeSize& size, StepLoads& loads,
                                 PricedOperators& first, bool with_prompts) {
    const auto* kernels = kernels_of(size);
    if (kernels == nullptr) return;
    const auto count = static_cast<std::size_t>(size.requests);
    const std::size_t steps = loads.total_ps.size();
    for (std::size_t number = 0; number < kernels->size(); ++number) {
        const DecodeKernel& kernel = (*kernels)[number];
        timed_.load = kernel.load;
        timed_.time_us.resize(steps);
        timed_.one_query_us.resize(kernel.one_query ? steps : 0);
        timed_.kv_tokens.resize(steps);
        if (kernel.span) {
            time_within_span(kernel, kv_tokens, count);
        } else {
            time_over_all(kernel, kv_tokens, count);
        }
        if (with_prompts && number < prefills_.size()) mix(number, kv_tokens, size, kernel);
        add_steps(timed_, loads, first);
    }
}

// Kernels over prompts and over decodes have one order: that of the kinds of attention.
void StageAttention::mix(std::size_t kernel, const std::int64_t* kv_tokens, const DecodeSize& size,
                         const DecodeKernel& decodes) {
    const std::optional<MixedCall>& call = prefills_[kernel].mixed;
    if (!call) return;
    double alone_us = timed_.time_us[0];
    if (!timed_.one_query_us.empty()) alone_us = std::max(alone_us, timed_.one_query_us[0]);
    const std::int64_t longest = *std::max_element(kv_tokens, kv_tokens + size.requests);
    const std::int64_t most_kv = decodes.span ? decodes.span->seen(longest) : longest;
    const PromptPart& prompts = prompts_[kernel];
    timed_.time_us[0] =
        call->time_us(prompts, {alone_us, static_cast<double>(size.requests), static_cast<double>(size.queries),
                                static_cast<double>(timed_.kv_tokens[0]), static_cast<double>(most_kv)}) -
        prompts.time_us;
    timed_.one_query_us.clear();
    timed_.is_estimate |= call->is_estimate;
}

void StageAttention::time_over_all(const DecodeKernel& kernel, const std::int64_t* kv_tokens, std::size_t count) {
    const std::size_t steps = timed_.time_us.size();
    timed_.is_estimate = kernel.times->over(kv_tokens, count, steps, timed_.time_us.data());
    if (kernel.one_query) kernel.one_query->over(kv_tokens, count, steps, timed_.one_query_us.data());
    std::int64_t total = std::accumulate(kv_tokens, kv_tokens + count, std::int64_t{0});
    for (std::size_t step = 0; step < steps; ++step, total += static_cast<std::int64_t>(count)) {
        timed_.kv_tokens[step] = total;
    }
}

// Step by step, as what a query sees does not grow with its request; once all see a full window, nothing changes.
void StageAttention::time_within_span(const DecodeKernel& kernel, const std::int64_t* kv_tokens, std::size_t count) {
    const KeySpan& span = *kernel.span;
    std::vector<std::int64_t>& seen = within_span_.kv_tokens;
    seen.resize(count);
    const std::int64_t shortest = *std::min_element(kv_tokens, kv_tokens + count);
    for (std::size_t step = 0; step < timed_.time_us.size(); ++step) {
        const auto later = static_cast<std::int64_t>(step);
        if (step > 0 && !span.is_chunked && shortest + later > span.tokens) {
            timed_.time_us[step] = timed_.time_us[step - 1];
            if (kernel.one_query) timed_.one_query_us[step] = timed_.one_query_us[step - 1];
            timed_.kv_tokens[step] = timed_.kv_tokens[step - 1];
            continue;
        }
        std::transform(kv_tokens, kv_tokens + count, seen.begin(),
                       [&](std::int64_t tokens) { return span.seen(tokens + later); });
        const bool is_estimate = kernel.times->over(seen.data(), count, 1, &timed_.time_us[step]);
        timed_.is_estimate = step == 0 ? is_estimate : timed_.is_estimate;
        if (kernel.one_query) kernel.one_query->over(seen.data(), count, 1, &timed_.one_query_us[step]);
        timed_.kv_tokens[step] = std::accumulate(seen.begin(), seen.end(), std::int64_t{0});
    }
}

void StageAttention::add_prompts(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                                 PricedTable& groups, PricedOperators& sum, bool with_decodes) {
    if (!others_.chunks) return add_prefills(new_tokens, kv_tokens, count, groups, sum, with_decodes);
    for (auto* column : {&short_new_, &short_kv_, &long_new_, &long_kv_}) column->clear();
    for (std::size_t i = 0; i < count; ++i) {
        const bool is_short = new_tokens[i] <= others_.chunks->most_tokens;
        (is_short ? short_new_ : long_new_).push_back(new_tokens[i]);
        (is_short ? short_kv_ : long_kv_).push_back(kv_tokens[i]);
    }
    if (!short_new_.empty()) add_chunks(*others_.chunks, groups, sum);
    if (long_new_.empty()) return;
    add_prefills(long_new_.data(), long_kv_.data(), long_new_.size(), groups, sum, with_decodes);
}

void StageAttention::add_chunks(const ShortChunks& chunks, PricedTable& groups, PricedOperators& sum) const {
    double pairs = 0.0, queries = 0.0, keys = 0.0;
    std::int64_t most_keys = 0;
    for (std::size_t i = 0; i < short_new_.size(); ++i) {
        const auto own = static_cast<double>(short_new_[i]), all = static_cast<double>(short_kv_[i]);
        pairs += causal_pairs(own, all);
        queries += own;
        keys += all;
        most_keys = std::max(most_keys, short_kv_[i]);
    }
    const KernelLoad& load = chunks.load;
    const double time_us = chunks.start_us + chunks.pair_us * pairs + chunks.query_us * queries;
    const double moved_bytes = chunks.bytes_per_query * queries + chunks.bytes_per_key * keys;
    const double clocked = clocked_share(time_us, moved_bytes / load.stream_bytes_per_s * 1e6);
    const double tensor_us = chunks.flops_per_pair * pairs / load.load_flops * 1e6;
    const auto executions = static_cast<double>(load.count);
    const bool is_estimate = chunks.is_estimate || most_keys > chunks.reach_tokens;
    add_attention(sum, to_ps(time_us * executions), to_ps(clocked * time_us * executions),
                  to_ps(tensor_us * executions), is_estimate ? load.name : 0);
    sum += groups.between(OperatorGroup::kOtherDecodeKernels, static_cast<std::int64_t>(queries));
}

void StageAttention::add_prefills(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                                  PricedTable& groups, PricedOperators& sum, bool with_decodes) {
    prompts_.clear();
    for (const PrefillKernel& kernel : prefills_) {
        const bool are_chunks = kernel.span && kernel.span->is_chunked;
        within_span_.clear();
        if (are_chunks) {
            for (std::size_t i = 0; i < count; ++i) kernel.span->add_chunks(new_tokens[i], kv_tokens[i], within_span_);
        }
        auto found = are_chunks ? kernel.times->of(within_span_) : kernel.times->of(new_tokens, kv_tokens, count);
        prompts_.push_back(prompt_part(kernel, found.time_us, new_tokens, kv_tokens, count));
        if (kernel.mixed && !with_decodes) found.time_us = kernel.mixed->prompts_us(prompts_.back());
        const KernelLoad& load = kernel.load;
        const double memory_us = found.cost.moved_bytes / load.stream_bytes_per_s * 1e6;
        const double clocked = clocked_share(found.time_us, memory_us);
        const double tensor_us = found.cost.flops / load.load_flops * 1e6;
        const auto executions = static_cast<double>(load.count);
        add_attention(sum, to_ps(found.time_us * executions), to_ps(clocked * found.time_us * executions),
                      to_ps(tensor_us * executions), found.is_estimate ? load.name : 0);
    }
    if (others_.expand_latents) add_expansions(new_tokens, kv_tokens, count, groups, sum);
    if (others_.are_recurrent) {
        const std::int64_t tokens = std::accumulate(new_tokens, new_tokens + count, std::int64_t{0});
        sum += groups.between(OperatorGroup::kRecurrentPrompts, tokens, static_cast<std::int64_t>(count));
    }
}

void StageAttention::add_expansions(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                                    PricedTable& groups, PricedOperators& sum) const {
    std::int64_t chunk = 0, past = 0, merged = 0;
    for (std::size_t i = 0; i < count; ++i) {
        chunk += new_tokens[i];
        past += kv_tokens[i] - new_tokens[i];
        merged += kv_tokens[i] > new_tokens[i] ? new_tokens[i] : 0;
    }
    sum += groups.between(OperatorGroup::kExpandedChunk, chunk);
    if (past > 0) sum += groups.between(OperatorGroup::kExpandedPast, past);
    if (merged > 0) sum += groups.between(OperatorGroup::kMerged, merged);
}

}  // namespace aicb
