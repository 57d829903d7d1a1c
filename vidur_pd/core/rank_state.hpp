// State of one data-parallel rank, apart from the scheduling policy: requests, KV blocks, the iteration that is being
// decided, and the tokens that iterations have produced.
//
// Whatever a policy decides, the rank keeps its limits: tokens and requests per iteration, KV blocks, one iteration at
// a time for each request. A decision that breaks one is refused by `BrokenRule`, and changes nothing.
//
// A rank that plans ahead decides an iteration while the one before is under way. The token that a request gets from
// that one counts as part of its sequence already, so the request can go on; one whose last token is under way cannot,
// and keeps its place and its blocks until the iteration has ended. With drafts, those under way count as if all were
// kept, until it is known; a request that ends with them is in one more iteration, in vain.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "block_pool.hpp"
#include "change_list.hpp"
#include "chunk_index.hpp"
#include "remote_queue.hpp"
#include "request.hpp"
#include "token_load.hpp"

namespace serving {

class Policy;

// The first tokens of a request that come from tiers: those between `cached`, which the pool has, and the last of
// `reaches`, which is where each tier [tiers] ends.
struct TierLoad {
    RequestPtr request;
    Tokens cached = 0;
    std::vector<Tokens> reaches;
    std::shared_ptr<LayerArrivals> arrivals = nullptr;  // of a load whose request runs meanwhile

    Tokens end() const { return reaches.empty() ? cached : reaches.back(); }
};

// Owns its requests from `add` or `add_remote` to their end here.
//
// A request of the role prefill ends with its first token and keeps its KV until `release`, or until `keep` lets it go
// on here. One of the role decode comes by `add_remote`, gets blocks from `admit_remote` and runs after
// `remote_arrived`; if it is preempted, it recomputes its prompt and generated tokens here. The rank's own role is that
// of all its requests, or mixed: then each request has its own.
class RankState {
  public:
    // Throws InputError for a limit below 1.
    RankState(std::shared_ptr<BlockPool> pool, Role role, const Limits& limits);

    Role role() const { return role_; }
    const Limits& limits() const { return limits_; }

    // Load, as routing and the event loop see it.

    // Requests that do not run yet, those in or before a KV transfer to this rank included.
    std::int64_t waiting_requests() const {
        return static_cast<std::int64_t>(waiting_.size() + aside_.size()) + remote_.size();
    }
    // Admitted requests, under way or not.
    std::int64_t running_requests() const { return static_cast<std::int64_t>(running_.size()); }
    // Requests that have all that they need to run, and do not.
    std::int64_t queued_requests() const {
        return static_cast<std::int64_t>(waiting_.size() + aside_.size() + remote_.arrived.size());
    }
    // Tokens to compute before every local request is a plain decode: of waiting sequences, chunks to come and in
    // iteration.
    Tokens outstanding_tokens() const { return tokens_.outstanding(); }
    // The same plus the context of all requests that decode here, KV on its way or to come included.
    Tokens load_tokens() const { return tokens_.outstanding() + tokens_.context(); }
    // KV blocks held by requests, those held for a transfer included.
    std::int64_t used_blocks() const { return pool_->used_blocks(); }
    std::int64_t usable_blocks() const { return pool_->usable_blocks(); }
    // Whether a request runs or could run without a further KV transfer.
    bool has_work() const { return !running_.empty() || has_candidates(); }
    // Notes `number` in `changes` whenever one of these may have changed.
    void watch(std::shared_ptr<ChangeList> changes, std::uint32_t number) {
        watchers_.emplace_back(std::move(changes), number);
    }
    // Reason why this rank could never serve this part of the request; nothing where it could. Without a role: its own.
    std::optional<std::string> rejection_reason(const Request& request, std::optional<Role> role = {}) const;

    // Requests in and out.

