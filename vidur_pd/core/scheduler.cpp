#include "scheduler.hpp"

#include <algorithm>

namespace serving {

Scheduler::Scheduler(std::shared_ptr<BlockPool> pool, Role role, const Limits& limits)
    : pool_(std::move(pool)),
      role_(role),
      limits_(limits),
      chunk_limit_(limits.long_prefill_token_threshold ? limits.long_prefill_token_threshold
                                                       : limits.max_batched_tokens),
      remote_(*pool_) {
    check_least("engine.max_batched_tokens", limits.max_batched_tokens, 1);
    check_least("engine.max_seqs", limits.max_seqs, 1);
    check_least("engine.max_model_len", limits.max_model_len, 1);
    check_least("engine.long_prefill_token_threshold", limits.long_prefill_token_threshold, 0);
}

std::optional<std::string> Scheduler::rejection_reason(const Request& request) const {
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

void Scheduler::add(RequestPtr request) {
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    request->status = Status::kWaiting;
    tokens_.enter(*request, request->sequence_tokens(), request->sequence_tokens());
    waiting_.push_back(std::move(request));
    note_change();
}

void Scheduler::add_remote(RequestPtr request) {
    ensure(role_ == Role::kDecode, "only a decode rank takes KV from elsewhere");
    if (const auto reason = rejection_reason(*request)) throw BrokenInvariant(*reason);
    tokens_.enter(*request, 0, request->context_tokens);
    remote_.add(std::move(request));
    note_change();
}

void Scheduler::abandon_remote(const RequestPtr& request) {
    remote_.abandon(request);
    tokens_.leave(*request);
    note_change();
}

void Scheduler::note_change() {
    for (const auto& [changes, number] : watchers_) changes->note(number);
}

std::vector<RequestPtr> Scheduler::admit_remote() {
    if (!waiting_.empty() || running_requests() >= limits_.max_seqs) return {};
    return remote_.reserve(promised_blocks());
}

std::vector<RequestPtr> Scheduler::make_room_for_remote(const RequestPtr& request,
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

void Scheduler::remote_arrived(const RequestPtr& request, Tokens computed_tokens) {
    remote_.complete(request, computed_tokens);
}

void Scheduler::release(const Request& request) {
    ensure(role_ == Role::kPrefill, "other ranks release KV themselves");
    pool_->release(request);
}

BatchPtr Scheduler::schedule() {
    BatchPtr batch = step();
    if (!batch && !preempted_.empty()) batch = step();
    note_change();
    return batch;
}

Outcome Scheduler::finish(ScheduledBatch& batch, const std::vector<Tokens>& accepted) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --in_flight_;
    note_change();
    Outcome outcome;
    for (std::size_t position = 0; position < batch.requests.size(); ++position) {
        const RequestPtr& request = batch.requests[position];
        request->is_in_flight = false;
        tokens_.compute(*request, batch.new_tokens[position]);
        if (!batch.samples[position]) continue;
        if (request->sequence_tokens() == request->context_tokens) outcome.prefill_done.push_back(request);
        ++request->generated_tokens;
        if (limits_.drafts_per_step) {
            const Tokens kept = accepted.at(outcome.produced.size());
            request->generated_tokens += kept;
            outcome.accepted_drafts += kept;
            request->computed_tokens = request->sequence_tokens() - 1;
        }
        if (request->sequence_tokens() == request->end_tokens) outcome.finished.push_back(request);
        outcome.produced.push_back(request);
    }
    if (!outcome.finished.empty()) retire(outcome.finished);
    return outcome;
}

std::vector<RequestPtr> Scheduler::abandon(ScheduledBatch& batch) {
    ensure(!batch.is_finished, "a batch ends once");
    batch.is_finished = true;
    --in_flight_;
    for (const RequestPtr& request : batch.requests) {
        pool_->release(*request);
        tokens_.leave(*request);
        request->is_in_flight = false;
        request->is_running = false;
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
    note_change();
    return batch.requests;
}

std::vector<RequestPtr> Scheduler::clear() {
    std::vector<RequestPtr> lost = std::move(running_);
    lost.insert(lost.end(), waiting_.begin(), waiting_.end());
    lost.insert(lost.end(), remote_.arrived.begin(), remote_.arrived.end());
    for (const RequestPtr& request : lost) request->is_running = request->is_in_flight = false;
    running_.clear();
    waiting_.clear();
    preempted_.clear();
    remote_.clear();
    pool_->clear();
    tokens_.clear();
    in_flight_ = 0;
    note_change();
    return lost;
}

void Scheduler::retire(const std::vector<RequestPtr>& finished) {
    for (const RequestPtr& request : finished) {
        pool_->register_blocks(*request, request->computed_tokens);
        if (role_ != Role::kPrefill) pool_->release(*request);
        const bool is_complete = request->generated_tokens >= request->output_tokens;
        request->status = is_complete ? Status::kCompleted : Status::kPrefilled;
        request->is_running = false;
        tokens_.leave(*request);
    }
    std::erase_if(running_, [](const RequestPtr& request) { return !request->is_running; });
}

std::int64_t Scheduler::steady_decode_steps() {
    const std::int64_t count = running_requests();
    if (!count || in_flight_ || limits_.drafts_per_step || count > limits_.max_batched_tokens) return 0;
    const std::int64_t steps = count_decode_steps();
    const bool has_room = count < std::min<std::int64_t>(limits_.max_seqs, limits_.max_batched_tokens);
    return steps && has_room && find_admissible_prefix() ? 0 : steps;
}

// Iterations that decode one token of every running request before one of them ends or lacks a KV block; 0 if a request
// has more than one token to compute, or still part of its prompt.
std::int64_t Scheduler::count_decode_steps() const {
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
std::int64_t Scheduler::missing_after(std::int64_t steps) const {
    std::int64_t missing = 0;
    for (const RequestPtr& request : running_) missing += missing_blocks(*request, request->computed_tokens + steps);
    return missing;
}

void Scheduler::advance_decode(std::int64_t steps) {
    for (const RequestPtr& request : running_) {
        request->computed_tokens += steps;
        request->generated_tokens += steps;
        if (const std::int64_t missing = missing_blocks(*request, request->computed_tokens)) {
            pool_->allocate(*request, request->computed_tokens, {});
            request->capacity_tokens += missing * pool_->block_tokens();
        }
    }
}

BatchPtr Scheduler::step() {
    const std::size_t preempted_before = preempted_.size();
    auto batch = std::make_shared<ScheduledBatch>();
    continue_running(*batch);
    if (preempted_.size() == preempted_before && (!waiting_.empty() || !remote_.arrived.empty())) {
        Tokens taken = 0;
        for (const Tokens tokens : batch->new_tokens) taken += tokens;
        admit(*batch, limits_.max_batched_tokens - taken);
    }
    if (batch->requests.empty()) return nullptr;
    launch(*batch);
    return batch;
}

// [running] tokens that each gets of the budget, in order; 0 for those in flight.
void Scheduler::share_budget() {
    shares_.clear();
    Tokens left = limits_.max_batched_tokens;
    for (const RequestPtr& request : running_) {
        Tokens tokens = 0;
        if (!request->is_in_flight) {
            const Tokens behind = request->sequence_tokens() - request->computed_tokens;
            tokens = std::min(behind, chunk_limit_);
            if (limits_.drafts_per_step && behind == 1 && request->computed_tokens >= request->prompt_tokens) {
                tokens += std::min(limits_.drafts_per_step, request->end_tokens - request->sequence_tokens() - 1);
            }
        }
        shares_.push_back(std::min(tokens, left));
        left -= shares_.back();
    }
}

// The running requests that take part in this step, with blocks for their tokens; the tail is preempted for blocks.
void Scheduler::continue_running(ScheduledBatch& batch) {
    share_budget();
    std::size_t first_victim = running_.size();  // victims are the idle ones from here on
    for (std::size_t position = 0; position < running_.size(); ++position) {
        Request& request = *running_[position];
        const Tokens kv_tokens = request.computed_tokens + shares_[position];
        const std::int64_t missing = missing_blocks(request, kv_tokens);
        if (!missing && request.computed_tokens >= request.prompt_tokens) continue;
        if (missing > pool_->free_blocks()) first_victim = evict_tail(missing, position, first_victim);
        if (first_victim <= position) break;
        pool_->allocate(request, kv_tokens, {});
        pool_->register_blocks(request, std::min(kv_tokens, request.prompt_tokens));
        request.capacity_tokens += missing * pool_->block_tokens();
    }
    for (std::size_t position = 0; position < running_.size(); ++position) {
        const bool is_victim = position >= first_victim && !running_[position]->is_in_flight;
        if (is_victim || shares_[position] == 0) continue;
        batch.requests.push_back(running_[position]);
        batch.new_tokens.push_back(shares_[position]);
    }
    if (first_victim < running_.size()) preempt(first_victim);
}

// Releases the KV of idle running requests, tail first, `position` at worst, until `missing` blocks are free; returns
// the position of the last one that gave way.
std::size_t Scheduler::evict_tail(std::int64_t missing, std::size_t position, std::size_t first_victim) {
    for (std::size_t candidate = first_victim; candidate-- > position && missing > pool_->free_blocks();) {
        const Request& victim = *running_[candidate];
        if (victim.is_in_flight) continue;
        pool_->register_blocks(victim, victim.computed_tokens);
        pool_->release(victim);
        first_victim = candidate;
    }
    return first_victim;
}

// Sends the idle running requests from `first_victim` on, tail first, back to the head of the queue with the tokens
// generated so far.
void Scheduler::preempt(std::size_t first_victim) {
    std::vector<RequestPtr> staying(running_.begin(), running_.begin() + static_cast<std::ptrdiff_t>(first_victim));
    std::vector<RequestPtr> victims;
    for (std::size_t position = first_victim; position < running_.size(); ++position) {
        (running_[position]->is_in_flight ? staying : victims).push_back(running_[position]);
    }
    running_ = std::move(staying);
    for (auto victim = victims.rbegin(); victim != victims.rend(); ++victim) requeue(*victim);
}

// Puts a request that has lost its KV at the head of the queue.
void Scheduler::requeue(const RequestPtr& victim) {
    victim->is_running = false;
    victim->set_progress(0, victim->generated_tokens);
    ++victim->preemptions;
    victim->status = Status::kWaiting;
    tokens_.set_outstanding(*victim, victim->sequence_tokens());
    waiting_.push_front(victim);
    preempted_.push_back(victim);
}

// Adds those that start to run with this step; they hold blocks for their tokens.
void Scheduler::admit(ScheduledBatch& batch, Tokens budget) {
    while (budget > 0 && running_requests() < limits_.max_seqs) {
        const auto prefix = find_admissible_prefix();
        if (!prefix) {
            if (!running_.empty() || remote_.is_transferring() || remote_.arrived.empty()) break;
            requeue(remote_.drop_last_arrived());
            continue;
        }
        const bool has_arrived = !remote_.arrived.empty();
        std::deque<RequestPtr>& queue = has_arrived ? remote_.arrived : waiting_;
        const RequestPtr request = queue.front();
        queue.pop_front();
        const Tokens past = has_arrived ? request->computed_tokens : prefix->tokens;
        if (!has_arrived && request->preemptions == 0) request->cached_tokens = past;
        if (!has_arrived) tokens_.set_outstanding(*request, request->sequence_tokens() - past);
        const Tokens chunk = std::min({request->sequence_tokens() - past, chunk_limit_, budget});
        pool_->allocate(*request, past + chunk, *prefix);
        pool_->register_blocks(*request, std::min(past + chunk, request->prompt_tokens));
        request->set_progress(past, request->generated_tokens);
        request->status = Status::kRunning;
        request->is_running = true;
        request->end_tokens =
            role_ == Role::kPrefill ? request->context_tokens + 1 : request->prompt_tokens + request->output_tokens;
        request->capacity_tokens = pool_->blocks(past + chunk) * pool_->block_tokens();
        running_.push_back(request);
        batch.requests.push_back(request);
        batch.new_tokens.push_back(chunk);
        batch.admitted.push_back(request);
        budget -= chunk;
    }
}

// Cached prefix of the next request in line if blocks for its whole sequence are free now.
std::optional<CachedPrefix> Scheduler::find_admissible_prefix() {
    CachedPrefix prefix;
    std::int64_t needed;
    if (!remote_.arrived.empty()) {
        const Request& request = *remote_.arrived.front();
        needed = pool_->blocks(request.sequence_tokens()) - pool_->blocks(request.context_tokens);
    } else if (!waiting_.empty()) {
        const Request& request = *waiting_.front();
        prefix = pool_->cached_prefix(request, request.sequence_tokens());
        needed = pool_->blocks(request.sequence_tokens()) - prefix.shared_blocks;
    } else {
        return std::nullopt;
    }
    if (needed > pool_->free_blocks()) return std::nullopt;
    return prefix;
}

// Credits the tokens as computed, as vLLM does when it schedules them.
void Scheduler::launch(ScheduledBatch& batch) {
    for (std::size_t position = 0; position < batch.requests.size(); ++position) {
        Request& request = *batch.requests[position];
        const Tokens new_tokens = batch.new_tokens[position];
        request.computed_tokens += new_tokens;
        request.is_in_flight = true;
        const Tokens drafts = std::max<Tokens>(request.computed_tokens - request.sequence_tokens(), 0);
        const bool samples = request.computed_tokens >= request.sequence_tokens();
        const bool is_decode = new_tokens - drafts == 1 && request.computed_tokens > 1;
        batch.kv_tokens.push_back(request.computed_tokens);
        batch.drafts.push_back(drafts);
        batch.samples.push_back(samples);
        batch.logit_rows += samples;
        (is_decode ? batch.decode_tokens : batch.prefill_tokens) += new_tokens - drafts;
    }
    batch.preempted = std::move(preempted_);
    preempted_.clear();
    ++in_flight_;
}

std::int64_t Scheduler::missing_blocks(const Request& request, Tokens kv_tokens) const {
    return kv_tokens > request.capacity_tokens ? pool_->blocks(kv_tokens - request.capacity_tokens) : 0;
}

// Blocks that running requests still need for their sequences.
std::int64_t Scheduler::promised_blocks() const {
    std::int64_t promised = 0;
    for (const RequestPtr& request : running_) promised += missing_blocks(*request, request->sequence_tokens());
    return promised;
}

}  // namespace serving
