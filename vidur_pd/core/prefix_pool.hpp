// KV blocks of one scheduler rank with hash-chained prefix caching, as vLLM V1 keeps them.
//
// Source of the rules: vLLM 0.24.0, vllm/v1/core/block_pool.py, kv_cache_manager.py and kv_cache_utils.py.
//
// Every full block has a key (the hash of all tokens up to its end). The free queue starts in id order; blocks are
// taken from its front, and a block that is taken loses its key: that is the eviction. A request's blocks come back
// tail first, those without a key to the front, those with one to the back. Blocks without a key therefore always
// precede those with one: they are a number here, and the others a list, the next victim first. Nothing depends on ids.
//
// Content that other requests can have is kept block by block. What is a request's own (prompts without ids, answers)
// only that request can hit, when it comes back after it has been preempted: a run of such blocks is one entry of the
// list, of which the last block is evicted first, so that requests that share nothing cost no time per block.
//
// Layers may be in several groups. Hits are those of the group that keeps all tokens; blocks of groups with a window
// are without content, as if the tail of every cached prefix were at hand.
//
// Ignored: a hash collision; hits on an answer before it has ended (vLLM gives blocks their keys as they fill).
#pragma once

#include <aicb/flat_map.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "block_keys.hpp"
#include "block_pool.hpp"

namespace serving {

// `hash_block_tokens` is the length of the prompt blocks that a request's block hashes identify. `drops_last_hit`: the
// last block of a hit is computed again, for the hidden states that a drafting layer needs
// (vllm/v1/core/single_type_kv_cache_manager.py, `drop_eagle_block`). `availability`: scheduled or computed.
class PrefixCachingBlockPool final : public BlockPool {
  public:
    PrefixCachingBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                           const KvGroups& groups = {}, bool drops_last_hit = false,
                           Availability availability = Availability::kScheduled);

    std::int64_t free_blocks() const override { return blank_ + cached_free_; }
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
    static constexpr BlockId kNone = 0;  // its entry links the ends of the list

    // Blocks that a request alone can hit, `from` to `to` of its blocks, given their keys while it held them for the
    // `holding`th time that any request held blocks.
    struct Run {
        std::int64_t from = 0, to = 0;
        std::int64_t holding = 0;
    };
    struct FreeRun : Run {
        std::int64_t request = 0;
        BlockId of_same_request = kNone;  // another one's entry
    };
    // A block whose content others can have, held or free; or a free run.
    struct Entry {
        std::int64_t key = 0;  // below 0: place of the run, -1 for the first
        std::int32_t holders = 0;
        BlockId before = kNone, after = kNone;  // neighbours in the list
        BlockId next_copy = kNone;              // the block of equal content that was registered next
    };
    // What a request holds, in token order: shared content, own content that it had before, own content since,
    // and blocks without a key.
    struct Table {
        std::vector<BlockId> shared;
        std::vector<Run> back;
        std::int64_t registered = 0;  // blocks with a key
        std::int64_t blocks = 0;      // of the group that keeps every token
        std::int64_t spanned = 0;     // of the other groups
        std::int64_t holding = 0;
    };

    Entry& at(BlockId entry) { return entries_[static_cast<std::size_t>(entry)]; }
    FreeRun& run_of(const Entry& entry) { return runs_[static_cast<std::size_t>(-1 - entry.key)]; }
    Table& table_of(const Request& request, const char* broken);
    std::vector<BlockId> find_shared(const Request& request, std::int64_t most_blocks);
    // End of the own blocks of a request that are free from `first` on.
    std::int64_t own_end(const Request& request, std::int64_t first, std::int64_t most_blocks);
    std::vector<Run> take_own(const Request& request, std::int64_t first, std::int64_t end);
    BlockId own_block(const Request& request, std::int64_t block);
    void take_blocks(std::int64_t count);
    BlockId& first_copy(std::int64_t key);
    BlockId make_block(std::int64_t key);
    void drop_block(BlockId block);
    void append_run(const Request& request, const Run& run);
    BlockId make_run(std::int64_t request, const Run& run);
    void drop_run(BlockId entry);
    BlockId make_entry();
    void link_before(BlockId next, BlockId entry);
    void unlink(BlockId entry);

    BlockKeys keys_;
    bool drops_last_hit_;
    Availability availability_;
    std::int64_t blank_;            // free blocks without a key
    std::int64_t cached_free_ = 0;  // those with one
    std::int64_t holdings_ = 0;
    std::vector<Entry> entries_;
    std::vector<FreeRun> runs_;
    std::vector<BlockId> spare_entries_;
    std::vector<std::int64_t> spare_runs_;    // as keys
    std::vector<BlockId> first_copies_;       // by key
    aicb::FlatMap<BlockId> runs_of_request_;  // one's entry, with the others chained to it
    aicb::FlatMap<Table> tables_;             // by request
};

}  // namespace serving
