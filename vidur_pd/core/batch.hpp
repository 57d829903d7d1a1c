// One rank's share of an iteration, what came of it, and the limits that it keeps.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "request.hpp"

namespace serving {

// One rank's share of one iteration (of one micro-batch with pipeline parallelism), in the order of the decision.
// Vectors are [requests].
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

    std::int64_t size() const { return static_cast<std::int64_t>(requests.size()); }
    // Sets the sums from what each request computes.
    void sum_up() {
        logit_rows = prefill_tokens = decode_tokens = 0;
        for (std::size_t position = 0; position < requests.size(); ++position) {
            const Tokens tokens = new_tokens[position] - drafts[position];
            const bool is_past_context = kv_tokens[position] - drafts[position] > requests[position]->context_tokens;
            const bool is_decode = samples[position] && tokens == 1 && is_past_context;
            (is_decode ? decode_tokens : prefill_tokens) += tokens;
            logit_rows += samples[position];
        }
    }
};

using BatchPtr = std::shared_ptr<ScheduledBatch>;

// What the requests of a batch have gained, in batch order.
struct Outcome {
    std::vector<RequestPtr> produced;      // requests that got a token
    std::vector<RequestPtr> prefill_done;  // those for which it is the first one
    std::vector<RequestPtr> finished;      // those for which it is the last one here: the first, for the role prefill
    std::int64_t accepted_drafts = 0;      // tokens that the requests of `produced` got beyond one each
};

// What drafting has come to in an iteration, [ranks][requests that sample]; see `RankState::finish`.
struct DraftResults {
    std::vector<std::vector<Tokens>> accepted;
    std::vector<std::vector<Tokens>> drafted;
};

struct Limits {
    Tokens max_batched_tokens;
    std::int64_t max_seqs;
    Tokens max_model_len;
    Tokens long_prefill_token_threshold;  // caps the chunk of each prompt; 0 is off
    std::int64_t drafts_per_step;
    std::int64_t watermark_blocks;  // KV blocks that admissions leave free, as far as the policy keeps them so
    std::int64_t pipeline_stages;   // iterations that may be under way at a time
    bool plans_ahead;               // the next iteration is decided while one runs
    bool by_priority;               // queues are in the order of `goes_first`
    bool chunks_prompts;      // a prompt may begin with less than all that is left of it, as far as the policy asks
    bool pipelines_chunks;    // the next chunk of a prompt may begin while those before it are in later stages
    Tokens lookahead_tokens;  // KV that a step of a request takes blocks for beyond its own: the next drafts'
};

}  // namespace serving
