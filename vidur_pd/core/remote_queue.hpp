// Requests of a decode rank whose KV comes from elsewhere, until they run.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/sched/scheduler.py (WAITING_FOR_REMOTE_KVS). Blocks for the whole
// prompt are reserved before the transfer starts; a request that waits for its KV, or has it and waits for its turn,
// holds its blocks and is never preempted. What the decode side looks up is the prompt, whose last token is never hit:
// at least that one's KV travels.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_set>
#include <vector>

#include "block_pool.hpp"
#include "request.hpp"

namespace serving {

// First come, first served, or by priority: requests without blocks, those in transfer, and those whose KV has
// `arrived`.
class RemoteQueue {
  public:
    RemoteQueue(BlockPool& pool, bool by_priority) : pool_(pool), by_priority_(by_priority) {}

    std::int64_t size() const {
        return static_cast<std::int64_t>(pending_.size() + transferring_.size() + arrived.size());
    }
    // Some request's KV is on its way.
    bool is_transferring() const { return !transferring_.empty(); }
    // Queues a request that has no blocks here yet.
    void add(RequestPtr request);
    // Reserves blocks for whole prompts until one may not go before others, or does not fit into what `promised_blocks`
    // leave; returns those served.
    std::vector<RequestPtr> reserve(std::int64_t promised_blocks, const std::function<bool(const Request&)>& may_go);
    // Whether blocks for the whole prompt are free in addition to `promised_blocks`.
    bool fits(const Request& request, std::int64_t promised_blocks);
    // Whether the next to get blocks may need fewer of them when others have been evicted (`CachedPrefix`).
    bool may_share_more() const;
    // Lets a request without blocks be the next to get some.
    void prefer(const RequestPtr& request);
    // Takes reserved blocks back while no KV is on its way to them; the request queues again, behind the others.
    void retract(const RequestPtr& request);
    // Forgets a request that will not run.
    void abandon(const RequestPtr& request);
    // The transfer has ended; `computed_tokens` is the context (next token from prefill) or one less (next token here).
    void complete(const RequestPtr& request, Tokens computed_tokens);
    // The same for a request whose KV has been here all the time.
    void keep(const RequestPtr& request, Tokens computed_tokens);
    // Lets a request that waits elsewhere hold blocks for its context while the first `prefix` of it is there and more
    // comes from a tier.
    void load(const RequestPtr& request, const CachedPrefix& prefix);
    // The first `computed_tokens` are there; the others are computed here.
    void loaded(const RequestPtr& request, Tokens computed_tokens);
    // Forgets all requests; blocks are the caller's.
    void clear();
    // Releases the KV of a request that has arrived.
    void drop_arrived(const RequestPtr& request);

    std::deque<RequestPtr> arrived;

  private:
    BlockPool& pool_;
    bool by_priority_;
    std::deque<RequestPtr> pending_;
    std::unordered_set<std::int64_t> transferring_;  // indices
};

}  // namespace serving
