// vLLM V1 continuous batching with chunked prefill and recompute preemption.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py and request_queue.py. A step first continues the
// running requests in order of admission, then, unless it preempted one, admits waiting requests. There is no prefill
// or decode phase: each request is brought up to its sequence (prompt + generated tokens) within the token budget.
// Without chunked prefill a prompt for which the budget has no room ends the admissions of a step.
//
// First come, first served: a victim is the last of the running list, and then the first in the queue. By priority
// (`Limits::by_priority`): the queue is in the order of (priority, arrival), a victim the last in that order, even one
// that stands before the request that lacks a block; if it was to run in this step already, its tokens are free again.
//
// Assumed: output ends by length alone, and P + D fits the context window (`rejection_reason`), so vLLM's clamp to the
// window never acts. The watermark holds for requests that begin to run, and only while something runs.
//
// With pipeline parallelism the chunks of a prompt follow each other through the stages (`Limits::pipelines_chunks`),
// and a request whose next token is under way waits for it.
//
// With drafts each decode computes its drafted tokens as well; what is rejected is computed again. Drafts follow a step
// that has given the request a token.
//
// With asynchronous scheduling (`Limits::plans_ahead`; vllm/v1/engine/core.py, step_with_batch_queue, and
// async_scheduler.py) the loop asks for step k + 1 when step k begins. A request that comes during step k joins step
// k + 2. One whose last token is under way is left out, and keeps its place and its blocks until the token is there. A
// victim keeps the token that is under way; one that gives up its KV with its last token under way ends all the same.
// With drafts a request is left out once its last token is under way even if none of them is kept; where they are, it
// takes part in one more step, in vain. Blocks are taken as if all drafts under way were kept.
//
// Not modelled: asynchronous scheduling with pipeline stages, encoder budgets.
//
// Departure: blocks for KV that is to come are reserved in front of the step, not among its admissions: the watermark
// does not hold for them, and by priority they are not reserved before preempted requests have begun to run.
//
// Departure: where KV comes from elsewhere, vLLM keeps the blocks of a victim until the step under way has ended
// (`defer_block_free`), and goes on preempting meanwhile, down to the request that lacks a block; two prompts in chunks
// can then take each other's blocks for ever. Here a victim's blocks return at once.
//
// Departure: vLLM hangs when requests whose KV has arrived hold all blocks, none can take its next one, and nothing
// runs. Here the youngest of them gives up its KV and is recomputed.
//
// Departure: drafts beyond the end of a request are not made, but with asynchronous scheduling; vLLM computes them and
// trims what it sampled. With drafts under way a request may have more tokens than the window, for which vLLM clamps.
//
// Departure: with pipeline parallelism vLLM preempts requests whose next token is under way; here others go first. One
// that has lost its KV with chunks under way begins again when they have ended; in vLLM at once.
//
// The same rules in Python, to read and to fork: vidur_pd/scheduling/vllm_v1_python.py.
#pragma once

#include <optional>

#include "policy.hpp"

namespace serving {

class VllmV1 final : public Policy {
  public:
    void decide(RankState& rank) override;
    bool is_steady(RankState& rank) override;

  private:
    // A request that may begin to run, with so many tokens.
    struct Admissible {
        RequestPtr request;
        Tokens tokens;
        CachedPrefix prefix;
        TierLoad load;
    };

    static bool continue_running(RankState& rank);
    static bool make_room(RankState& rank, const RequestPtr& request, Tokens tokens, std::size_t& position);
    static RequestPtr next_victim(const RankState& rank);
    static void admit_waiting(RankState& rank);
    static std::optional<Admissible> find_admissible(const RankState& rank, Tokens budget);
};

}  // namespace serving
