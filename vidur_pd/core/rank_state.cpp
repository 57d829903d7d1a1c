#include "rank_state.hpp"

#include <algorithm>

namespace serving {

RankState::RankState(std::shared_ptr<BlockPool> pool, Role role, const Limits& limits)
    : pool_(std::move(pool)), role_(role), limits_(limits), remote_(*pool_, limits.by_priority) {
    check_least("engine.max_batched_tokens", limits.max_batched_tokens, 1);
    check_least("engine.max_seqs", limits.max_seqs, 1);
    check_least("engine.max_model_len", limits.max_model_len, 1);
    check_least("engine.long_prefill_token_threshold", limits.long_prefill_token_threshold, 0);
    check_least("engine.watermark", limits.watermark_blocks, 0);
    check_least("cluster.pools.pp", limits.pipeline_stages, 1);
    ensure(!limits.plans_ahead || limits.pipeline_stages == 1, "a rank that plans ahead has one stage");
}

std::optional<std::string> RankState::rejection_reason(const Request& request, std::optional<Role> role) const {
    const Tokens total = role.value_or(role_) == Role::kPrefill ? request.context_tokens + 1
                                                                : request.prompt_tokens + request.output_tokens;
    if (total > limits_.max_model_len) {
        return std::to_string(total) + " prompt and output tokens exceed the context window of " +
               std::to_string(limits_.max_model_len);
    }
    const std::int64_t blocks = pool_->blocks(with_lookahead(total - 1));
    if (blocks > pool_->usable_blocks()) {
        return "its " + std::to_string(blocks) + " KV blocks exceed the " + std::to_string(pool_->usable_blocks()) +
               " of the pool";
    }
    return std::nullopt;
}

void RankState::add(RequestPtr request, std::optional<Role> role) {
    ensure(role_ == Role::kMixed || role.value_or(role_) == role_, "only a mixed rank serves requests of any role");
    if (const auto reason = rejection_reason(*request, role)) throw BrokenInvariant(*reason);
    request->role = role.value_or(role_);
    request->status = Status::kWaiting;
    request->capacity_tokens = 0;
    if (has_tiers() && !request->tier_tokens) request->tier_tokens = 0;
    tokens_.enter_prompt(*request, request->sequence_tokens());
    if (request->role != Role::kPrefill) tokens_.enter_context(*request, request->sequence_tokens());
    enqueue(waiting_, std::move(request), limits_.by_priority);
    note_change();
}

void RankState::add_remote(RequestPtr request) {
    ensure(role_ != Role::kPrefill, "a prefill rank takes no KV from elsewhere");
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    tokens_.enter_context(*request, request->context_tokens);
    remote_.add(std::move(request));
    note_change();
}

void RankState::abandon_remote(const RequestPtr& request) {
    remote_.abandon(request);
    tokens_.leave_context(*request);
    note_change();
}

// The request ends, or begins again elsewhere; after a prefill it may be counted on another rank by now.
void RankState::leave(Request& request) {
    tokens_.leave_prompt(request);
    if (request.role != Role::kPrefill) tokens_.leave_context(request);
}

void RankState::note_change() {
    for (const auto& [changes, number] : watchers_) changes->note(number);
}

std::vector<RequestPtr> RankState::admit_remote() {
    if (!aside_.empty() || running_requests() >= limits_.max_seqs) return {};
    std::vector<RequestPtr> reserved =
        remote_.reserve(promised_blocks(), [&](const Request& remote) { return goes_before(remote); });
    pool_->evict(0);
    return reserved;
}

// Whether a request from elsewhere may take blocks before those that wait for some here.
bool RankState::goes_before(const Request& remote) const {
    if (waiting_.empty()) return true;
    const Request& first = *waiting_.front();
    return first.role != Role::kDecode && remote.arrived_ps < first.arrived_ps;
}

std::vector<RequestPtr> RankState::make_room_for_remote(const RequestPtr& request,
                                                        const std::vector<RequestPtr>& reserved) {
    remote_.prefer(request);
    std::vector<RequestPtr> retracted;
    for (auto other = reserved.rbegin(); other != reserved.rend(); ++other) {
        if (remote_.fits(*request, promised_blocks()) && waiting_.empty() && aside_.empty()) break;
        remote_.retract(*other);
        retracted.push_back(*other);
    }
    return retracted;
}

void RankState::remote_arrived(const RequestPtr& request, Tokens computed_tokens) {
    remote_.complete(request, computed_tokens);
    request->role = Role::kDecode;
    request->outstanding_tokens = 0;
}

void RankState::release(const Request& request) {
    ensure(request.role == Role::kPrefill, "other requests release their KV themselves");
    pool_->release(request);
}

void RankState::keep(const RequestPtr& request, Tokens computed_tokens) {
    ensure(role_ == Role::kMixed && request->role == Role::kPrefill, "only a mixed rank keeps what it has prefilled");
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    request->role = Role::kMixed;
    tokens_.enter_context(*request, request->context_tokens);
    remote_.keep(request, computed_tokens);
    note_change();
}

void RankState::load_from(std::vector<std::shared_ptr<ChunkIndex>> tiers, std::vector<Tokens> least_tokens,
                          bool is_layerwise) {
    ensure(tiers.size() == least_tokens.size(), "each tier has its own least");
    ensure(!is_layerwise || limits_.pipeline_stages == 1, "layers are loaded for one stage");
    tiers_ = std::move(tiers);
    least_load_tokens_ = std::move(least_tokens);
    loads_layerwise_ = is_layerwise;
}

// [tiers] where each ends, or nothing where none goes on.
std::vector<Tokens> RankState::reaches(const Request& request, Tokens from) const {
    std::vector<Tokens> ends;
    if (tiers_.empty() || request.skips_tiers || request.role == Role::kDecode) return ends;
    const Tokens most = request.context_tokens - 1;
    Tokens end = from;
    for (std::size_t tier = 0; tier < tiers_.size(); ++tier) {
        const Tokens reach = tiers_[tier]->reach(request, end, most);
        if (reach - end >= least_load_tokens_[tier]) end = reach;
        ends.push_back(end);
    }
    if (end == from) ends.clear();
    return ends;
}

TierLoad RankState::find_load(const RequestPtr& request, const CachedPrefix& prefix) const {
    return {request, prefix.tokens, reaches(*request, prefix.tokens)};
}

Tokens RankState::ready_tokens(const Request& request, const CachedPrefix& prefix) const {
    if (!loads_layerwise_) return prefix.tokens;
    const std::vector<Tokens> ends = reaches(request, prefix.tokens);
    return ends.empty() ? prefix.tokens : ends.back();
}

std::vector<std::uint64_t> RankState::chunk_contents(const Request& request, Tokens chunk_tokens, Tokens tokens) const {
    std::vector<std::uint64_t> contents;
    for (Tokens end = chunk_tokens; end <= tokens; end += chunk_tokens) {
        const auto content = pool_->chunk_content(request, end);
        if (!content) break;
        contents.push_back(*content);
    }
    return contents;
}

void RankState::hold(const RequestPtr& request, bool is_held) {
    request->is_held = is_held;
    note_change();
}

// A request does not run with the KV that it was going to wait for.
void RankState::forget_load(Request& request) {
    if (!request.arrivals) return;
    request.arrivals.reset();
    std::erase_if(begun_loads_, [&](const TierLoad& load) { return load.request.get() == &request; });
}

void RankState::begin_load(TierLoad load, const CachedPrefix& prefix) {
    const RequestPtr request = load.request;
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request));
    remote_.load(request, prefix);
    loading_.push_back(request);
    begun_loads_.push_back(std::move(load));
    note_change();
}