    // Queues a request whose prompt is computed here; without a role it has that of the rank.
    void add(RequestPtr request, std::optional<Role> role = {});
    // Queues a request whose prompt is computed elsewhere.
    void add_remote(RequestPtr request);
    // Reserves blocks for whole prompts, first come first served; returns the requests whose transfer may start.
    //
    // Stops at the first prompt that does not fit into what running prefills leave, while a request waits that was
    // preempted here or has arrived earlier, and while the running list is full. Prompt tokens found in the prefix
    // cache are `resident_tokens`.
    std::vector<RequestPtr> admit_remote();
    // Moves a remote request without blocks to the front of the queue, at the cost of `reserved` requests whose KV is
    // not on its way.
    //
    // These lose their blocks, the last first, until the request fits, and queue again; returns those that did.
    // Otherwise requests that hold KV on a prefill rank until they get blocks here, and requests that hold blocks here
    // until they can compute there, could wait for each other (deadlock).
    std::vector<RequestPtr> make_room_for_remote(const RequestPtr& request, const std::vector<RequestPtr>& reserved);
    // The KV of a remote request is complete: it may run from the next step on.
    //
    // `computed_tokens` is the context (P, for a request that was never restarted) when prefill's token is kept, one
    // less when this rank recomputes the last token of the context and samples the next one itself.
    void remote_arrived(const RequestPtr& request, Tokens computed_tokens);
    // Frees the KV that has been held for a transfer.
    void release(const Request& request);
    // A request whose KV is held for a transfer goes on here instead: its KV counts as arrived (`remote_arrived`).
    void keep(const RequestPtr& request, Tokens computed_tokens);
    // Gives up on a request whose KV has not all arrived; its blocks, if it has some, return.
    void abandon_remote(const RequestPtr& request);

    // Tiers of KV behind the pool.

    // Prompts are looked up in tiers, one after another, from now on; fewer than `least_tokens` [tiers] are not
    // loaded. `is_layerwise`: a request runs while it is loaded, and each layer waits for its KV.
    void load_from(std::vector<std::shared_ptr<ChunkIndex>> tiers, std::vector<Tokens> least_tokens, bool is_layerwise);
    bool has_tiers() const { return !tiers_.empty(); }
    bool loads_layerwise() const { return loads_layerwise_; }
    // Chunks that the pool has evicted, see `BlockPool`.
    void log_evictions(Tokens chunk_tokens) { pool_->log_evictions(chunk_tokens); }
    bool has_evicted() const { return pool_->has_evicted(); }
    std::vector<std::uint64_t> take_evicted() { return pool_->take_evicted(); }
    // [chunks] contents of the chunks among the first tokens of a request that others can have.
    std::vector<std::uint64_t> chunk_contents(const Request& request, Tokens chunk_tokens, Tokens tokens) const;
    // A request that waits keeps its place, and does not run while it is `held`: tiers fetch what they have of it.
    void hold(const RequestPtr& request, bool is_held);
    // What tiers have of a request that waits, behind a prefix that the pool has: each goes on where the one before
    // ends, or none does.
    TierLoad find_load(const RequestPtr& request, const CachedPrefix& prefix) const;
    // A request that waits gets blocks for its context and waits for its load, outside the queue.
    void begin_load(TierLoad load, const CachedPrefix& prefix);
    // The loads that have begun since the last call.
    std::vector<TierLoad> take_loads() { return std::exchange(begun_loads_, {}); }
    bool has_begun_loads() const { return !begun_loads_.empty(); }
    // A load has ended with so many tokens of the request here: it may run from the next step on.
    void loaded(const RequestPtr& request, Tokens tokens);
    // A load has failed: the request gives its blocks back and waits again, first in the queue.
    void abandon_load(const RequestPtr& request);

    // What a policy reads.

