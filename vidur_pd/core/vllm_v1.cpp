#include "vllm_v1.hpp"

#include <algorithm>
#include <utility>

namespace serving {

namespace {

// Most tokens of one request in a step, drafts included.
Tokens chunk_limit(const Limits& limits) {
    return limits.long_prefill_token_threshold ? limits.long_prefill_token_threshold : limits.max_batched_tokens;
}

}  // namespace

void VllmV1::decide(RankState& rank) {
    const bool has_preempted = continue_running(rank);
    if (!has_preempted && rank.has_candidates()) admit_waiting(rank);
}

// Running requests in order of admission, with blocks for their tokens; others are preempted for blocks. True if some
// were.
bool VllmV1::continue_running(RankState& rank) {
    bool has_preempted = false;
    for (std::size_t position = 0; position < rank.running().size(); ++position) {
        const RequestPtr request = rank.running()[position];
        if (request->is_in_iteration) continue;
        const Tokens behind = request->sequence_tokens() - request->computed_tokens;
        const Tokens chunk = std::min(behind + rank.most_drafts(*request), chunk_limit(rank.limits()));
        const Tokens tokens = std::min(chunk, rank.budget_left());
        if (tokens == 0) break;
        if (rank.lacking_blocks(*request, tokens) > rank.free_blocks()) {
            has_preempted = true;
            if (!make_room(rank, request, tokens, position)) break;
        }
        rank.run(request, tokens);
    }
    return has_preempted;
}

// Preempts running requests, those that end as well, until the request finds its blocks; false if it had to go itself.
// The position of the request follows victims that stand before it and take part in this step. Where one before it does
// not, as it ends, the position stays, as in vLLM: the step then leaves out the one behind the request.
bool VllmV1::make_room(RankState& rank, const RequestPtr& request, Tokens tokens, std::size_t& position) {
    while (rank.lacking_blocks(*request, tokens) > rank.free_blocks()) {
        const RequestPtr victim = next_victim(rank);
        position -= victim->is_decided;
        rank.preempt(victim);
        if (victim == request) return false;
    }
    return true;
}

// The last of the running list, or the last by (priority, arrival), of equal ones the first of the list.
RequestPtr VllmV1::next_victim(const RankState& rank) {
    RequestPtr victim;
    for (auto other = rank.running().rbegin(); other != rank.running().rend(); ++other) {
        if ((*other)->is_in_iteration && !(*other)->is_ending) continue;
        if (!rank.limits().by_priority) return *other;
        const auto urgency = [](const RequestPtr& of) { return std::pair(of->priority, of->arrived_ps); };
        if (!victim || urgency(*other) >= urgency(victim)) victim = *other;
    }
    return victim;
}

// Those that start to run with this step: first those whose KV has arrived, then the others, each in order; or by
// priority.
void VllmV1::admit_waiting(RankState& rank) {
    while (rank.budget_left() > 0 && rank.running_requests() < rank.limits().max_seqs) {
        if (const auto next = find_admissible(rank, rank.budget_left())) {
            if (next->load.reaches.empty()) {
                rank.admit(next->request, next->tokens, next->prefix);
            } else {
                rank.begin_load(next->load, next->prefix);
            }
        } else if (rank.running().empty() && !rank.is_transferring() && !rank.arrived().empty()) {
            rank.preempt(rank.arrived().back());
        } else {
            break;
        }
    }
}

// The next request in line if blocks for its whole sequence are free now, those for its tokens and the look-ahead after
// them as well, and the budget has room for it.
std::optional<VllmV1::Admissible> VllmV1::find_admissible(const RankState& rank, Tokens budget) {
    if (!rank.has_candidates()) return std::nullopt;
    const RequestPtr waiting = rank.first_waiting();
    const bool is_local =
        rank.arrived().empty() || (rank.limits().by_priority && waiting && goes_first(waiting, rank.arrived().front()));
    const RequestPtr request = is_local ? waiting : rank.arrived().front();
    CachedPrefix prefix;
    if (is_local) prefix = rank.cached_prefix(*request);
    const Tokens past = is_local ? rank.ready_tokens(*request, prefix) : request->computed_tokens;
    const std::int64_t held = is_local ? prefix.shared_blocks : rank.blocks(request->context_tokens);
    const std::int64_t spared = rank.running().empty() ? 0 : rank.limits().watermark_blocks;
    const Tokens chunk = std::min(request->sequence_tokens() - past, chunk_limit(rank.limits()));
    if (chunk > budget && !rank.limits().chunks_prompts) return std::nullopt;
    const Tokens tokens = std::min(chunk, budget);
    const Tokens reserved = std::max(request->sequence_tokens(), rank.with_lookahead(past + tokens));
    if (rank.blocks(reserved) - held > rank.free_blocks() - spared) return std::nullopt;
    TierLoad load;
    if (is_local && rank.has_tiers() && !rank.loads_layerwise()) load = rank.find_load(request, prefix);
    return Admissible{request, tokens, std::move(prefix), std::move(load)};
}

bool VllmV1::is_steady(RankState& rank) {
    const Limits& limits = rank.limits();
    const std::int64_t running = rank.running_requests();
    if (running >= std::min<std::int64_t>(limits.max_seqs, limits.max_batched_tokens)) return true;
    return !find_admissible(rank, limits.max_batched_tokens - running);
}

}  // namespace serving
