// Content keys of KV blocks: equal exactly when all tokens up to the block's end are equal.
#pragma once

#include <aicb/flat_map.hpp>
#include <cstdint>
#include <optional>

#include "request.hpp"

namespace serving {

// Turns the contents of a request (one per `hash_block_tokens` of its first `hashed_tokens`: its prompt, or with its
// answer) into keys of KV blocks.
//
// A KV block that ends at token e inside trace block j is identified by (content up to the end of j, offset of e in
// block j), so any two block lengths go together. A partial last trace block yields keys up to its last full KV block:
// dense numbers from 0. Blocks that contain a token without content, and prompts without ids, are their request's own
// and have no key.
class BlockKeys {
  public:
    BlockKeys(Tokens block_tokens, Tokens hash_block_tokens);

    // Leading blocks of a request whose content other requests can have.
    std::int64_t shareable_blocks(const Request& request) const;

    // Walks the keys of a request's full KV blocks, one after another.
    class Walk {
      public:
        Walk(BlockKeys& keys, const Request& request, std::int64_t first_block);
        // The key of the next block; none if that is the request's own. The walk ends there.
        std::optional<std::int64_t> next();
        // The same; none, too, if no block of this content has ever had a key.
        std::optional<std::int64_t> next_known();

      private:
        bool is_at_end() const { return block_ >= shareable_; }
        // Whether the next block ends in the trace block whose content is numbered.
        bool is_inside() const { return (block_ + 1) * keys_.block_ends_ <= trace_end_; }
        std::uint64_t enter();
        void number(std::int32_t number);
        std::int64_t shared() { return first_key_ + ++block_ * keys_.block_ends_; }

        BlockKeys& keys_;
        const Request& request_;
        std::int64_t block_;
        std::int64_t shareable_;      // blocks
        std::int64_t trace_end_ = 0;  // of the trace block, in possible ends
        std::int64_t first_key_ = 0;  // of its content, less the possible ends before it and one
    };

  private:
    Tokens block_tokens_;
    Tokens hash_block_tokens_;
    std::int64_t block_ends_, hash_block_ends_;  // possible ends of KV blocks in a KV block, and in a trace block
    aicb::FlatMap<std::int32_t> numbers_;        // of contents, dense from 0
    std::int32_t contents_ = 0;
};

}  // namespace serving
