// The part of a rank in which an iteration is decided.
#include <algorithm>

#include "policy.hpp"
#include "rank_state.hpp"

namespace serving {

namespace {

std::string named(const Request& request) { return "request " + request.request_id; }

}  // namespace

void RankState::open_decision(TimePs now_ps) {
    ensure(!draft_, "one iteration is decided at a time");
    draft_ = std::make_shared<ScheduledBatch>();
    budget_left_ = limits_.max_batched_tokens;
    now_ps_ = now_ps;
    known_preempted_ = preempted_.size();
    const bool may_be_under_way = limits_.plans_ahead || limits_.pipelines_chunks;
    if (may_be_under_way && pool_->availability() == Availability::kInserted) note_chunks();
}

BatchPtr RankState::decide(Policy& policy, TimePs now_ps) {
    open_decision(now_ps);
    try {
        do {
            policy.decide(*this);
        } while (asks_again());
    } catch (const BrokenRule& broken) {
        throw BrokenInvariant(std::string("a policy of the core: ") + broken.what());
    }
    return close_decision();
}

BatchPtr RankState::decide_plain(TimePs now_ps) {
    open_decision(now_ps);
    ++unasked_iterations_;
    try {
        // As if it was decided when the last step of the run began, whose tokens nobody knew then.
        for (const RequestPtr& request : std::vector<RequestPtr>(running_)) {
            keep_running(request, 1, 0, request->known_tokens() - 1);
        }
    } catch (const BrokenRule& broken) {
        throw BrokenInvariant(std::string("a plain decode: ") + broken.what());
    }
    return close_decision();
}

void RankState::run(const RequestPtr& request, Tokens tokens, Tokens held_tokens) {
    check_open();
    if (request->is_running) {
        // Those of a prompt, and of an answer under way when it has them; others get their keys when the request
        // leaves.
        const Tokens known = limits_.plans_ahead ? request->known_tokens() : request->prompt_tokens;
        return keep_running(request, tokens, held_tokens, known);
    }
    admit(request, tokens, request->capacity_tokens ? CachedPrefix() : cached_prefix(*request), held_tokens);
}

// `known`: those of its first tokens whose blocks get their keys now.
void RankState::keep_running(const RequestPtr& request, Tokens tokens, Tokens held_tokens, Tokens known) {
    if (request->rank != this) throw BrokenRule("membership", named(*request) + " runs on another rank");
    if (request->is_in_iteration) throw BrokenRule("one iteration", named(*request) + " is in an iteration under way");
    if (request->is_decided) throw BrokenRule("one iteration", named(*request) + " is in this iteration already");
    check_tokens(*request, tokens, most_tokens(*request));
    const Tokens kv_tokens = request->computed_tokens + tokens;
    const Tokens held = std::max(with_lookahead(kv_tokens), held_tokens);
    const std::int64_t missing = missing_blocks(*request, held);
    if (missing || request->computed_tokens < known) {
        check_blocks(*request, missing);
        pool_->allocate(*request, held, {});
        note_scheduled(*request, std::min(kv_tokens, known));
        request->capacity_tokens = std::max(request->capacity_tokens, pool_->rounded_up(held));
    }
    take_part(request, tokens);
}

void RankState::admit(const RequestPtr& request, Tokens tokens, const CachedPrefix& prefix, Tokens held_tokens) {
    const auto place_in = [&](std::deque<RequestPtr>& queue) { return std::find(queue.begin(), queue.end(), request); };
    const auto arrived = place_in(remote_.arrived);
    const bool has_arrived = arrived != remote_.arrived.end();
    const auto waiting = has_arrived ? waiting_.end() : place_in(waiting_);
    if (!has_arrived && waiting == waiting_.end()) {
        throw BrokenRule("membership", named(*request) + " neither runs on this rank nor waits for it");
    }
    if (running_requests() >= limits_.max_seqs) {
        throw BrokenRule("sequences", named(*request) + " would be one more than the " +
                                          std::to_string(limits_.max_seqs) + " that may run");
    }
    TierLoad load;
    if (!has_arrived && loads_layerwise_) load = find_load(request, prefix);
    const Tokens past = has_arrived ? request->computed_tokens : std::max(prefix.tokens, load.end());
    check_tokens(*request, tokens, request->sequence_tokens() - past);
    const std::int64_t own_blocks =
        has_arrived ? pool_->blocks(request->context_tokens) : static_cast<std::int64_t>(prefix.shared_blocks);
    const Tokens held = std::max(with_lookahead(past + tokens), held_tokens);
    check_blocks(*request, pool_->blocks(held) - own_blocks);
    if (has_arrived) {
        remote_.arrived.erase(arrived);
    } else {
        waiting_.erase(waiting);
        if (request->preemptions == 0) request->cached_tokens = past;
        tokens_.set_outstanding(*request, request->sequence_tokens() - past);
    }
    pool_->allocate(*request, held, prefix);
    if (!load.reaches.empty()) {
        load.arrivals = request->arrivals = std::make_shared<LayerArrivals>();
        load.arrivals->tokens = load.end() - load.cached;
        begun_loads_.push_back(std::move(load));
    }
    const bool is_prefilled = has_arrived && !request->is_loaded;
    request->prefill_end_tokens = is_prefilled ? past : request->sequence_tokens();
    begin_running(request, past, tokens, held);
}

// A request that holds blocks for its first tokens joins the running ones.
void RankState::begin_running(const RequestPtr& request, Tokens past, Tokens tokens, Tokens held_tokens) {
    note_scheduled(*request, std::min(past + tokens, request->known_tokens()));
    request->set_progress(past, request->generated_tokens);
    request->status = Status::kRunning;
    request->is_running = true;
    request->has_sampled = false;
    request->rank = this;
    request->end_tokens =
        request->role == Role::kPrefill ? request->context_tokens + 1 : request->prompt_tokens + request->output_tokens;
    const Tokens held_before = request->is_loaded ? request->capacity_tokens : 0;
    request->capacity_tokens = std::max(held_before, pool_->rounded_up(held_tokens));
    request->is_loaded = false;
    running_.push_back(request);
    draft_->admitted.push_back(request);
    take_part(request, tokens);
}

// SGLang inserts the chunk of a prompt that is under way before it decides on the next (`stash_chunked_request`).
void RankState::note_chunks() {
    for (const RequestPtr& request : running_) {
        const bool is_cut = request->computed_tokens < request->prefill_end_tokens;
        if (is_cut && request->iterations_under_way) pool_->register_blocks(*request, request->computed_tokens);
    }
}

// So many known tokens of the request have KV, or will have it when the iteration has ended.
void RankState::note_scheduled(const Request& request, Tokens tokens) {
    if (pool_->availability() == Availability::kScheduled) pool_->register_blocks(request, tokens);
}

// Computed tokens that are known by now; with drafts under way, as if all of those were kept and none sampled.
Tokens RankState::shown_tokens(const Request& request) {
    return request.computed_tokens - request.tokens_under_way - request.drafts_under_way;
}

// Without iterations decided ahead, drafts that have been accepted get their keys with the iteration after.
Tokens RankState::keyed_tokens(const Request& request) const {
    return limits_.drafts_per_step && !limits_.plans_ahead ? request.reached_tokens : shown_tokens(request);
}

void RankState::take_part(const RequestPtr& request, Tokens tokens) {
    draft_->requests.push_back(request);
    draft_->new_tokens.push_back(tokens);
    request->is_decided = true;
    budget_left_ -= tokens;
}

void RankState::preempt(RequestPtr request) {
    check_open();
    if (request->is_running && request->rank == this) {
        if (request->is_in_iteration && !request->is_ending)
            throw BrokenRule("one iteration", named(*request) + " is in an iteration under way");
        // Of a request under way vLLM caches what its last result has shown (`cache_blocks` in async_scheduler.py). One
        // that is withdrawn leaves the keys that it got with its tokens (`allocate_slots`), though none is computed.
        const Tokens withdrawn = request->is_decided ? withdraw(*request) : 0;
        const Tokens shown = shown_tokens(*request);
        note_scheduled(*request, withdrawn ? std::min(request->computed_tokens + withdrawn, request->known_tokens())
                                           : keyed_tokens(*request));
        if (pool_->availability() == Availability::kComputed) pool_->register_blocks(*request, shown);
        pool_->release(*request);
        running_.erase(std::find(running_.rbegin(), running_.rend(), request).base() - 1);
    } else if (std::find(arrived().begin(), arrived().end(), request) != arrived().end()) {
        remote_.drop_arrived(request);
    } else {
        throw BrokenRule("membership", named(*request) + " holds no KV on this rank that it could lose");
    }
    requeue(request);
}

// Takes a request out of the iteration that is being decided; returns the tokens that it would have computed.
Tokens RankState::withdraw(Request& request) {
    const auto is_it = [&](const RequestPtr& other) { return other.get() == &request; };
    const auto place = std::find_if(draft_->requests.begin(), draft_->requests.end(), is_it) - draft_->requests.begin();
    const Tokens tokens = draft_->new_tokens[static_cast<std::size_t>(place)];
    budget_left_ += tokens;
    draft_->requests.erase(draft_->requests.begin() + place);
    draft_->new_tokens.erase(draft_->new_tokens.begin() + place);
    std::erase_if(draft_->admitted, is_it);
    request.is_decided = false;
    return tokens;
}

// Puts a request that has lost its KV into the queue, once no iteration of its is under way.
void RankState::requeue(const RequestPtr& victim) {
    victim->is_running = victim->is_in_iteration = victim->is_ending = victim->is_loaded = false;
    forget_load(*victim);
    victim->set_progress(0, victim->generated_tokens);
    victim->capacity_tokens = 0;
    ++victim->preemptions;
    ++victim->vain_preemptions;
    victim->status = Status::kWaiting;
    tokens_.set_outstanding(*victim, victim->sequence_tokens());
    if (victim->iterations_under_way) {
        aside_.push_back(victim);
    } else {
        queue_again(victim);
    }
    preempted_.push_back(victim);
}

BatchPtr RankState::close_decision() {
    note_change();
    pool_->evict(0);
    const BatchPtr batch = std::exchange(draft_, nullptr);
    if (!batch || batch->requests.empty()) return nullptr;
    for (std::size_t position = 0; position < batch->requests.size(); ++position) {
        Request& request = *batch->requests[position];
        request.computed_tokens += batch->new_tokens[position];  // credited now, as vLLM does when it schedules them
        request.is_decided = false;
        request.reached_tokens = std::min(request.computed_tokens, request.sequence_tokens());
        const bool samples = request.computed_tokens >= request.sequence_tokens();
        const Tokens drafts = std::max<Tokens>(request.computed_tokens - request.sequence_tokens(), 0);
        batch->kv_tokens.push_back(request.computed_tokens);
        batch->drafts.push_back(drafts);
        batch->samples.push_back(samples);
        note_under_way(request, samples, drafts);
    }
    batch->sum_up();
    batch->preempted = std::exchange(preempted_, {});
    ++batches_under_way_;
    return batch;
}

// Where a rank plans ahead, the request may take part in the next decision as well, unless its last token is under way
// now (after a prefill its KV is to be handed over then); where chunks follow each other through a pipeline, unless a
// token is.
void RankState::note_under_way(Request& request, bool samples, Tokens drafts) {
    ++request.iterations_under_way;
    if (!limits_.plans_ahead) {
        request.is_in_iteration = samples || !limits_.pipelines_chunks;
        return;
    }
    request.tokens_under_way += samples;
    request.drafts_under_way += drafts;
    request.has_sampled = samples;
    note_ending(request);
}

// Its last token is under way, even if no draft is kept.
void RankState::note_ending(Request& request) {
    request.is_in_iteration =
        request.tokens_under_way > 0 && request.known_tokens() + request.tokens_under_way == request.end_tokens;
    request.is_ending = request.is_in_iteration && request.role != Role::kPrefill;
}

Tokens RankState::most_drafts(const Request& request) const {
    if (!limits_.drafts_per_step || !request.has_sampled || !request.is_running) return 0;
    const Tokens drafted = request.drafted_tokens.value_or(limits_.drafts_per_step);
    return limits_.plans_ahead ? drafted : std::min(drafted, request.end_tokens - request.sequence_tokens() - 1);
}

Tokens RankState::most_tokens(const Request& request) const {
    const Tokens past =
        request.capacity_tokens ? request.computed_tokens : ready_tokens(request, cached_prefix(request));
    return request.sequence_tokens() - past + most_drafts(request);
}

std::int64_t RankState::lacking_blocks(const Request& request, Tokens tokens) const {
    if (request.capacity_tokens) return missing_blocks(request, with_lookahead(request.computed_tokens + tokens));
    const CachedPrefix prefix = cached_prefix(request);
    return blocks(with_lookahead(ready_tokens(request, prefix) + tokens)) - prefix.shared_blocks;
}

std::int64_t RankState::whole_blocks(const Request& request) const {
    if (request.capacity_tokens) return missing_blocks(request, request.sequence_tokens());
    return blocks(request.sequence_tokens()) - cached_prefix(request).shared_blocks;
}

void RankState::check_open() const {
    if (!draft_) throw BrokenRule("decision", "found one after its iteration, expected it within decide");
}

void RankState::check_tokens(const Request& request, Tokens tokens, Tokens most) const {
    if (tokens < 1 || tokens > most) {
        throw BrokenRule("tokens", named(request) + " is to compute " + std::to_string(tokens) +
                                       " tokens, expected 1 to " + std::to_string(most));
    }
    if (tokens > budget_left_) {
        throw BrokenRule("budget", named(request) + " is to compute " + std::to_string(tokens) +
                                       " tokens, expected at most the " + std::to_string(budget_left_) + " left of " +
                                       std::to_string(limits_.max_batched_tokens));
    }
}

void RankState::check_blocks(const Request& request, std::int64_t needed) const {
    if (needed > pool_->free_blocks()) {
        throw BrokenRule("blocks", named(request) + " needs " + std::to_string(needed) +
                                       " KV blocks, expected at most the " + std::to_string(pool_->free_blocks()) +
                                       " that are free");
    }
}

}  // namespace serving
