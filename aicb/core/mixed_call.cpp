#include "mixed_call.hpp"

#include <algorithm>
#include <cmath>

#include "prefill_times.hpp"

namespace aicb {

namespace {

constexpr double kCapturedSplits = 32.0;  // flash_attn_max_num_splits_for_cuda_graph

}  // namespace

double MixedCall::tiles_of(double new_tokens) const { return kv_heads * std::ceil(new_tokens * sharing / rows); }

void MixedCall::add(PromptPart& prompts, std::int64_t new_tokens, std::int64_t kv_tokens) const {
    const auto own = static_cast<double>(new_tokens);
    prompts.new_tokens += own;
    prompts.most_new = std::max(prompts.most_new, own);
    prompts.most_kv = std::max(prompts.most_kv, static_cast<double>(kv_tokens));
    prompts.tiles += tiles_of(own);
}

double MixedCall::prompts_us(const PromptPart& prompts) const {
    return prompts.time_us + (prompts.new_tokens <= split_tokens ? prompt_split_us * prompts.new_tokens : 0.0);
}

// Parts that a request may have.
double MixedCall::splits(const PromptPart& prompts, const DecodePart& decodes) const {
    if (prompts.new_tokens + decodes.requests * decodes.queries <= split_tokens) return kCapturedSplits;
    return allowed_splits(tiles_of(prompts.most_new),
                          std::ceil(std::max(prompts.most_kv, decodes.most_kv) / block_tokens), sms);
}

double MixedCall::time_us(const PromptPart& prompts, const DecodePart& decodes) const {
    const double most_splits = splits(prompts, decodes);
    const double prompts_us = std::max(prompts.time_us - floor_us, 0.0);
    const double waves = prompts.tiles / sms;
    double decodes_us = std::max(decodes.time_us - decode_floor_us, 0.0), longest_us = 0.0;
    // Queries of a KV head that fit tiles of few rows keep those of decodes.
    if (prompts.most_new * sharing > kFewRows) {
        const double tiles = kv_heads * std::ceil(decodes.queries * sharing / rows);
        const double together_us = tiles * (start_us * decodes.requests + key_us * decodes.kv_tokens) / sms;
        decodes_us = std::max(decodes_us, together_us);
        longest_us = (start_us + key_us * decodes.most_kv) / most_splits;
    }
    const double busy_us = prompts_us * waves / std::ceil(waves) + decodes_us;
    const double split = most_splits > 1.0 ? split_us : 0.0;
    return std::max(floor_us + std::max({prompts_us, busy_us, longest_us}) + split, prompts.time_us);
}

}  // namespace aicb
