#include "rank_group.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace serving {

namespace {

bool is_handed_over(const RequestPtr& request) { return request->role == Role::kPrefill; }

}  // namespace

std::pair<std::vector<TimePs>, std::vector<std::int64_t>> GapCounts::counts() const {
    std::vector<std::pair<TimePs, std::int64_t>> sorted;
    requests_.for_each([&](std::uint64_t gap_ps, std::int64_t requests) {
        sorted.emplace_back(static_cast<TimePs>(gap_ps), requests);
    });
    std::sort(sorted.begin(), sorted.end());
    std::pair<std::vector<TimePs>, std::vector<std::int64_t>> columns;
    for (const auto& [gap_ps, requests] : sorted) {
        columns.first.push_back(gap_ps);
        columns.second.push_back(requests);
    }
    return columns;
}

// To the nearest of 2^14 values per octave.
TimePs GapCounts::rounded(TimePs gap_ps) {
    const int digits = std::bit_width(static_cast<std::uint64_t>(gap_ps));
    if (digits <= 15) return gap_ps;
    const TimePs step = TimePs{1} << (digits - 15);
    return (gap_ps + step / 2) / step * step;
}

void GapCounts::round_all() {
    is_rounding_ = true;
    std::exchange(requests_, {}).for_each([&](std::uint64_t gap_ps, std::int64_t requests) {
        requests_[static_cast<std::uint64_t>(rounded(static_cast<TimePs>(gap_ps)))] += requests;
    });
}

RankGroup::RankGroup(std::vector<std::shared_ptr<RankState>> ranks, std::shared_ptr<Policy> policy)
    : ranks_(std::move(ranks)), policy_(std::move(policy)) {}

bool RankGroup::asks_policy() const { return !policy_ && has_work(); }

bool RankGroup::has_work() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->has_work(); });
}

bool RankGroup::has_news_for_tiers() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->has_begun_loads() || rank->has_evicted(); });
}

std::int64_t RankGroup::waiting_requests() const {
    std::int64_t waiting = 0;
    for (const auto& rank : ranks_) waiting += rank->waiting_requests();
    return waiting;
}

std::int64_t RankGroup::running_requests() const {
    std::int64_t running = 0;
    for (const auto& rank : ranks_) running += rank->running_requests();
    return running;
}

std::int64_t RankGroup::most_running() const {
    std::int64_t most = 0;
    for (const auto& rank : ranks_) most = std::max(most, rank->running_requests());
    return most;
}

std::int64_t RankGroup::used_blocks() const {
    std::int64_t used = 0;
    for (const auto& rank : ranks_) used += rank->used_blocks();
    return used;
}

std::int64_t RankGroup::plain_decode_steps(std::int64_t longest) const {
    bool is_busy = false;
    for (const auto& rank : ranks_) {
        if (!rank->has_work()) continue;
        is_busy = true;
        longest = std::min(longest, rank->plain_decode_steps());
        if (longest < 2) return 0;
    }
    return is_busy ? longest : 0;
}

bool RankGroup::is_steady() {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [&](const auto& rank) { return !rank->has_work() || policy_->is_steady(*rank); });
}

std::vector<std::int64_t> RankGroup::decode_kv_tokens(std::vector<Tokens>& kv_tokens) const {
    std::vector<std::int64_t> requests;
    for (const auto& rank : ranks_) {
        for (const RequestPtr& request : rank->running()) kv_tokens.push_back(request->computed_tokens + 1);
        requests.push_back(rank->running_requests());
    }
    return requests;
}

void GroupBatch::sum_up() {
    requests = prefill_tokens = decode_tokens = most_drafts = most_tokens = 0;
    for (const BatchPtr& batch : batches) {
        if (!batch) continue;
        requests += batch->size();
        prefill_tokens += batch->prefill_tokens;
        decode_tokens += batch->decode_tokens;
        most_drafts = std::max(most_drafts, *std::max_element(batch->drafts.begin(), batch->drafts.end()));
        most_tokens =
            std::max(most_tokens, std::accumulate(batch->new_tokens.begin(), batch->new_tokens.end(), Tokens{0}));
    }
}

std::shared_ptr<GroupBatch> RankGroup::schedule(TimePs now_ps) {
    std::vector<BatchPtr> batches;
    for (const auto& rank : ranks_)
        batches.push_back(policy_ ? rank->decide(*policy_, now_ps) : rank->close_decision());
    return joined(std::move(batches));
}

std::shared_ptr<GroupBatch> RankGroup::schedule_plain(TimePs now_ps) {
    std::vector<BatchPtr> batches;
    for (const auto& rank : ranks_) batches.push_back(rank->decide_plain(now_ps));
    return joined(std::move(batches));
}

// One iteration of all ranks; none if all idle.
std::shared_ptr<GroupBatch> RankGroup::joined(std::vector<BatchPtr> batches) const {
    auto group = std::make_shared<GroupBatch>();
    group->batches = std::move(batches);
    group->sum_up();
    return group->requests ? group : nullptr;
}

