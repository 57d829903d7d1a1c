#include "block_pool.hpp"

namespace serving {

BlockPool::BlockPool(std::int64_t num_blocks, Tokens block_tokens, const KvGroups& groups)
    : block_tokens_(block_tokens), usable_blocks_(num_blocks - 1), groups_(groups) {
    if (num_blocks < 2) {
        throw InputError("num_blocks: found " + std::to_string(num_blocks) +
                         ", expected at least 2 (one is the null block)");
    }
    check_least("block_tokens", block_tokens, 1);
}

CountingBlockPool::CountingBlockPool(std::int64_t num_blocks, Tokens block_tokens, const KvGroups& groups)
    : BlockPool(num_blocks, block_tokens, groups), free_blocks_(usable_blocks()) {}

void CountingBlockPool::allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) {
    ensure(prefix.blocks.empty(), "a pool without prefix caching finds no prefix");
    std::int64_t& held = held_[request.index];
    const std::int64_t needed = blocks(tokens) - held;
    if (needed <= 0) return;
    ensure(needed <= free_blocks_, "request " + request.request_id + " needs " + std::to_string(needed) + " of " +
                                       std::to_string(free_blocks_) + " free blocks");
    free_blocks_ -= needed;
    held += needed;
}

void CountingBlockPool::release(const Request& request) {
    const auto held = held_.find(request.index);
    ensure(held != held_.end(), "request " + request.request_id + " holds no block");
    free_blocks_ += held->second;
    held_.erase(held);
}

void CountingBlockPool::clear() {
    held_.clear();
    free_blocks_ = usable_blocks();
}

}  // namespace serving
