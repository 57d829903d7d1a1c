// Chunks of KV that a tier behind the block pools holds: CPU memory, a disk, a store in the network.
//
// Source of the rules: LMCache 0.5.6, lmcache/v1/token_database.py (`ChunkedTokenDatabase`: the key of a chunk is a
// hash of the one before and its own tokens; only full chunks count) and storage_backend/storage_manager.py (a look-up
// ends at the first gap). Chunks with tokens that no other request can have are not kept: answers, prompts without
// contents.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "block_keys.hpp"
#include "request.hpp"

namespace serving {

// Numbers of chunks, which all tiers of a cluster share: equal exactly when all tokens up to the chunk's end are.
class ChunkKeys {
  public:
    ChunkKeys(Tokens chunk_tokens, Tokens hash_block_tokens);

    Tokens chunk_tokens() const { return chunk_tokens_; }
    // [chunks] of the full chunks among the first `tokens` tokens that other requests can have.
    std::vector<std::int64_t> of(const Request& request, Tokens tokens);

  private:
    friend class ChunkIndex;

    Tokens chunk_tokens_;
    BlockKeys keys_;
};

// Which chunks are in one tier, complete. What goes in and out is decided by its owner.
class ChunkIndex {
  public:
    explicit ChunkIndex(std::shared_ptr<ChunkKeys> keys) : keys_(std::move(keys)) {}

    void add(const std::vector<std::int64_t>& keys);
    void remove(const std::vector<std::int64_t>& keys);
    bool has(std::int64_t key) const {
        const auto place = static_cast<std::size_t>(key);
        return place < is_there_.size() && is_there_[place];
    }
    std::int64_t size() const { return chunks_; }
    Tokens chunk_tokens() const { return keys_->chunk_tokens(); }
    // End of the chunks in a row that are here, from the one with token number `from` on and among the first `tokens`
    // tokens; `from` where that one is not.
    Tokens reach(const Request& request, Tokens from, Tokens tokens) const;

  private:
    std::shared_ptr<ChunkKeys> keys_;
    std::vector<bool> is_there_;  // by key
    std::int64_t chunks_ = 0;
};

}  // namespace serving
