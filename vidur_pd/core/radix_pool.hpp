// KV pages of one scheduler rank with a radix tree as prefix cache, as SGLang keeps them.
//
// Source of the rules: SGLang 0.5.23, python/sglang/srt/mem_cache/radix_cache.py (`checkpoint`, `match_prefix`,
// `evict`), common.py (`release_kv_cache`) and allocation.py. A block is a page.
//
// What a request has computed goes into the tree when it has been computed: after each chunk of its prompt, and at its
// end with its output; a node ends where the prompt does. Where the tree has the same tokens already, the request's own
// pages return and it goes on with the tree's. A request that loses its KV leaves nothing behind but what was inserted.
// The tree's nodes on the path of a running request are locked. Those that nobody locks count as free, and are evicted
// when the decision is complete (`evict`), so that requests admitted together find what is there before it.
//
// Assumed: content of generated tokens is that request's own, as far as block hashes do not name it
// (`Request::hashed_tokens`). Departure: where pages have several tokens, SGLang frees a page more per request before
// it allocates.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "block_pool.hpp"
#include "radix_tree.hpp"

namespace serving {

// `hash_block_tokens`: tokens that a block hash of a request stands for.
class RadixBlockPool final : public BlockPool {
  public:
    RadixBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens, Eviction eviction,
                   const KvGroups& groups = {});

    std::int64_t free_blocks() const override { return blank_ + tree_.evictable_tokens() / block_tokens(); }
    CachedPrefix cached_prefix(const Request& request, Tokens tokens) override;
    // Locks the prefix, which splits and refreshes it.
    void allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) override;
    void register_blocks(const Request& request, Tokens computed_tokens) override;
    void release(const Request& request) override;
    void clear() override;
    Availability availability() const override { return Availability::kInserted; }
    void evict(std::int64_t blank_blocks) override;
    Tokens touch(const Request& request, Tokens tokens) override;
    std::optional<std::uint64_t> content(const Request& request, Tokens tokens) override;
    std::optional<std::uint64_t> chunk_content(const Request& request, Tokens tokens) override;
    std::vector<std::size_t> depth_first(const std::vector<RequestPtr>& requests) override;

    const RadixTree& tree() const { return tree_; }

  private:
    struct Held {
        std::shared_ptr<const KeptLabel> kept;
        RadixTree::Node node = RadixTree::kRoot;  // locked; in it ends what the tree has of the request
        Tokens in_tree = 0;                       // tokens of these
        Tokens counted = 0;                       // for which the tree has counted the request's hits
        std::int64_t own_blocks = 0;              // for the tokens behind
    };

    void note_chunks_of(const RadixTree::Evicted& evicted);

    Tokens hash_block_tokens_;
    RadixTree tree_;
    std::int64_t blank_;                           // blocks without content and holder; below 0 until `evict`
    std::unordered_map<std::int64_t, Held> held_;  // by request
};

}  // namespace serving