void RankGroup::begin(const GroupBatch& group, TimePs now_ps) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        const BatchPtr& batch = group.batches[rank];
        if (!batch) continue;
        ranks_[rank]->begin(*batch);
        for (const RequestPtr& request : batch->preempted) {
            request->count(done);
            request->lose_blocks(now_ps);
        }
        for (const RequestPtr& request : batch->admitted) {
            if (!request->scheduled_ps) request->scheduled_ps = now_ps;
            const bool joins = request->prefill_completed_ps && !request->preempted_at_ps;
            if (joins && !request->joined_ps) request->joined_ps = now_ps;
            request->run_again(now_ps);
            request->begin(done);
        }
    }
}

GroupOutcome RankGroup::finish(const GroupBatch& batch, const DraftResults& results, StepTimes times) {
    const std::vector<Tokens> none;
    const auto of_rank = [&](const std::vector<std::vector<Tokens>>& ranks, std::size_t rank) -> const auto& {
        return rank < ranks.size() ? ranks[rank] : none;
    };
    GroupOutcome group;
    std::vector<RequestPtr> for_frontend;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (!batch.batches[rank]) continue;
        Outcome outcome =
            ranks_[rank]->finish(*batch.batches[rank], of_rank(results.accepted, rank), of_rank(results.drafted, rank));
        if (ranks_[rank]->has_tiers()) {
            for (const RequestPtr& request : outcome.prefill_done) group.computed.emplace_back(rank, request);
        }
        for (const RequestPtr& request : outcome.prefill_done) {
            if (request->prefill_completed_ps) continue;
            request->count(done);
            request->prefill_completed_ps = times.last_end_ps;
            if (!is_handed_over(request)) continue;
            request->is_counting = false;
            group.prefilled.push_back(request);
        }
        std::erase_if(outcome.produced, is_handed_over);
        std::erase_if(outcome.finished, is_handed_over);
        group.produced += static_cast<std::int64_t>(outcome.produced.size());
        if (outcome.accepted_drafts) gaps_->add(0, outcome.accepted_drafts);
        if (frontend_) {
            for_frontend.insert(for_frontend.end(), outcome.produced.begin(), outcome.produced.end());
        } else {
            deliver(outcome.produced, times);
        }
        for (const RequestPtr& request : outcome.finished) request->count(done);
        group.completed.insert(group.completed.end(), outcome.finished.begin(), outcome.finished.end());
    }
    if (frontend_) frontend_->deliver(for_frontend, times.last_end_ps + times.late_ps, *gaps_);
    return group;
}

GroupOutcome RankGroup::advance_decode(std::int64_t steps, StepTimes times, const PassedSteps& passed) {
    GroupOutcome group;
    for (const auto& rank : ranks_) {
        rank->advance_decode(steps);
        group.produced += rank->running_requests();
        if (!frontend_) deliver(rank->running(), times);
    }
    if (frontend_) frontend_->stamp(running(), passed, *gaps_);
    return group;
}

std::vector<RequestPtr> RankGroup::abandon(const GroupBatch& batch) {
    std::vector<RequestPtr> lost;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (!batch.batches[rank]) continue;
        const std::vector<RequestPtr> requests = ranks_[rank]->abandon(*batch.batches[rank]);
        lost.insert(lost.end(), requests.begin(), requests.end());
    }
    return lost;
}

bool RankGroup::keep_running_in(GroupBatch& batch) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        BatchPtr& of_rank = batch.batches[rank];
        if (of_rank && !ranks_[rank]->keep_running_in(*of_rank)) of_rank = nullptr;
    }
    batch.sum_up();
    return batch.requests > 0;
}

std::vector<RequestPtr> RankGroup::clear() {
    std::vector<RequestPtr> lost;
    for (const auto& rank : ranks_) {
        const std::vector<RequestPtr> requests = rank->clear();
        lost.insert(lost.end(), requests.begin(), requests.end());
    }
    return lost;
}

std::vector<RequestPtr> RankGroup::running() const {
    std::vector<RequestPtr> found;
    for (const auto& rank : ranks_) found.insert(found.end(), rank->running().begin(), rank->running().end());
    return found;
}

// Stamps the tokens that requests have got: one at the end of the first step, the last at the end of the last.
void RankGroup::deliver(const std::vector<RequestPtr>& produced, StepTimes times) {
    for (const RequestPtr& request : produced) {
        get_tokens(*request, times.first_end_ps + times.late_ps, times.last_end_ps + times.late_ps, *gaps_);
    }
}

void get_tokens(Request& request, TimePs first_ps, TimePs last_ps, GapCounts& gaps) {
    if (request.last_token_ps) {
        gaps.add(first_ps - *request.last_token_ps, 1);
    } else if (!request.first_token_ps) {
        request.first_token_ps = first_ps;
    }
    request.last_token_ps = last_ps;
}

}  // namespace serving
