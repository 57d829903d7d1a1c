// vLLM V1 continuous batching with chunked prefill and recompute preemption.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py, first-come-first-served policy. A step first
// continues the running requests in order of admission, then, unless it preempted one, admits waiting requests. There
// is no prefill or decode phase: each request is brought up to its sequence (prompt + generated tokens) within the
// token budget.
//
// Assumed: output ends by length alone, and P + D fits the context window (`rejection_reason`), so vLLM's clamp to the
// window never acts; the admission watermark is its default, 0. With pipeline parallelism a request sits in one
// micro-batch at a time and cannot be preempted from it (vLLM itself also pipelines the chunks of one prompt).
//
// With drafts each decode computes its drafted tokens as well; what is rejected is computed again. Drafts beyond the
// end of a request are not made.
//
// Not modelled: asynchronous scheduling (the next step is planned when the result of the last one is known, as with
// --no-async-scheduling), priorities, encoder budgets.
//
// Departure: vLLM hangs when requests whose KV has arrived hold all blocks, none can take its next one, and nothing
// runs. Here the youngest of them gives up its KV and is recomputed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "block_pool.hpp"
#include "change_list.hpp"
#include "remote_queue.hpp"
#include "request.hpp"
#include "token_load.hpp"

namespace serving {

// Part of a request's life that an instance serves: all of it, up to the first token, or after a KV transfer.
enum class Role : std::uint8_t { kMixed, kPrefill, kDecode };

// One rank's share of one iteration (of one micro-batch with pipeline parallelism), running requests first. Vectors are
// [requests].
struct ScheduledBatch {
    std::vector<RequestPtr> requests;
    std::vector<Tokens> new_tokens;     // computed now, at least 1, drafts included
    std::vector<Tokens> kv_tokens;      // KV length that attention sees: past + new
    std::vector<Tokens> drafts;         // drafted tokens that this step verifies
    std::vector<std::uint8_t> samples;  // whether the tokens reach the end of the sequence: the request gets a token
    std::vector<RequestPtr> admitted;   // requests that began, or began again, to run with this batch
    std::vector<RequestPtr> preempted;  // requests that lost their KV since the batch before
    std::int64_t logit_rows = 0;        // requests that get a token
    Tokens prefill_tokens = 0;
    Tokens decode_tokens = 0;  // drafts apart, of requests that go on from their last token; others are prefill
    bool is_finished = false;
};

using BatchPtr = std::shared_ptr<ScheduledBatch>;

// What the requests of a batch have gained, in batch order.
struct Outcome {
    std::vector<RequestPtr> produced;      // requests that got a token
    std::vector<RequestPtr> prefill_done;  // those for which it is the first one
    std::vector<RequestPtr> finished;      // those for which it is the last one here: the first, for the role prefill
    std::int64_t accepted_drafts = 0;      // tokens that the requests of `produced` got beyond one each
};

struct Limits {
    Tokens max_batched_tokens;
    std::int64_t max_seqs;
    Tokens max_model_len;
    Tokens long_prefill_token_threshold;  // caps the chunk of each prompt; 0 is off
    std::int64_t drafts_per_step;
};

// Scheduler of one data-parallel rank; owns its requests from `add` or `add_remote` to their end here.
//
// Role prefill: a request ends with its first token and keeps its KV until `release`. Role decode: requests come by
// `add_remote`, get blocks from `admit_remote` and run after `remote_arrived`; one that is preempted recomputes its
// prompt and generated tokens here.
class Scheduler {
  public:
    // Throws InputError for a limit below 1.
    Scheduler(std::shared_ptr<BlockPool> pool, Role role, const Limits& limits);

    Role role() const { return role_; }

    // Load, as routing and the event loop see it.

    // Requests that do not run yet, those in or before a KV transfer to this rank included.
    std::int64_t waiting_requests() const { return static_cast<std::int64_t>(waiting_.size()) + remote_.size(); }
    // Admitted requests, in flight or not.
    std::int64_t running_requests() const { return static_cast<std::int64_t>(running_.size()); }
    // Tokens to compute before every local request is a plain decode: of waiting sequences, chunks to come and in
    // flight.
    Tokens outstanding_tokens() const { return tokens_.outstanding(); }
    // The same, and where decodes run beside the context of all requests here, on its way or to come.
    Tokens load_tokens() const { return tokens_.outstanding() + (role_ == Role::kPrefill ? 0 : tokens_.context()); }
    // KV blocks held by requests, those held for a transfer included.
    std::int64_t used_blocks() const { return pool_->used_blocks(); }
    std::int64_t usable_blocks() const { return pool_->usable_blocks(); }
    // Something runs or could run without a further KV transfer.
    bool has_work() const { return !running_.empty() || !waiting_.empty() || !remote_.arrived.empty(); }
    // `changes` is told of `number` whenever one of these may have changed.
    void watch(std::shared_ptr<ChangeList> changes, std::uint32_t number) {
        watchers_.emplace_back(std::move(changes), number);
    }
    // Why this rank could never complete the request.
    std::optional<std::string> rejection_reason(const Request& request) const;

