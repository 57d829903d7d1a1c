#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace aicb {

namespace {

constexpr double kPsPerUs = 1e6;
constexpr std::size_t kAttentionPhase = 0;  // aicb.iteration.pricing.PHASES

TimePs to_ps(double time_us) { return static_cast<TimePs>(std::nearbyint(time_us * kPsPerUs)); }

std::uint64_t packed(const DecodeSize& size) {
    return static_cast<std::uint64_t>(size.requests) << 16 | static_cast<std::uint64_t>(size.queries);
}

void add_attention(Part& sum, TimePs total_ps, TimePs clocked_ps, TimePs tensor_ps, std::uint64_t estimated) {
    sum.phase_ps[kAttentionPhase] += total_ps;
    sum.total_ps += total_ps;
    sum.clocked_ps += clocked_ps;
    sum.tensor_ps += tensor_ps;
    if (estimated != 0) sum.estimated_ps += total_ps;
    sum.estimated |= estimated;
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

void StageAttention::add_decodes(const std::int64_t* kv_tokens, const DecodeSize& size, StepLoads& loads, Part& first) {
    const auto* kernels = kernels_of(size);
    if (kernels == nullptr) return;
    for (const DecodeKernel& kernel : *kernels) {
        add_kernel(kernel, kv_tokens, static_cast<std::size_t>(size.requests), loads, first);
    }
}

void StageAttention::add_kernel(const DecodeKernel& kernel, const std::int64_t* kv_tokens, std::size_t count,
                                StepLoads& loads, Part& first) {
    const std::size_t steps = loads.total_ps.size();
    time_us_.resize(steps);
    const bool is_estimate = kernel.times->over(kv_tokens, count, steps, time_us_.data());
    if (kernel.one_query) {
        one_query_us_.resize(steps);
        kernel.one_query->over(kv_tokens, count, steps, one_query_us_.data());
        for (std::size_t step = 0; step < steps; ++step) time_us_[step] = std::max(time_us_[step], one_query_us_[step]);
    }
    const std::int64_t total = std::accumulate(kv_tokens, kv_tokens + count, std::int64_t{0});
    const auto executions = static_cast<double>(kernel.count);
    for (std::size_t step = 0; step < steps; ++step) {
        const auto tokens = static_cast<double>(total + static_cast<std::int64_t>(count * step));
        const double time_us = time_us_[step], by_memory = std::min(tokens * kernel.memory_us / time_us, 1.0);
        const TimePs total_ps = to_ps(executions * time_us);
        const TimePs clocked_ps = to_ps(executions * (time_us * (1.0 - by_memory * by_memory)));
        const TimePs tensor_ps = to_ps(executions * (tokens * kernel.tensor_us));
        loads.total_ps[step] += total_ps;
        loads.clocked_ps[step] += clocked_ps;
        loads.tensor_ps[step] += tensor_ps;
        if (step == 0) add_attention(first, total_ps, clocked_ps, tensor_ps, is_estimate ? kernel.name : 0);
    }
}

void StageAttention::add_prefills(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                                  PartTable& parts, Part& sum) {
    for (const PrefillKernel& kernel : prefills_) {
        const auto found = kernel.times->of(new_tokens, kv_tokens, count);
        const KernelLoad& load = kernel.load;
        const double memory_us = found.demand.moved_bytes / load.stream_bytes_per_s * 1e6;
        const double by_memory = std::min(memory_us / found.time_us, 1.0);
        const double tensor_us = found.demand.flops / load.peak_flops * 1e6;
        const auto executions = static_cast<double>(load.count);
        add_attention(sum, to_ps(found.time_us * executions),
                      to_ps((1.0 - by_memory * by_memory) * found.time_us * executions), to_ps(tensor_us * executions),
                      found.is_estimate ? load.name : 0);
    }
    if (beside_.expand_latents) add_expansions(new_tokens, kv_tokens, count, parts, sum);
    if (beside_.are_recurrent) {
        const std::int64_t tokens = std::accumulate(new_tokens, new_tokens + count, std::int64_t{0});
        sum += parts.between(PartKind::kRecurrentPrompts, tokens, static_cast<std::int64_t>(count));
    }
}

void StageAttention::add_expansions(const std::int64_t* new_tokens, const std::int64_t* kv_tokens, std::size_t count,
                                    PartTable& parts, Part& sum) const {
    std::int64_t chunk = 0, past = 0, merged = 0;
    for (std::size_t i = 0; i < count; ++i) {
        chunk += new_tokens[i];
        past += kv_tokens[i] - new_tokens[i];
        merged += kv_tokens[i] > new_tokens[i] ? new_tokens[i] : 0;
    }
    sum += parts.between(PartKind::kExpandedChunk, chunk);
    if (past > 0) sum += parts.between(PartKind::kExpandedPast, past);
    if (merged > 0) sum += parts.between(PartKind::kMerged, merged);
}

}  // namespace aicb