    // Running requests in order of admission.
    const std::vector<RequestPtr>& running() const { return running_; }
    // Requests without KV: those that were preempted last first, then in order of arrival; or all by priority.
    const std::deque<RequestPtr>& waiting() const { return waiting_; }
    // The first of these that is not held back; none if all are.
    RequestPtr first_waiting() const {
        const auto first =
            std::find_if(waiting_.begin(), waiting_.end(), [](const auto& each) { return !each->is_held; });
        return first == waiting_.end() ? nullptr : *first;
    }
    // Requests whose KV has come from elsewhere, in order of its arrival or by priority; they hold blocks for their
    // contexts.
    const std::deque<RequestPtr>& arrived() const { return remote_.arrived; }
    bool has_candidates() const { return first_waiting() || !remote_.arrived.empty(); }
    // Whether KV of some request is on its way to this rank.
    bool is_transferring() const { return remote_.is_transferring(); }
    std::int64_t free_blocks() const { return pool_->free_blocks(); }
    std::int64_t blocks(Tokens tokens) const { return pool_->blocks(tokens); }
    Tokens block_tokens() const { return pool_->block_tokens(); }
    // Tokens that the iteration that is being decided still has room for.
    Tokens budget_left() const { return budget_left_; }
    // Drafts that the request can verify in its next step: there are some if its last one has given it a token.
    Tokens most_drafts(const Request& request) const;
    // The most tokens that the request can compute now: the rest of its sequence, with drafts, less what is cached.
    Tokens most_tokens(const Request& request) const;
    // Tokens that a request with so many computed ones holds blocks for: drafts that follow have room.
    Tokens with_lookahead(Tokens kv_tokens) const {
        return std::max(kv_tokens, std::min(kv_tokens + limits_.lookahead_tokens, limits_.max_model_len));
    }
    // KV blocks that so many more tokens of a request take from the free ones, those of its look-ahead included.
    std::int64_t lacking_blocks(const Request& request, Tokens tokens) const;
    // Free blocks that the whole sequence of a request that waits takes, without a look-ahead.
    std::int64_t whole_blocks(const Request& request) const;
    // The longest cached prefix of a request, short of the last token of its sequence.
    CachedPrefix cached_prefix(const Request& request) const {
        return pool_->cached_prefix(request, request.sequence_tokens());
    }
    // Tokens of a request that waits which it does not compute if it begins now: its cached prefix, and what is loaded
    // layer by layer while it runs.
    Tokens ready_tokens(const Request& request, const CachedPrefix& prefix) const;
    // What the first `tokens` tokens of a request are, see `BlockPool`; the same for the order.
    std::optional<std::uint64_t> content(const Request& request, Tokens tokens) const {
        return pool_->content(request, tokens);
    }
    std::vector<std::size_t> depth_first(const std::vector<RequestPtr>& requests) const {
        return pool_->depth_first(requests);
    }
    // Iterations so far, in runs of plain decodes, for which the policy was not asked.
    std::int64_t unasked_iterations() const { return unasked_iterations_; }
    // Instant of the decision.
    TimePs now_ps() const { return now_ps_; }

    // One iteration. `run`, `admit` and `preempt` take effect at once: all that can be read reflects them.

    void open_decision(TimePs now_ps);
    // The request computes so many tokens: it goes on running, or begins to, with blocks for `held_tokens` if that is
    // more than it has tokens. Throws BrokenRule.
    void run(const RequestPtr& request, Tokens tokens, Tokens held_tokens = 0);
    // The same for a request that does not run yet and whose cached prefix is known.
    void admit(const RequestPtr& request, Tokens tokens, const CachedPrefix& prefix, Tokens held_tokens = 0);
    // A request loses its KV and is first in the queue, unless that goes by priority, with the tokens generated so far.
    // Throws BrokenRule.
    void preempt(RequestPtr request);  // by value: it may be named by its place in the queue that it leaves
    // Part of the prefix cache as some policies rule it, see `BlockPool`; otherwise they change nothing.
    Tokens touch(const Request& request, Tokens tokens) { return pool_->touch(request, tokens); }
    void evict(std::int64_t blank_blocks) { pool_->evict(blank_blocks); }
    // Nothing runs, but blocks were freed since the policy was asked: as this takes no time, it is asked again. Not
    // while an iteration is under way whose end is the next occasion.
    bool asks_again() {
        const bool may_ask = !limits_.plans_ahead || batches_under_way_ == 0;
        const bool has_freed = preempted_.size() > std::exchange(known_preempted_, preempted_.size());
        return may_ask && draft_ && draft_->requests.empty() && has_freed;
    }
    // The batch that was decided, or none if nothing runs or none was opened. Its tokens are credited as computed.
    BatchPtr close_decision();
    // The next batch by a policy of the core.
    BatchPtr decide(Policy& policy, TimePs now_ps);
    // The batch that decodes one token of each running request, after a run that it belongs to.
    BatchPtr decide_plain(TimePs now_ps);
    // A batch begins. If it was decided before drafts were verified, it computes behind those that were kept; requests
    // that have ended with them are computed in vain.
    void begin(ScheduledBatch& batch) const;
    // Credits the tokens that `batch` has sampled; requests that end here leave, and their blocks return. `accepted`:
    // drafts kept by each request that samples; empty without drafts. `drafted`: drafts that each then has for its next
    // step; empty where every step has as many as it can verify.
    Outcome finish(ScheduledBatch& batch, const std::vector<Tokens>& accepted, const std::vector<Tokens>& drafted);

