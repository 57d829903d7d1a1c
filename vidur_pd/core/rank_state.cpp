#include "rank_state.hpp"

#include <algorithm>

namespace serving {

RankState::RankState(std::shared_ptr<BlockPool> pool, Role role, const Limits& limits)
    : pool_(std::move(pool)), role_(role), limits_(limits), remote_(*pool_) {
    check_least("engine.max_batched_tokens", limits.max_batched_tokens, 1);
    check_least("engine.max_seqs", limits.max_seqs, 1);
    check_least("engine.max_model_len", limits.max_model_len, 1);
    check_least("engine.long_prefill_token_threshold", limits.long_prefill_token_threshold, 0);
    check_least("engine.watermark", limits.watermark_blocks, 0);
    check_least("cluster.pools.pp", limits.pipeline_stages, 1);
}

std::optional<std::string> RankState::rejection_reason(const Request& request) const {
    const Tokens total =
        role_ == Role::kPrefill ? request.context_tokens + 1 : request.prompt_tokens + request.output_tokens;
    if (total > limits_.max_model_len) {
        return std::to_string(total) + " prompt and output tokens exceed the context window of " +
               std::to_string(limits_.max_model_len);
    }
    const std::int64_t blocks = pool_->blocks(total - 1);
    if (blocks > pool_->usable_blocks()) {
        return "its " + std::to_string(blocks) + " KV blocks exceed the " + std::to_string(pool_->usable_blocks()) +
               " of the pool";
    }
    return std::nullopt;
}

void RankState::add(RequestPtr request) {
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    request->status = Status::kWaiting;
    request->capacity_tokens = 0;
    tokens_.enter(*request, request->sequence_tokens(), request->sequence_tokens());
    waiting_.push_back(std::move(request));
    note_change();
}

void RankState::add_remote(RequestPtr request) {
    ensure(role_ == Role::kDecode, "only a decode rank takes KV from elsewhere");
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    tokens_.enter(*request, 0, request->context_tokens);
    remote_.add(std::move(request));
    note_change();
}

void RankState::abandon_remote(const RequestPtr& request) {
    remote_.abandon(request);
    tokens_.leave(*request);
    note_change();
}

void RankState::note_change() {
    for (const auto& [changes, number] : watchers_) changes->note(number);
}

std::vector<RequestPtr> RankState::admit_remote() {
    if (!waiting_.empty() || running_requests() >= limits_.max_seqs) return {};
    std::vector<RequestPtr> reserved = remote_.reserve(promised_blocks());
    pool_->evict(0);
    return reserved;
}

std::vector<RequestPtr> RankState::make_room_for_remote(const RequestPtr& request,
                                                        const std::vector<RequestPtr>& reserved) {
    remote_.prefer(request);
    std::vector<RequestPtr> retracted;
    for (auto other = reserved.rbegin(); other != reserved.rend(); ++other) {
        if (remote_.fits(*request, promised_blocks()) && waiting_.empty()) break;
        remote_.retract(*other);
        retracted.push_back(*other);
    }
    return retracted;
}

void RankState::remote_arrived(const RequestPtr& request, Tokens computed_tokens) {
    remote_.complete(request, computed_tokens);
}

void RankState::release(const Request& request) {
    ensure(role_ == Role::kPrefill, "other ranks release KV themselves");
    pool_->release(request);
}

Outcome RankState::finish(ScheduledBatch& batch, const std::vector<Tokens>& accepted) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --batches_under_way_;
    note_change();
    Outcome outcome;
    for (std::size_t position = 0; position < batch.requests.size(); ++position) {
        const RequestPtr& request = batch.requests[position];
        request->is_in_iteration = false;
        tokens_.compute(*request, batch.new_tokens[position]);
        if (!batch.samples[position]) {
            note_computed(*request, batch.kv_tokens[position], false);
            continue;
        }
        if (request->sequence_tokens() == request->context_tokens) outcome.prefill_done.push_back(request);
        ++request->generated_tokens;
        request->vain_preemptions = 0;
        if (limits_.drafts_per_step) {
            const Tokens kept = accepted.at(outcome.produced.size());
            request->generated_tokens += kept;
            outcome.accepted_drafts += kept;
            request->computed_tokens = request->sequence_tokens() - 1;
        }
        const bool is_finished = request->sequence_tokens() == request->end_tokens;
        if (is_finished) outcome.finished.push_back(request);
        note_computed(*request, is_finished ? request->computed_tokens : batch.kv_tokens[position], is_finished);
        outcome.produced.push_back(request);
    }
    if (!outcome.finished.empty()) retire(outcome.finished);
    return outcome;
}

