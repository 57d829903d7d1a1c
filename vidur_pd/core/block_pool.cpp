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

PrefixCachingBlockPool::PrefixCachingBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                                               const KvGroups& groups, bool drops_last_hit, Availability availability)
    : BlockPool(num_blocks, block_tokens, groups),
      keys_(block_tokens, hash_block_tokens),
      drops_last_hit_(drops_last_hit),
      availability_(availability),
      blocks_(1) {
    if (groups.whole != 1) {
        throw InputError("prefix caching: found " + std::to_string(groups.whole) +
                         " groups of layers that keep every token, expected one");
    }
}

void PrefixCachingBlockPool::clear() {
    blocks_.assign(1, Block{});
    blank_.clear();
    cached_free_ = 0;
    first_shared_.clear();
    first_unique_ = {};
    tables_.clear();
}

CachedPrefix PrefixCachingBlockPool::cached_prefix(const Request& request, Tokens tokens) {
    CachedPrefix prefix;
    prefix.blocks = find(request, (tokens - 1) / block_tokens());
    if (drops_last_hit_ && !prefix.blocks.empty()) prefix.blocks.pop_back();
    for (const BlockId block : prefix.blocks) {
        const bool is_held = at(block).holders > 0;
        prefix.shared_blocks += is_held;
        prefix.may_share_more |= !is_held && at(block).next_copy != kNone;
    }
    prefix.tokens = static_cast<Tokens>(prefix.blocks.size()) * block_tokens();
    return prefix;
}

// The cached ones among the first blocks of a request, up to the first that is not.
std::vector<BlockId> PrefixCachingBlockPool::find(const Request& request, std::int64_t most_blocks) {
    std::vector<BlockId> found;
    BlockKeys::Walk walk(keys_, request, 0);
    while (static_cast<std::int64_t>(found.size()) < most_blocks) {
        const auto key = walk.next_known();
        const BlockId block = key ? first_copy(*key) : kNone;
        if (block == kNone) break;
        found.push_back(block);
    }
    return found;
}

Tokens PrefixCachingBlockPool::touch(const Request& request, Tokens tokens) {
    return static_cast<Tokens>(find(request, tokens / block_tokens()).size()) * block_tokens();
}

std::optional<std::uint64_t> PrefixCachingBlockPool::content(const Request& request, Tokens tokens) {
    if (tokens < block_tokens()) return std::nullopt;
    const std::int64_t key = BlockKeys::Walk(keys_, request, tokens / block_tokens() - 1).next();
    return key < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(key));
}

void PrefixCachingBlockPool::allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) {
    Table& table = tables_[request.index];
    if (!prefix.blocks.empty()) {
        ensure(table.blocks.empty(), "request " + request.request_id + " reuses a prefix but holds blocks already");
        for (const BlockId block : prefix.blocks) {
            if (at(block).holders++ == 0) remove_cached(block);
        }
        table.blocks = prefix.blocks;
        table.registered = static_cast<std::int64_t>(prefix.blocks.size());
    }
    const auto needed = static_cast<std::size_t>(filled(tokens));
    while (table.blocks.size() < needed) table.blocks.push_back(take_block());
    const auto spanned = static_cast<std::size_t>(spanned_blocks(tokens));
    while (table.spanned.size() < spanned) table.spanned.push_back(take_block());
}

void PrefixCachingBlockPool::register_blocks(const Request& request, Tokens computed_tokens) {
    const std::int64_t end = computed_tokens / block_tokens();
    if (end == 0) return;
    Table& table = tables_.at(request.index);
    if (end <= table.registered) return;
    BlockKeys::Walk walk(keys_, request, table.registered);
    for (; table.registered < end; ++table.registered) {
        set_key(table.blocks[static_cast<std::size_t>(table.registered)], walk.next());
    }
}

void PrefixCachingBlockPool::release(const Request& request) {
    const auto table = tables_.find(request.index);
    ensure(table != tables_.end(), "request " + request.request_id + " holds no block");
    const std::vector<BlockId>& held = table->second.blocks;
    for (const BlockId block : table->second.spanned) {
        at(block).holders = 0;
        blank_.push_back(block);
    }
    for (auto block = held.rbegin(); block != held.rend(); ++block) {
        if (--at(*block).holders > 0) continue;
        if (at(*block).key != kNoKey) {
            append_cached(*block);
        } else {
            blank_.push_back(*block);
        }
    }
    tables_.erase(table);
}

// The front of the free queue; its key, if any, is forgotten.
BlockId PrefixCachingBlockPool::take_block() {
    BlockId block;
    if (!blank_.empty()) {
        block = blank_.back();
        blank_.pop_back();
    } else if (unused_blocks() > 0) {
        block = static_cast<BlockId>(blocks_.size());
        blocks_.emplace_back();
    } else {
        block = blocks_[kNone].after;
        ensure(block != kNone, "no free block");
        remove_cached(block);
        forget_key(block);
    }
    at(block).holders = 1;
    return block;
}

// The block that was registered first for a key; none if there is none.
BlockId PrefixCachingBlockPool::first_copy(std::int64_t key) const {
    if (key >= 0) {
        const auto place = static_cast<std::size_t>(key);
        return place < first_shared_.size() ? first_shared_[place] : kNone;
    }
    const BlockId* found = first_unique_.find(static_cast<std::uint64_t>(key));
    return found == nullptr ? kNone : *found;
}

// The place of `first_copy`, made if there is none; valid until the next call.
BlockId& PrefixCachingBlockPool::first_copy_place(std::int64_t key) {
    if (key < 0) return first_unique_[static_cast<std::uint64_t>(key)];
    const auto place = static_cast<std::size_t>(key);
    if (place >= first_shared_.size()) first_shared_.resize(place + place / 2 + 1, kNone);
    return first_shared_[place];
}

void PrefixCachingBlockPool::set_key(BlockId block, std::int64_t key) {
    at(block).key = key;
    at(block).next_copy = kNone;
    BlockId* last = &first_copy_place(key);
    while (*last != kNone) last = &at(*last).next_copy;
    *last = block;
}

void PrefixCachingBlockPool::forget_key(BlockId block) {
    Block& own = at(block);
    BlockId* place = &first_copy_place(own.key);
    if (own.key < 0 && *place == block && own.next_copy == kNone) {
        first_unique_.erase(static_cast<std::uint64_t>(own.key));
    } else {
        while (*place != block) place = &at(*place).next_copy;
        *place = own.next_copy;
        // A chunk goes with its last block: of a prefix the blocks behind go before those ahead.
        const bool is_last_copy = own.key >= 0 && first_copy(own.key) == kNone;
        if (logged_chunk_tokens() && is_last_copy) note_evicted(static_cast<std::uint64_t>(own.key));
    }
    own.key = kNoKey;
}

void PrefixCachingBlockPool::append_cached(BlockId block) {
    Block &end = blocks_[kNone], &own = at(block);
    own.before = end.before;
    own.after = kNone;
    at(end.before).after = block;
    end.before = block;
    ++cached_free_;
}

void PrefixCachingBlockPool::remove_cached(BlockId block) {
    const Block& own = at(block);
    at(own.before).after = own.after;
    at(own.after).before = own.before;
    --cached_free_;
}

}  // namespace serving