    // Requests in and out.

    // Queues a request whose prompt is computed here.
    void add(RequestPtr request);
    // Queues a request whose prompt is computed elsewhere.
    void add_remote(RequestPtr request);
    // Reserves blocks for whole prompts, first come first served; returns the requests whose transfer may start.
    //
    // Stops at the first prompt that does not fit beside what running prefills still need, while a local request waits,
    // and while the running list is full. Prompt tokens found in the prefix cache are `resident_tokens`.
    std::vector<RequestPtr> admit_remote();
    // Lets a remote request without blocks be next, at the cost of `reserved` ones whose KV is not on its way.
    //
    // They lose their blocks, the last first, until the request fits, and queue again; returns those that did. Without
    // this, requests that hold KV elsewhere until they get blocks here, and others that hold blocks here until they can
    // compute there, could wait for each other.
    std::vector<RequestPtr> make_room_for_remote(const RequestPtr& request, const std::vector<RequestPtr>& reserved);
    // The KV of a remote request is complete: it runs from the next step on, before other waiting requests.
    //
    // `computed_tokens` is the context (P, for a request that was never restarted) when prefill's token is kept, one
    // less when this rank recomputes the last token of the context and samples the next one itself.
    void remote_arrived(const RequestPtr& request, Tokens computed_tokens);
    // Frees the KV that a prefill rank has held for a transfer.
    void release(const Request& request);

    // One iteration.

    // The next batch, or none if nothing can run. A step that only preempts takes no time, so the one after it is
    // decided at once.
    BatchPtr schedule();
    // Credits the tokens that `batch` has sampled; requests that end here leave, and their blocks return. `accepted`:
    // drafts kept by each request that samples; empty without drafts.
    Outcome finish(ScheduledBatch& batch, const std::vector<Tokens>& accepted);

    // The batch has come to nothing: its requests leave without their tokens, and their blocks return. What a prefix
    // cache holds of them is taken as valid all the same.
    std::vector<RequestPtr> abandon(ScheduledBatch& batch);
    // The rank has failed: all requests leave, batches in flight come to nothing, blocks and cached content are gone.
    // Returns those that it had alone, in order: running, waiting, and with all their KV here; the others are in a
    // hand-over.
    std::vector<RequestPtr> clear();
    // Gives up on a request whose KV has not all arrived; its blocks, if it has some, return.
    void abandon_remote(const RequestPtr& request);

    // Runs of decode iterations.

    // Iterations in a row that only decode all running requests: none ends, is preempted or is admitted.
    //
    // Holds until a request is added, arrives or is released. 0 while a batch is in flight, and with drafts.
    std::int64_t steady_decode_steps();
    // Running requests in order of admission.
    const std::vector<RequestPtr>& running() const { return running_; }
    // The same as `steps` pairs of `schedule` and `finish`, for at most `steady_decode_steps` steps. Requests added
    // since do not count: they join the step after. Blocks filled on the way get their keys when the request leaves:
    // only the request itself could hit them before.
    void advance_decode(std::int64_t steps);

  private:
    void note_change();
    BatchPtr step();
    void continue_running(ScheduledBatch& batch);
    void share_budget();
    std::size_t evict_tail(std::int64_t missing, std::size_t position, std::size_t first_victim);
    void preempt(std::size_t first_victim);
    void requeue(const RequestPtr& victim);
    void admit(ScheduledBatch& batch, Tokens budget);
    std::optional<CachedPrefix> find_admissible_prefix();
    void launch(ScheduledBatch& batch);
    void retire(const std::vector<RequestPtr>& finished);
    std::int64_t count_decode_steps() const;
    std::int64_t missing_after(std::int64_t steps) const;
    std::int64_t missing_blocks(const Request& request, Tokens kv_tokens) const;
    std::int64_t promised_blocks() const;

    std::shared_ptr<BlockPool> pool_;
    Role role_;
    Limits limits_;
    Tokens chunk_limit_;
    std::vector<RequestPtr> running_;  // in order of admission
    std::vector<Tokens> shares_;       // [running] tokens of each in the step that is being decided
    std::deque<RequestPtr> waiting_;
    TokenLoad tokens_;
    RemoteQueue remote_;
    std::int64_t in_flight_ = 0;         // batches
    std::vector<RequestPtr> preempted_;  // since the last batch
    std::vector<std::pair<std::shared_ptr<ChangeList>, std::uint32_t>> watchers_;
};

}  // namespace serving