// An iteration has ended with which the request has so many tokens with KV.
void RankState::note_computed(const Request& request, Tokens kv_tokens, bool is_finished) {
    if (pool_->registers_when_scheduled()) return;
    if (is_finished || kv_tokens <= request.prefill_end_tokens) pool_->register_blocks(request, kv_tokens);
}

std::vector<RequestPtr> RankState::abandon(ScheduledBatch& batch) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --batches_under_way_;
    for (const RequestPtr& request : batch.requests) {
        pool_->release(*request);
        tokens_.leave(*request);
        request->is_in_iteration = false;
        request->is_running = false;
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
    note_change();
    return batch.requests;
}

std::vector<RequestPtr> RankState::clear() {
    std::vector<RequestPtr> lost = std::move(running_);
    lost.insert(lost.end(), waiting_.begin(), waiting_.end());
    lost.insert(lost.end(), remote_.arrived.begin(), remote_.arrived.end());
    for (const RequestPtr& request : lost) request->is_running = request->is_in_iteration = false;
    running_.clear();
    waiting_.clear();
    preempted_.clear();
    remote_.clear();
    pool_->clear();
    tokens_.clear();
    batches_under_way_ = 0;
    note_change();
    return lost;
}

void RankState::retire(const std::vector<RequestPtr>& finished) {
    for (const RequestPtr& request : finished) {
        if (pool_->registers_when_scheduled()) pool_->register_blocks(*request, request->computed_tokens);
        if (role_ != Role::kPrefill) pool_->release(*request);
        const bool is_complete = request->generated_tokens >= request->output_tokens;
        request->status = is_complete ? Status::kCompleted : Status::kPrefilled;
        request->is_running = false;
        tokens_.leave(*request);
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
}

std::int64_t RankState::plain_decode_steps() const {
    const std::int64_t count = running_requests();
    if (!count || batches_under_way_ || limits_.drafts_per_step || count > limits_.max_batched_tokens) return 0;
    std::int64_t steps = INT64_MAX;
    for (const RequestPtr& request : running_) {
        const Tokens left = request->sequence_tokens() - request->computed_tokens;
        if (left != 1 || request->computed_tokens < request->prompt_tokens) return 0;
        steps = std::min(steps, request->end_tokens - request->sequence_tokens() - 1);
    }
    const std::int64_t free_blocks = pool_->free_blocks();
    if (missing_after(steps) <= free_blocks) return steps;
    std::int64_t fits = 0, exceeds = steps;
    while (exceeds - fits > 1) {
        const std::int64_t trial = (fits + exceeds) / 2;
        (missing_after(trial) <= free_blocks ? fits : exceeds) = trial;
    }
    return fits;
}

// Blocks that running requests lack for so many more tokens each.
std::int64_t RankState::missing_after(std::int64_t steps) const {
    std::int64_t missing = 0;
    for (const RequestPtr& request : running_) missing += missing_blocks(*request, request->computed_tokens + steps);
    return missing;
}

void RankState::advance_decode(std::int64_t steps) {
    unasked_iterations_ += steps;
    for (const RequestPtr& request : running_) {
        request->computed_tokens += steps;
        request->generated_tokens += steps;
        if (const std::int64_t missing = missing_blocks(*request, request->computed_tokens)) {
            pool_->allocate(*request, request->computed_tokens, {});
            request->capacity_tokens += missing * pool_->block_tokens();
        }
    }
    pool_->evict(0);
}

std::int64_t RankState::missing_blocks(const Request& request, Tokens kv_tokens) const {
    return kv_tokens > request.capacity_tokens ? pool_->blocks(kv_tokens - request.capacity_tokens) : 0;
}

// Blocks that running requests still need for their sequences.
std::int64_t RankState::promised_blocks() const {
    std::int64_t promised = 0;
    for (const RequestPtr& request : running_) promised += missing_blocks(*request, request->sequence_tokens());
    return promised;
}

}  // namespace serving
