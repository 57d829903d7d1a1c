#include "stage_pricing.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace aicb {

std::int32_t InternTable::of_estimated(std::uint64_t names) {
    if (const std::int32_t* found = estimated_numbers_.find(names)) return *found;
    const auto number = static_cast<std::int32_t>(estimated_.size());
    estimated_numbers_.insert(names, number);
    estimated_.push_back(names);
    return number;
}

std::int32_t InternTable::of_communications(const Collectives& lists) {
    const auto key = static_cast<std::uint64_t>(lists.tokens) << 42 | static_cast<std::uint64_t>(lists.experts) << 21 |
                     static_cast<std::uint64_t>(lists.head);
    if (const std::int32_t* found = communication_numbers_.find(key)) return *found;
    const auto number = static_cast<std::int32_t>(communications_.size());
    communication_numbers_.insert(key, number);
    communications_.push_back(lists);
    return number;
}

bool StagePricing::price(const RankBatches& batches, std::int64_t steps, IterationCost& first,
                         std::vector<TimePs>& compute_ps) {
    const std::int64_t rows = *std::max_element(batches.logit_rows, batches.logit_rows + batches.ranks);
    return price_queries(batches, steps, 1, rows, first, compute_ps);
}

bool StagePricing::price_queries(const RankBatches& batches, std::int64_t steps, std::int64_t queries,
                                 std::int64_t rows, IterationCost& first, std::vector<TimePs>& compute_ps) {
    const Phases phases = split(batches);
    assert(phases.is_decode || steps == 1);
    std::int64_t most_tokens = 0;
    for (Rank& rank : ranks_) {
        rank.tokens += (queries - 1) * static_cast<std::int64_t>(rank.decodes);
        most_tokens = std::max(most_tokens, rank.tokens);
    }
    const Padding padding = pad(most_tokens, phases);
    Shared shared{0, most_tokens, *std::max_element(batches.requests, batches.requests + batches.ranks), rows, phases};
    loads_.assign(static_cast<std::size_t>(steps));
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        shared.group_tokens += padded(padding, ranks_[rank].tokens);
        price_rank(rank, padding, queries, phases.is_decode);
        keep_slower(rank);
    }
    return finish(padding, shared, first, compute_ps);
}

bool StagePricing::price_timed(const TimedAttention& timed, IterationCost& first, std::vector<TimePs>& compute_ps) {
    std::int64_t most_tokens = 0;
    for (const auto& rank : timed.ranks) most_tokens = std::max(most_tokens, rank.tokens);
    const Padding padding = pad(most_tokens, timed.phases);
    Shared shared{0, most_tokens, timed.most_requests, timed.logit_rows, timed.phases};
    loads_.assign(static_cast<std::size_t>(timed.steps));
    for (std::size_t rank = 0; rank < timed.ranks.size(); ++rank) {
        const auto& own = timed.ranks[rank];
        shared.group_tokens += padded(padding, own.tokens);
        first_ = token_group(padding, own.tokens);
        if (timed.phases.is_decode && own.tokens > 0) first_ += other_decode_kernels(padding, own.tokens, true);
        first_ += own.prompts;
        loads_.assign(loads_.total_ps.size());
        loads_.add(first_);
        for (const TimedKernel& kernel : own.decodes) add_steps(kernel, loads_, first_);
        keep_slower(rank);
    }
    return finish(padding, shared, first, compute_ps);
}