    // Aborts a batch: its requests leave without its tokens, and their blocks return. Blocks that they have put into
    // the prefix cache are taken as valid all the same.
    std::vector<RequestPtr> abandon(ScheduledBatch& batch);
    // Takes the requests that do not run any more out of a batch that was to come next; false if none is left.
    bool keep_running_in(ScheduledBatch& batch);
    // Fails the rank: all requests leave, batches under way are aborted, blocks and cached content are gone. Returns
    // the requests that ran or waited here, in order: running, waiting, and with all their KV here; the others belong
    // to a hand-over.
    std::vector<RequestPtr> clear();

    // Runs of decode iterations.

    // Iterations in a row that could decode one token of every running request: none ends or lacks a KV block, and
    // their tokens are within the budget. 0 with drafts, while a batch is under way that has to end first, and where
    // the first in line may need fewer blocks in between.
    std::int64_t plain_decode_steps() const;
    // The same as that many iterations that decode all running requests. Requests added since do not count: they join
    // the step after. Blocks filled on the way get their keys when the request leaves: only the request itself could
    // hit them before.
    void advance_decode(std::int64_t steps);

  private:
    void leave(Request& request);
    void note_change();
    bool goes_before(const Request& remote) const;
    void keep_running(const RequestPtr& request, Tokens tokens, Tokens held_tokens, Tokens known);
    void begin_running(const RequestPtr& request, Tokens past, Tokens tokens, Tokens held_tokens);
    void take_part(const RequestPtr& request, Tokens tokens);
    void note_chunks();
    void note_scheduled(const Request& request, Tokens tokens);
    void note_computed(const Request& request, Tokens kv_tokens, bool is_finished);
    Tokens withdraw(Request& request);
    void check_open() const;
    void check_tokens(const Request& request, Tokens tokens, Tokens most) const;
    void check_blocks(const Request& request, std::int64_t needed) const;
    void requeue(const RequestPtr& victim);
    void queue_again(const RequestPtr& request);
    void note_under_way(Request& request, bool samples, Tokens drafts);
    static void note_ending(Request& request);
    static Tokens shown_tokens(const Request& request);
    Tokens keyed_tokens(const Request& request) const;
    void queue_aside();
    void retire(const std::vector<RequestPtr>& finished);
    std::int64_t missing_after(std::int64_t steps) const;
    std::int64_t missing_blocks(const Request& request, Tokens kv_tokens) const;
    std::int64_t promised_blocks() const;
    std::vector<Tokens> reaches(const Request& request, Tokens from) const;
    void forget_load(Request& request);

    std::shared_ptr<BlockPool> pool_;
    Role role_;
    Limits limits_;
    std::vector<RequestPtr> running_;
    std::deque<RequestPtr> waiting_;
    std::vector<RequestPtr> aside_;  // preempted while an iteration of theirs is under way; they queue at its end
    TokenLoad tokens_;
    RemoteQueue remote_;
    std::vector<std::shared_ptr<ChunkIndex>> tiers_;
    std::vector<Tokens> least_load_tokens_;  // [tiers]
    bool loads_layerwise_ = false;
    std::vector<TierLoad> begun_loads_;
    std::vector<RequestPtr> loading_;
    std::int64_t batches_under_way_ = 0;  // batches
    std::vector<RequestPtr> preempted_;   // since the last batch
    std::size_t known_preempted_ = 0;     // of these, when the policy was asked last
    BatchPtr draft_;                      // while it is being decided
    Tokens budget_left_ = 0;
    TimePs now_ps_ = 0;
    std::int64_t unasked_iterations_ = 0;
    std::vector<std::pair<std::shared_ptr<ChangeList>, std::uint32_t>> watchers_;
};

}  // namespace serving