void RankState::loaded(const RequestPtr& request, Tokens tokens) {
    std::erase(loading_, request);
    remote_.loaded(request, tokens);
    if (request->preemptions == 0) request->cached_tokens = tokens;
    tokens_.set_outstanding(*request, request->sequence_tokens() - tokens);
    note_change();
}

void RankState::abandon_load(const RequestPtr& request) {
    std::erase(loading_, request);
    remote_.abandon(request);
    request->capacity_tokens = 0;
    request->skips_tiers = true;
    request->status = Status::kWaiting;
    queue_again(request);
    note_change();
}

void RankState::begin(ScheduledBatch& batch) const {
    if (!limits_.plans_ahead || !limits_.drafts_per_step) return;
    for (std::size_t position = 0; position < batch.requests.size(); ++position) {
        const Request& request = *batch.requests[position];
        if (request.is_running) batch.kv_tokens[position] = request.computed_tokens;
        if (request.status == Status::kCompleted) batch.samples[position] = false;
    }
}

Outcome RankState::finish(ScheduledBatch& batch, const std::vector<Tokens>& accepted,
                          const std::vector<Tokens>& drafted) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --batches_under_way_;
    note_change();
    Outcome outcome;
    for (std::size_t position = 0; position < batch.requests.size(); ++position) {
        const RequestPtr& request = batch.requests[position];
        if (request->status == Status::kCompleted) continue;  // it was in vain
        --request->iterations_under_way;
        if (limits_.plans_ahead) {
            request->tokens_under_way -= batch.samples[position];
            request->drafts_under_way -= batch.drafts[position];
        } else if (!request->iterations_under_way) {
            request->is_in_iteration = false;
        }
        if (request->is_running) tokens_.compute(*request, batch.new_tokens[position]);
        if (!limits_.plans_ahead) request->has_sampled = batch.samples[position] && request->is_running;
        if (!batch.samples[position]) {
            const bool is_inserted = limits_.plans_ahead && pool_->availability() == Availability::kInserted;
            if (!is_inserted) note_computed(*request, batch.kv_tokens[position], false);
            continue;
        }
        if (request->known_tokens() == request->context_tokens) outcome.prefill_done.push_back(request);
        ++request->generated_tokens;
        request->vain_preemptions = 0;
        if (limits_.drafts_per_step) {
            const Tokens kept =
                std::min(accepted.at(outcome.produced.size()), request->end_tokens - request->known_tokens());
            if (!drafted.empty()) request->drafted_tokens = drafted.at(outcome.produced.size());
            request->generated_tokens += kept;
            outcome.accepted_drafts += kept;
            if (request->is_running) request->computed_tokens -= batch.drafts[position] - kept;
        }
        if (limits_.plans_ahead && request->is_running) note_ending(*request);
        const bool is_finished = request->known_tokens() == request->end_tokens;
        if (is_finished) outcome.finished.push_back(request);
        note_computed(*request, is_finished ? shown_tokens(*request) : batch.kv_tokens[position], is_finished);
        outcome.produced.push_back(request);
    }
    if (!outcome.finished.empty()) retire(outcome.finished);
    queue_aside();
    return outcome;
}