// What the slowest rank and all ranks together take, at the clock of the load.
bool StagePricing::finish(const Padding& padding, const Shared& shared, IterationCost& first,
                          std::vector<TimePs>& compute_ps) {
    InternTable::Collectives lists{};
    const PricedOperators all = common(padding, shared, lists);
    if (!groups.missing.empty() || !attention.missing_sizes.empty()) return false;

    const HostWork host = host_work(shared.most_tokens, shared.most_requests, shared.phases);
    const TimePs added_ps = rules_.host.step_ps + (padding.is_captured ? rules_.host.gaps_ps : 0);
    const std::optional<ClockLaw>& law = shared.phases.is_decode ? rules_.settled_clock : rules_.clock;
    slowest_.add(all);
    compute_ps.resize(slowest_.total_ps.size());
    for (std::size_t step = 0; step < compute_ps.size(); ++step) {
        compute_ps[step] = law ? at_clock(*law, step, added_ps, host.period_ps()) : slowest_.total_ps[step];
    }
    PricedOperators whole = slowest_first_;
    whole += all;
    whole = whole.scaled_to(compute_ps[0]);
    for (TimePs& busy_ps : compute_ps) busy_ps += added_ps;
    first = {compute_ps[0],
             added_ps,
             whole.estimated_ps,
             host,
             whole.phase_ps,
             interned_->of_estimated(whole.estimated),
             interned_->of_communications(lists)};
    return true;
}

HostWork StagePricing::host_work(const RankBatches& batches) {
    const Phases phases = split(batches);
    std::int64_t most_tokens = 0;
    for (const Rank& rank : ranks_) most_tokens = std::max(most_tokens, rank.tokens);
    return host_work(most_tokens, *std::max_element(batches.requests, batches.requests + batches.ranks), phases);
}

// Of the ranks with the most of each.
HostWork StagePricing::host_work(std::int64_t most_tokens, std::int64_t most_requests, Phases phases) const {
    return {rules_.host.prepare(most_tokens, most_requests, phases.is_decode), pad(most_tokens, phases).launch_ps,
            rules_.host.hand_over_ps};
}

// Sorts the requests of every rank into decodes and prefills.
Phases StagePricing::split(const RankBatches& batches) {
    ranks_.clear();
    decode_kv_.clear();
    prefill_new_.clear();
    prefill_kv_.clear();
    std::size_t request = 0;
    bool has_decodes_alone = false;
    for (std::size_t rank = 0; rank < batches.ranks; ++rank) {
        Rank made{decode_kv_.size(), 0, prefill_new_.size(), 0, 0};
        for (const std::size_t end = request + static_cast<std::size_t>(batches.requests[rank]); request < end;
             ++request) {
            const std::int64_t tokens = batches.new_tokens == nullptr ? 1 : batches.new_tokens[request];
            const std::int64_t kv = batches.kv_tokens[request];
            made.tokens += tokens;
            if (tokens == 1 && kv > 1) {
                decode_kv_.push_back(kv);
            } else {
                prefill_new_.push_back(tokens);
                prefill_kv_.push_back(kv);
            }
        }
        made.decodes = decode_kv_.size() - made.decodes_begin;
        made.prefills = prefill_new_.size() - made.prefills_begin;
        has_decodes_alone |= made.decodes > 0 && made.prefills == 0;
        ranks_.push_back(made);
    }
    return {prefill_new_.empty(), has_decodes_alone && !prefill_new_.empty()};
}

StagePricing::Padding StagePricing::pad(std::int64_t most_tokens, Phases phases) const {
    const auto& sizes = phases.is_decode ? rules_.graph_sizes : rules_.prompt_graph_sizes;
    const auto fitting = std::lower_bound(sizes.begin(), sizes.end(), most_tokens);
    const bool is_replayed = fitting != sizes.end() && (rules_.replays_divided || !phases.is_divided);
    if (!is_replayed) return {false, most_tokens, rules_.host.eager_ps};
    return {true, *fitting, phases.is_decode ? rules_.host.full_ps : rules_.host.piecewise_ps};
}

// An idle rank runs a dummy batch of one token.
std::int64_t StagePricing::padded(const Padding& padding, std::int64_t tokens) const {
    return padding.is_captured ? padding.tokens : std::max<std::int64_t>(tokens, 1);
}

