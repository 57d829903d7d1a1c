// vLLM V1 continuous batching with chunked prefill and recompute preemption.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py, first-come-first-served policy. A step first
// continues the running requests in order of admission, then, unless it preempted one, admits waiting requests. There
// is no prefill or decode phase: each request is brought up to its sequence (prompt + generated tokens) within the
// token budget.
//
// Assumed: output ends by length alone, and P + D fits the context window (`rejection_reason`), so vLLM's clamp to the
// window never acts. The watermark holds for waiting requests, and only while something runs. With pipeline parallelism
// a request sits in one micro-batch at a time and cannot be preempted from it (vLLM itself also pipelines the chunks of
// one prompt).
//
// With drafts each decode computes its drafted tokens as well; what is rejected is computed again. Drafts beyond the
// end of a request are not made.
//
// With asynchronous scheduling (`Limits::plans_ahead`; vllm/v1/engine/core.py, step_with_batch_queue, and
// async_scheduler.py) the loop asks for step k + 1 when step k begins. A request that comes during step k joins step
// k + 2. One whose last token is under way is left out, and keeps its place and its blocks until the token is there. A
// victim keeps the token that is under way; one that gives up its KV with its last token under way ends all the same.
//
// Not modelled: asynchronous scheduling with drafts or pipeline stages, priorities, encoder budgets.
//
// Departure: where KV comes from elsewhere, vLLM keeps the blocks of a victim until the step under way has ended
// (`defer_block_free`), and goes on preempting meanwhile, down to the request that lacks a block; two prompts in chunks
// can then take each other's blocks for ever. Here a victim's blocks return at once.
//
// Departure: vLLM hangs when requests whose KV has arrived hold all blocks, none can take its next one, and nothing
// runs. Here the youngest of them gives up its KV and is recomputed.
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
    static bool continue_running(RankState& rank);
    static bool make_room(RankState& rank, const RequestPtr& request, Tokens tokens);
    static void admit_waiting(RankState& rank);
    static std::optional<CachedPrefix> find_admissible_prefix(RankState& rank);
};

}  // namespace serving