// An iteration has ended with which the request has so many tokens with KV, if it has not lost it.
void RankState::note_computed(const Request& request, Tokens kv_tokens, bool is_finished) {
    if (pool_->availability() == Availability::kScheduled || !request.is_running) return;
    if (is_finished || kv_tokens <= request.prefill_end_tokens) pool_->register_blocks(request, kv_tokens);
}

// An iteration has ended: preempted requests of which it was the last under way queue again, unless they have got their
// last token.
void RankState::queue_aside() {
    for (const RequestPtr& request : std::exchange(aside_, {})) {
        if (request->status != Status::kWaiting) continue;
        if (request->iterations_under_way) {
            aside_.push_back(request);
        } else {
            queue_again(request);
        }
    }
}

// Puts a request that was preempted into the queue: to its head, unless that goes by priority.
void RankState::queue_again(const RequestPtr& request) {
    if (limits_.by_priority) {
        enqueue(waiting_, request, true);
    } else {
        waiting_.push_front(request);
    }
}

std::vector<RequestPtr> RankState::abandon(ScheduledBatch& batch) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --batches_under_way_;
    std::vector<RequestPtr> lost;
    for (const RequestPtr& request : batch.requests) {
        request->leave_iterations();
        if (!request->is_running) continue;  // it has lost its KV before, and waits
        pool_->release(*request);
        leave(*request);
        request->is_running = false;
        lost.push_back(request);
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
    queue_aside();
    note_change();
    return lost;
}