PricedOperators StagePricing::token_group(const Padding& padding, std::int64_t tokens) {
    const std::int64_t computed = padded(padding, tokens);
    return padding.is_captured ? groups.at({OperatorGroup::kTokens, computed, 0})
                               : groups.between(OperatorGroup::kTokens, computed);
}

// Kernels of attention that do not read the cache, of a rank with so many decodes' tokens.
PricedOperators StagePricing::other_decode_kernels(const Padding& padding, std::int64_t tokens, bool is_decode) {
    const std::int64_t computed = is_decode ? padded(padding, tokens) : tokens;
    return padding.is_captured ? groups.at({OperatorGroup::kOtherDecodeKernels, computed, 0})
                               : groups.between(OperatorGroup::kOtherDecodeKernels, computed);
}

void StagePricing::price_rank(std::size_t number, const Padding& padding, std::int64_t queries, bool is_decode) {
    const Rank& rank = ranks_[number];
    first_ = token_group(padding, rank.tokens);
    if (rank.prefills > 0) {
        attention.add_prompts(&prefill_new_[rank.prefills_begin], &prefill_kv_[rank.prefills_begin], rank.prefills,
                              groups, first_, rank.decodes > 0);
    }
    // With prefills no full graph is replayed, whose padding kernels would compute.
    if (rank.decodes > 0) {
        const std::int64_t decoded = queries * static_cast<std::int64_t>(rank.decodes);
        first_ += other_decode_kernels(padding, is_decode ? rank.tokens : decoded, is_decode);
    }
    loads_.assign(loads_.total_ps.size());
    loads_.add(first_);
    if (rank.decodes > 0) {
        attention.add_decodes(&decode_kv_[rank.decodes_begin], {static_cast<std::int64_t>(rank.decodes), queries},
                              loads_, first_, rank.prefills > 0);
    }
}

// The slowest rank may be another one in every step.
void StagePricing::keep_slower(std::size_t rank) {
    if (rank == 0) {
        std::swap(slowest_, loads_);
        loads_.assign(slowest_.total_ps.size());
        slowest_first_ = first_;
        return;
    }
    if (loads_.total_ps[0] > slowest_.total_ps[0]) slowest_first_ = first_;
    for (std::size_t step = 0; step < loads_.total_ps.size(); ++step) {
        if (loads_.total_ps[step] <= slowest_.total_ps[step]) continue;
        slowest_.total_ps[step] = loads_.total_ps[step];
        slowest_.clocked_ps[step] = loads_.clocked_ps[step];
        slowest_.tensor_ps[step] = loads_.tensor_ps[step];
    }
}

// Routed experts and head, and the collectives of the iteration.
PricedOperators StagePricing::common(const Padding& padding, const Shared& shared, InternTable::Collectives& lists) {
    const std::int64_t most = padding.tokens, group = rules_.shares_experts ? shared.group_tokens : most;
    const OperatorGroup kind =
        shared.phases.is_decode ? OperatorGroup::kMaskedExperts : OperatorGroup::kContiguousExperts;
    PricedOperators made = padding.is_captured ? groups.at({kind, most, group}) : groups.between(kind, most, group);
    const PricedOperators& head = groups.at({OperatorGroup::kHead, shared.rows, 0});
    lists = {token_group(padding, most).communications, made.communications, head.communications};
    made += head;
    return made;
}

// Of the slowest rank. `added_ps`: of the device besides, at any clock. The load is that of iterations one after
// another.
TimePs StagePricing::at_clock(const ClockLaw& law, std::size_t step, TimePs added_ps, TimePs host_ps) const {
    const TimePs busy_ps = slowest_.total_ps[step], step_ps = std::max(added_ps + busy_ps, host_ps);
    const double share = static_cast<double>(slowest_.tensor_ps[step]) / static_cast<double>(step_ps);
    const double added = static_cast<double>(slowest_.clocked_ps[step]) * (law.slowdown(share) - 1.0);
    return busy_ps + static_cast<TimePs>(std::nearbyint(added));
}

}  // namespace aicb
