#include "decode_times.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "transfer.hpp"

namespace aicb {

namespace {

constexpr std::int64_t kMostBlockTokens = 160;

// Σ|S − mean|.
double deviation_of(const std::int64_t* kv_tokens, std::size_t count, std::int64_t total) {
    const auto requests = static_cast<std::int64_t>(count);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += std::abs(kv_tokens[i] * requests - total);
    return static_cast<double>(sum) / static_cast<double>(requests);
}

}  // namespace

std::size_t VolumeFunction::knot_of(double at) const {
    const auto above = std::upper_bound(volume.begin(), volume.end(), at);
    return above == volume.begin() ? 0 : static_cast<std::size_t>(above - volume.begin()) - 1;
}

bool DecodeTimes::over(const std::int64_t* kv_tokens, std::size_t count, std::size_t steps, double* time_us) const {
    const std::int64_t total = std::accumulate(kv_tokens, kv_tokens + count, std::int64_t{0});
    const auto tokens_at = [&](std::size_t step) {
        return static_cast<double>(total + static_cast<std::int64_t>(count * step));
    };
    volumes(kv_tokens, count, steps, time_us);
    const bool is_far = time_us[0] < low || time_us[steps - 1] > high;
    const double deviation = deviation_of(kv_tokens, count, total);
    const std::int64_t longest = *std::max_element(kv_tokens, kv_tokens + count);
    std::size_t knot = time.knot_of(time_us[0]);
    for (std::size_t step = 0; step < steps; ++step) {
        const double volume = time_us[step], tokens = tokens_at(step);
        while (knot + 1 < time.volume.size() && time.volume[knot + 1] <= volume) ++knot;
        double found_us = time.time_at(volume, knot);
        if (deviation > 0.0) {
            const auto longest_tokens = static_cast<double>(longest + static_cast<std::int64_t>(step));
            found_us += split_kv.penalty_us(found_us, deviation / tokens, longest_tokens);
        }
        time_us[step] = scaled_us(found_us, tokens);
    }
    return is_estimate || transfer || is_far;
}

std::pair<double, bool> DecodeTimes::of_equal(std::int64_t kv_tokens, std::int64_t count) const {
    const double volume = split_kv.volume_of(count * (split_kv.overhead_blocks + split_kv.blocks_of(kv_tokens)));
    const bool is_far = volume < low || volume > high;
    return {scaled_us(time.at(volume), static_cast<double>(count * kv_tokens)), is_estimate || transfer || is_far};
}

// Held to the roofline, and on the GPU in question.
double DecodeTimes::scaled_us(double found_us, double kv_tokens) const {
    found_us = std::max(found_us, bound.least_us(kv_tokens));
    if (!transfer) return found_us;
    const auto parts = [&](double latency_us, const KvCost& cost) {
        return TransferParts{latency_us, kv_tokens * cost.tensor_us, cost.reading_us(kv_tokens)};
    };
    const TransferParts origin = parts(transfer->origin_latency_us, transfer->origin);
    const TransferParts target = parts(transfer->target_latency_us, transfer->target);
    return std::max(transferred_us(found_us, origin, target), transfer->bound.least_us(kv_tokens));
}

// By the count of each residue instead of request by request: a request opens a block in step j ≥ 1 when S + j − 1 is a
// multiple of the block.
void DecodeTimes::volumes(const std::int64_t* kv_tokens, std::size_t count, std::size_t steps, double* volume) const {
    const std::int64_t block = split_kv.block_tokens;
    assert(block <= kMostBlockTokens);
    std::int64_t blocks = split_kv.overhead_blocks * static_cast<std::int64_t>(count);
    for (std::size_t i = 0; i < count; ++i) blocks += split_kv.blocks_of(kv_tokens[i]);
    if (steps == 1) {
        volume[0] = split_kv.volume_of(blocks);
        return;
    }
    std::array<std::int64_t, kMostBlockTokens> residues{};
    for (std::size_t i = 0; i < count; ++i) ++residues[static_cast<std::size_t>(kv_tokens[i] % block)];
    std::int64_t opening = 0;  // residue of the requests that open a block in the next step
    for (std::size_t step = 0; step < steps; ++step) {
        volume[step] = split_kv.volume_of(blocks);
        blocks += residues[static_cast<std::size_t>(opening)];
        opening = opening == 0 ? block - 1 : opening - 1;
    }
}

}  // namespace aicb