bool RankState::keep_running_in(ScheduledBatch& batch) {
    const auto has_left = [](const RequestPtr& request) { return !request->is_running; };
    for (std::size_t position = batch.requests.size(); position-- > 0;) {
        if (!has_left(batch.requests[position])) continue;
        const auto place = static_cast<std::ptrdiff_t>(position);
        batch.requests.erase(batch.requests.begin() + place);
        for (std::vector<Tokens>* column : {&batch.new_tokens, &batch.kv_tokens, &batch.drafts})
            column->erase(column->begin() + place);
        batch.samples.erase(batch.samples.begin() + place);
    }
    std::erase_if(batch.admitted, has_left);
    batch.sum_up();
    batches_under_way_ -= batch.requests.empty();
    return !batch.requests.empty();
}

std::vector<RequestPtr> RankState::clear() {
    std::vector<RequestPtr> lost = std::move(running_);
    lost.insert(lost.end(), aside_.rbegin(), aside_.rend());
    lost.insert(lost.end(), waiting_.begin(), waiting_.end());
    lost.insert(lost.end(), loading_.begin(), loading_.end());
    lost.insert(lost.end(), remote_.arrived.begin(), remote_.arrived.end());
    for (const RequestPtr& request : lost) {
        request->is_running = false;
        request->leave_iterations();
    }
    running_.clear();
    aside_.clear();
    waiting_.clear();
    preempted_.clear();
    remote_.clear();
    loading_.clear();
    begun_loads_.clear();
    pool_->clear();
    pool_->take_evicted();  // too late to copy them
    tokens_.clear();
    batches_under_way_ = 0;
    note_change();
    return lost;
}

void RankState::retire(const std::vector<RequestPtr>& finished) {
    for (const RequestPtr& request : finished) {
        if (request->is_running) {
            note_scheduled(*request, keyed_tokens(*request));
            if (request->role != Role::kPrefill) pool_->release(*request);
        }
        const bool is_complete = request->generated_tokens >= request->output_tokens;
        request->status = is_complete ? Status::kCompleted : Status::kPrefilled;
        request->is_running = false;
        request->leave_iterations();
        leave(*request);
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
}

std::int64_t RankState::plain_decode_steps() const {
    const std::int64_t count = running_requests();
    const bool has_to_wait = batches_under_way_ > 0 && !limits_.plans_ahead;
    if (!count || has_to_wait || limits_.drafts_per_step || count > limits_.max_batched_tokens) return 0;
    std::int64_t steps = INT64_MAX;
    for (const RequestPtr& request : running_) {
        const Tokens left = request->sequence_tokens() - request->computed_tokens;
        if (left != 1 || request->computed_tokens < request->prompt_tokens || request->is_in_iteration) return 0;
        steps = std::min(steps, request->end_tokens - request->sequence_tokens() - 1);
    }
    const RequestPtr first = first_waiting();
    const bool may_share_more = first && cached_prefix(*first).may_share_more;
    if (may_share_more || remote_.may_share_more()) return 0;  // room may be found within the steps
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
            request->capacity_tokens = pool_->rounded_up(request->computed_tokens);
        }
    }
    pool_->evict(0);
}

std::int64_t RankState::missing_blocks(const Request& request, Tokens kv_tokens) const {
    return kv_tokens > request.capacity_tokens ? pool_->blocks(kv_tokens) - pool_->blocks(request.capacity_tokens) : 0;
}

// Blocks that running requests still need for their sequences.
std::int64_t RankState::promised_blocks() const {
    std::int64_t promised = 0;
    for (const RequestPtr& request : running_) promised += missing_blocks(*request, request->sequence_tokens());
    return promised;
}

}  // namespace serving
