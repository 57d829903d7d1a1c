#include "vllm_v1.hpp"

#include <algorithm>

namespace serving {

namespace {

// Most tokens of one prompt in a step.
Tokens chunk_limit(const Limits& limits) {
    return limits.long_prefill_token_threshold ? limits.long_prefill_token_threshold : limits.max_batched_tokens;
}

}  // namespace

void VllmV1::decide(RankState& rank) {
    const bool has_preempted = continue_running(rank);
    if (!has_preempted && rank.has_candidates()) admit_waiting(rank);
}

// Running requests in order of admission, with blocks for their tokens; the tail is preempted for blocks. True if it
// was.
bool VllmV1::continue_running(RankState& rank) {
    bool has_preempted = false;
    for (std::size_t position = 0; position < rank.running().size(); ++position) {
        const RequestPtr request = rank.running()[position];
        if (request->is_in_iteration) continue;
        const Tokens drafts = rank.most_drafts(*request);
        const Tokens behind =
            std::min(request->sequence_tokens() - request->computed_tokens, chunk_limit(rank.limits()));
        const Tokens tokens = std::min(behind + drafts, rank.budget_left());
        if (tokens == 0) break;
        if (rank.lacking_blocks(*request, tokens) > rank.free_blocks()) {
            has_preempted = true;
            if (!make_room(rank, request, tokens)) break;
        }
        rank.run(request, tokens);
    }
    return has_preempted;
}

// Preempts running requests from the tail, those that end as well, until the request finds its blocks; false if it had
// to go itself.
bool VllmV1::make_room(RankState& rank, const RequestPtr& request, Tokens tokens) {
    while (rank.lacking_blocks(*request, tokens) > rank.free_blocks()) {
        const auto tail = std::find_if(rank.running().rbegin(), rank.running().rend(), [](const RequestPtr& other) {
            return !other->is_in_iteration || other->is_ending;
        });
        const RequestPtr victim = *tail;
        rank.preempt(victim);
        if (victim == request) return false;
    }
    return true;
}

// Those that start to run with this step: first those whose KV has arrived, then the others, each in order.
void VllmV1::admit_waiting(RankState& rank) {
    while (rank.budget_left() > 0 && rank.running_requests() < rank.limits().max_seqs) {
        const auto prefix = find_admissible_prefix(rank);
        if (!prefix) {
            if (!rank.running().empty() || rank.is_transferring() || rank.arrived().empty()) break;
            rank.preempt(rank.arrived().back());
            continue;
        }
        const bool has_arrived = !rank.arrived().empty();
        const RequestPtr request = has_arrived ? rank.arrived().front() : rank.waiting().front();
        const Tokens past = has_arrived ? request->computed_tokens : prefix->tokens;
        rank.admit(request,
                   std::min({request->sequence_tokens() - past, chunk_limit(rank.limits()), rank.budget_left()}),
                   *prefix);
    }
}

// Cached prefix of the next request in line if blocks for its whole sequence are free now.
std::optional<CachedPrefix> VllmV1::find_admissible_prefix(RankState& rank) {
    CachedPrefix prefix;
    std::int64_t needed;
    if (!rank.arrived().empty()) {
        const Request& request = *rank.arrived().front();
        needed = rank.blocks(rank.with_lookahead(request.sequence_tokens())) - rank.blocks(request.context_tokens);
    } else if (!rank.waiting().empty()) {
        const Request& request = *rank.waiting().front();
        prefix = rank.cached_prefix(request);
        needed = rank.blocks(rank.with_lookahead(request.sequence_tokens())) - prefix.shared_blocks;
    } else {
        return std::nullopt;
    }
    const bool keeps_watermark = rank.arrived().empty() && !rank.running().empty();
    if (needed > rank.free_blocks() - (keeps_watermark ? rank.limits().watermark_blocks : 0)) return std::nullopt;
    return prefix;
}

bool VllmV1::is_steady(RankState& rank) {
    const std::int64_t most = std::min<std::int64_t>(rank.limits().max_seqs, rank.limits().max_batched_tokens);
    return rank.running_requests() >= most || !find_admissible_prefix(rank);
}

}  // namespace serving
