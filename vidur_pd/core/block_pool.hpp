// Paged KV blocks of one scheduler rank, with and without prefix caching, as vLLM V1 keeps them.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/block_pool.py, kv_cache_manager.py and kv_cache_utils.py. Block 0 is a
// null block that no request gets, so usable blocks = blocks - 1.
//
// With prefix caching, every full block has a key (the hash of all tokens up to its end). The free queue starts in id
// order; blocks are taken from its front, and a block that is taken loses its key: that is the eviction. A request's
// blocks come back tail first, those without a key to the front, those with one to the back. Blocks without a key
// therefore always precede those with one, which is why a stack and a list make up the queue.
//
// Layers may be in several groups (aicb/model/kv_groups.py). With prefix caching, hits are those of the group that
// keeps all tokens; blocks of groups with a window are without content, as if the tail of every cached prefix were at
// hand.
//
// Assumed: one block size for all layers; no LoRA or multimodal keys. Ignored: a hash collision; hits on
// an answer before it has ended (vLLM gives blocks their keys as they fill).
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block_keys.hpp"
#include "request.hpp"

namespace serving {

using BlockId = std::int32_t;

// The longest cached prefix of a request at this instant; valid until the pool changes.
struct CachedPrefix {
    Tokens tokens = 0;
    std::vector<BlockId> blocks;
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

// KV blocks with hash-chained prefix caching; O(1) per block. `hash_block_tokens` is the length of the prompt blocks
// that a request's block hashes identify. `drops_last_hit`: the last block of a hit is computed again, for the hidden
// states that a drafting layer needs (vllm/v1/core/single_type_kv_cache_manager.py, `drop_eagle_block`).
// `availability`: scheduled or computed.
class PrefixCachingBlockPool final : public BlockPool {
  public:
    PrefixCachingBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                           const KvGroups& groups = {}, bool drops_last_hit = false,
                           Availability availability = Availability::kScheduled);

    std::int64_t free_blocks() const override {
        return unused_blocks() + static_cast<std::int64_t>(blank_.size()) + cached_free_;
    }
    CachedPrefix cached_prefix(const Request& request, Tokens tokens) override;
    // Hits leave the free queue before new blocks are taken from its front.
    void allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) override;
    // Blocks of equal content are not merged; the first one registered serves the hits.
    void register_blocks(const Request& request, Tokens computed_tokens) override;
    void release(const Request& request) override;
    void clear() override;
    Availability availability() const override { return availability_; }
    Tokens touch(const Request& request, Tokens tokens) override;
    // Of whole blocks.
    std::optional<std::uint64_t> content(const Request& request, Tokens tokens) override;

  private:
    static constexpr std::int64_t kNoKey = INT64_MIN;
    static constexpr BlockId kNone = 0;  // the null block is never free, cached or held

    struct Block {
        std::int64_t key = kNoKey;
        std::int32_t holders = 0;
        BlockId before = kNone, after = kNone;  // neighbours in the list of cached free blocks, next victim first
        BlockId next_copy = kNone;              // the block of equal content that was registered next
    };
    struct Table {
        std::vector<BlockId> blocks;   // of the group that keeps every token, in token order
        std::vector<BlockId> spanned;  // of the other groups
        std::int64_t registered = 0;   // leading blocks that have been registered
    };

    // Blocks that have never been taken; they follow the blank ones in the queue.
    std::int64_t unused_blocks() const { return usable_blocks() + 1 - static_cast<std::int64_t>(blocks_.size()); }
    Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
    std::vector<BlockId> find(const Request& request, std::int64_t most_blocks);
    BlockId first_copy(std::int64_t key) const;
    BlockId& first_copy_place(std::int64_t key);
    BlockId take_block();
    void set_key(BlockId block, std::int64_t key);
    void forget_key(BlockId block);
    void append_cached(BlockId block);
    void remove_cached(BlockId block);

    BlockKeys keys_;
    bool drops_last_hit_;
    Availability availability_;
    std::vector<Block>
        blocks_;  // the null block, whose neighbours are the ends of the cached list, and all used so far
    std::vector<BlockId> blank_;  // free blocks without a key that have been used; the last is the queue's front
    std::int64_t cached_free_ = 0;
    std::vector<BlockId> first_shared_;               // by key of content that requests can share
    aicb::FlatMap<BlockId> first_unique_;             // by key of content unique to a request
    std::unordered_map<std::int64_t, Table> tables_;  // by request
};

}  // namespace serving
