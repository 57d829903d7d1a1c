// Content keys of KV blocks: equal exactly when all tokens up to the block's end are equal.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "request.hpp"

namespace serving {

// Turns the content ids of a trace (one per `hash_block_tokens` prompt tokens) into keys of KV blocks.
//
// Ids are chained: the same id after another prefix is other content. A KV block that ends at token e inside trace
// block j is identified by (chain of ids 0…j, offset of e in block j), so any two block lengths go together. A partial
// last trace block yields keys up to its last full KV block: dense numbers from 0. Blocks that contain a generated
// token, and prompts without ids, are unique to their request: negative keys.
class BlockKeys {
  public:
    BlockKeys(Tokens block_tokens, Tokens hash_block_tokens);

    // Walks the keys of a request's full KV blocks, one after another.
    class Walk {
      public:
        Walk(BlockKeys& keys, const Request& request, std::int64_t first_block);
        std::int64_t next();

      private:
        BlockKeys& keys_;
        const Request& request_;
        std::int64_t block_;
        std::int64_t shareable_;
        std::int64_t chain_ = 0;
        std::int64_t chained_ = 0;
    };

  private:
    struct Link {
        std::int64_t chain;
        std::int64_t id;
        bool operator==(const Link&) const = default;
    };
    struct LinkHash {
        std::size_t operator()(const Link& link) const {
            return static_cast<std::size_t>(link.chain) * 0x9E3779B97F4A7C15ull ^ static_cast<std::size_t>(link.id);
        }
    };

    std::int64_t extend(std::int64_t chain, std::int64_t id);

    Tokens block_tokens_;
    Tokens hash_block_tokens_;
    Tokens end_step_ = 1;  // ends of KV blocks within a trace block are multiples of this
    std::unordered_map<Link, std::int64_t, LinkHash> chains_;
};

}  // namespace serving
