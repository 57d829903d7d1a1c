// Paged KV blocks of one scheduler rank.
//
// Block 0 of a pool is a null block that no request gets (vLLM 0.24.0, vllm/v1/core/block_pool.py), so usable blocks =
// blocks - 1. Layers may be in several groups (aicb/model/kv_groups.py).
//
// Assumed: one block size for all layers; no LoRA or multimodal keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "request.hpp"

namespace serving {

using BlockId = std::int32_t;

// The longest cached prefix of a request at this instant; valid until the pool changes.
struct CachedPrefix {
    Tokens tokens = 0;
    std::vector<BlockId> blocks;     // those whose content others can have
    std::int64_t shared_blocks = 0;  // those that another request holds: reusing them takes nothing from the free queue
    bool may_share_more = false;  // a block that nobody holds has a copy, which may be held: hit once this is evicted
};

// Groups of layers that each have blocks of their own, of one pool (aicb.model.kv_groups.KvGroups).
struct KvGroups {
    std::int64_t whole = 1;                // keep every token
    std::int64_t spanned = 0;              // keep those within a window or chunk
    std::int64_t most_spanned_blocks = 0;  // of a request, in each of these
};

// When what a request has computed becomes available to others.
enum class Availability {
    kScheduled,  // with the iteration that computes it (vLLM)
    kComputed,   // when that has ended, and when the request loses its KV (TensorRT-LLM)
    kInserted,   // when that has ended, chunks of a prompt as soon as the next iteration is decided (SGLang)
};

// KV blocks of one rank. A request holds `blocks(tokens)` blocks from its first `allocate` until its `release`. The
// caller checks `free_blocks` first; `allocate` beyond them is a broken invariant.
class BlockPool {
  public:
    BlockPool(std::int64_t num_blocks, Tokens block_tokens, const KvGroups& groups);
    virtual ~BlockPool() = default;
    BlockPool(const BlockPool&) = delete;
    BlockPool& operator=(const BlockPool&) = delete;

    Tokens block_tokens() const { return block_tokens_; }
    std::int64_t usable_blocks() const { return usable_blocks_; }
    std::int64_t used_blocks() const { return usable_blocks_ - free_blocks(); }
    // That a request of so many tokens holds, in all groups.
    std::int64_t blocks(Tokens tokens) const { return groups_.whole * filled(tokens) + spanned_blocks(tokens); }
    // Tokens up to the end of the block of the last of these.
    Tokens rounded_up(Tokens tokens) const { return filled(tokens) * block_tokens_; }

    // Blocks that no request holds; cached ones among them count, they are evicted on demand.
    virtual std::int64_t free_blocks() const = 0;
    // The longest cached prefix of the first `tokens` tokens, short of the last of them; changes nothing.
    virtual CachedPrefix cached_prefix(const Request& request, Tokens tokens) = 0;
    // Lets the request hold `prefix` (first call only) and new blocks up to `tokens` tokens in all.
    virtual void allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) = 0;
    // Makes the full blocks among the first `computed_tokens` available to later requests.
    virtual void register_blocks(const Request& request, Tokens computed_tokens) = 0;
    // Takes all blocks of the request back.
    virtual void release(const Request& request) = 0;
    // Takes all blocks of all requests back, without their content.
    virtual void clear() = 0;

    virtual Availability availability() const { return Availability::kScheduled; }
    // Evicts cached content until so many blocks are free without it, or nothing is left. 0: what has been allocated.
    virtual void evict(std::int64_t /* blank_blocks */) {}
    // Looks the first `tokens` tokens of a request up, as if to use them: that keeps them in a tree for longer.
    // Returns how many were found.
    virtual Tokens touch(const Request&, Tokens /* tokens */) { return 0; }
    // What the first `tokens` tokens are; none if no other request can have them, or nobody asks.
    virtual std::optional<std::uint64_t> content(const Request&, Tokens /* tokens */) { return std::nullopt; }
    // Notes from now on which chunks of so many tokens are cached no more, by the last token of each.
    void log_evictions(Tokens chunk_tokens) { logged_chunk_tokens_ = chunk_tokens; }
    bool has_evicted() const { return !evicted_.empty(); }
    // Those that have gone since the last call, by `chunk_content`, ends of prefixes first.
    std::vector<std::uint64_t> take_evicted() { return std::exchange(evicted_, {}); }
    // Stands for the first `tokens` tokens of a request, a whole number of chunks, in that log; none as with `content`.
    virtual std::optional<std::uint64_t> chunk_content(const Request& request, Tokens tokens) {
        return content(request, tokens);
    }
    // Places of requests in the depth-first order of the tree in which their prefixes are; unchanged without one.
    virtual std::vector<std::size_t> depth_first(const std::vector<RequestPtr>& requests) {
        std::vector<std::size_t> order(requests.size());
        std::iota(order.begin(), order.end(), 0);
        return order;
    }

  protected:
    Tokens logged_chunk_tokens() const { return logged_chunk_tokens_; }
    void note_evicted(std::uint64_t content) { evicted_.push_back(content); }
    std::int64_t filled(Tokens tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
    std::int64_t spanned_blocks(Tokens tokens) const {
        return groups_.spanned * std::min(filled(tokens), groups_.most_spanned_blocks);
    }

  private:
    Tokens block_tokens_;
    std::int64_t usable_blocks_;
    KvGroups groups_;
    Tokens logged_chunk_tokens_ = 0;  // 0: nobody asks
    std::vector<std::uint64_t> evicted_;
};

// KV blocks without prefix caching: all blocks are interchangeable, so counting them is exact and every call is O(1).
class CountingBlockPool final : public BlockPool {
  public:
    CountingBlockPool(std::int64_t num_blocks, Tokens block_tokens, const KvGroups& groups = {});

    std::int64_t free_blocks() const override { return free_blocks_; }
    CachedPrefix cached_prefix(const Request&, Tokens) override { return {}; }
    void allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) override;
    void register_blocks(const Request&, Tokens) override {}
    void release(const Request& request) override;
    void clear() override;

  private:
    std::int64_t free_blocks_;
    std::unordered_map<std::int64_t, std::int64_t> held_;  // by request
};

}  // namespace serving
