#include "prefix_pool.hpp"

#include <algorithm>

namespace serving {

namespace {

constexpr const char* kNotHeld = " gives keys to blocks that it does not hold";

}  // namespace

PrefixCachingBlockPool::PrefixCachingBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                                               const KvGroups& groups, bool drops_last_hit, Availability availability)
    : BlockPool(num_blocks, block_tokens, groups),
      keys_(block_tokens, hash_block_tokens),
      drops_last_hit_(drops_last_hit),
      availability_(availability),
      blank_(usable_blocks()),
      entries_(1) {
    if (groups.whole != 1) {
        throw InputError("prefix caching: found " + std::to_string(groups.whole) +
                         " groups of layers that keep every token, expected one");
    }
}

void PrefixCachingBlockPool::clear() {
    blank_ = usable_blocks();
    cached_free_ = 0;
    entries_.assign(1, Entry{});
    runs_.clear();
    spare_entries_.clear();
    spare_runs_.clear();
    first_copies_.clear();
    runs_of_request_ = {};
    tables_ = {};
}

CachedPrefix PrefixCachingBlockPool::cached_prefix(const Request& request, Tokens tokens) {
    CachedPrefix prefix;
    const std::int64_t most_blocks = (tokens - 1) / block_tokens();
    prefix.blocks = find_shared(request, most_blocks);
    const auto shared = static_cast<std::int64_t>(prefix.blocks.size());
    std::int64_t end = own_end(request, shared, most_blocks);
    if (drops_last_hit_ && end) {
        --end;
        if (end < shared) prefix.blocks.pop_back();
    }
    for (const BlockId block : prefix.blocks) {
        const bool is_held = at(block).holders > 0;
        prefix.shared_blocks += is_held;
        prefix.may_share_more |= !is_held && at(block).next_copy != kNone;
    }
    prefix.tokens = end * block_tokens();
    return prefix;
}

// The cached ones among the first blocks of a request whose content others can have, up to the first that is not.
std::vector<BlockId> PrefixCachingBlockPool::find_shared(const Request& request, std::int64_t most_blocks) {
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

std::int64_t PrefixCachingBlockPool::own_end(const Request& request, std::int64_t first, std::int64_t most_blocks) {
    const BlockId* runs = runs_of_request_.find(static_cast<std::uint64_t>(request.index));
    if (runs == nullptr || first < keys_.shareable_blocks(request)) return first;
    std::int64_t end = first;
    while (end < most_blocks && own_block(request, end) != kNone) ++end;
    return end;
}

// The run in which this own block of a request is, that which got its key first; none if it is not free.
BlockId PrefixCachingBlockPool::own_block(const Request& request, std::int64_t block) {
    const BlockId* runs = runs_of_request_.find(static_cast<std::uint64_t>(request.index));
    BlockId found = kNone;
    for (BlockId entry = runs ? *runs : kNone; entry != kNone; entry = run_of(at(entry)).of_same_request) {
        const FreeRun& run = run_of(at(entry));
        const bool is_first = found == kNone || run.holding < run_of(at(found)).holding;
        if (run.from <= block && block < run.to && is_first) found = entry;
    }
    return found;
}

// Takes own blocks of a request out of the free queue.
std::vector<PrefixCachingBlockPool::Run> PrefixCachingBlockPool::take_own(const Request& request, std::int64_t first,
                                                                          std::int64_t end) {
    std::vector<Run> taken;
    while (first < end) {
        const BlockId entry = own_block(request, first);
        const Run found = run_of(at(entry));
        std::int64_t taken_to = first + 1;
        while (taken_to < end && own_block(request, taken_to) == entry) ++taken_to;
        if (taken_to < found.to) {  // those behind go before those ahead
            link_before(entry, make_run(request.index, {taken_to, found.to, found.holding}));
        }
        run_of(at(entry)).to = first;
        if (first == found.from) drop_run(entry);
        cached_free_ -= taken_to - first;
        taken.push_back({first, taken_to, found.holding});
        first = taken_to;
    }
    return taken;
}

Tokens PrefixCachingBlockPool::touch(const Request& request, Tokens tokens) {
    const std::int64_t most_blocks = tokens / block_tokens();
    const auto shared = static_cast<std::int64_t>(find_shared(request, most_blocks).size());
    return own_end(request, shared, most_blocks) * block_tokens();
}

std::optional<std::uint64_t> PrefixCachingBlockPool::content(const Request& request, Tokens tokens) {
    if (tokens < block_tokens()) return std::nullopt;
    const auto key = BlockKeys::Walk(keys_, request, tokens / block_tokens() - 1).next();
    return key ? std::optional(static_cast<std::uint64_t>(*key)) : std::nullopt;
}

void PrefixCachingBlockPool::allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) {
    Table& table = tables_[static_cast<std::uint64_t>(request.index)];
    if (!table.holding) table.holding = ++holdings_;
    if (prefix.tokens) {
        if (table.blocks) {
            throw BrokenInvariant("request " + request.request_id + " reuses a prefix but holds blocks already");
        }
        for (const BlockId block : prefix.blocks) {
            if (at(block).holders++) continue;
            unlink(block);
            --cached_free_;
        }
        table.shared = prefix.blocks;
        table.blocks = table.registered = prefix.tokens / block_tokens();
        table.back = take_own(request, static_cast<std::int64_t>(prefix.blocks.size()), table.blocks);
    }
    const std::int64_t more = std::max<std::int64_t>(filled(tokens) - table.blocks, 0);
    const std::int64_t more_spanned = std::max<std::int64_t>(spanned_blocks(tokens) - table.spanned, 0);
    take_blocks(more + more_spanned);
    table.blocks += more;
    table.spanned += more_spanned;
}

void PrefixCachingBlockPool::register_blocks(const Request& request, Tokens computed_tokens) {
    const std::int64_t end = computed_tokens / block_tokens();
    if (end == 0) return;
    Table& table = table_of(request, kNotHeld);
    if (end <= table.registered) return;
    if (end > table.blocks) throw BrokenInvariant("request " + request.request_id + kNotHeld);
    const std::int64_t shared_end = std::min(end, keys_.shareable_blocks(request));
    BlockKeys::Walk walk(keys_, request, table.registered);
    for (std::int64_t block = table.registered; block < shared_end; ++block) {
        table.shared.push_back(make_block(*walk.next()));
    }
    table.registered = end;
}

void PrefixCachingBlockPool::release(const Request& request) {
    const Table& table = table_of(request, " holds no block");
    blank_ += table.spanned + table.blocks - table.registered;
    const std::int64_t own_from =
        table.back.empty() ? static_cast<std::int64_t>(table.shared.size()) : table.back.back().to;
    if (own_from < table.registered) append_run(request, {own_from, table.registered, table.holding});
    for (auto run = table.back.rbegin(); run != table.back.rend(); ++run) append_run(request, *run);
    for (auto block = table.shared.rbegin(); block != table.shared.rend(); ++block) {
        if (--at(*block).holders) continue;
        link_before(kNone, *block);
        ++cached_free_;
    }
    tables_.erase(static_cast<std::uint64_t>(request.index));
}

PrefixCachingBlockPool::Table& PrefixCachingBlockPool::table_of(const Request& request, const char* broken) {
    Table* table = tables_.find(static_cast<std::uint64_t>(request.index));
    if (table == nullptr) throw BrokenInvariant("request " + request.request_id + broken);
    return *table;
}

// Takes so many from the front of the free queue; their keys, if any, are forgotten.
void PrefixCachingBlockPool::take_blocks(std::int64_t count) {
    const std::int64_t blank = std::min(count, blank_);
    blank_ -= blank;
    count -= blank;
    cached_free_ -= count;
    while (count) {
        const BlockId front = entries_[kNone].after;
        ensure(front != kNone, "no free block");
        if (at(front).key >= 0) {
            unlink(front);
            drop_block(front);
            --count;
            continue;
        }
        FreeRun& run = run_of(at(front));
        const std::int64_t taken = std::min(count, run.to - run.from);
        run.to -= taken;
        count -= taken;
        if (run.from == run.to) drop_run(front);
    }
}

// The block that was registered first for a key; none if there is none. Valid until the next call.
BlockId& PrefixCachingBlockPool::first_copy(std::int64_t key) {
    const auto place = static_cast<std::size_t>(key);
    if (place >= first_copies_.size()) first_copies_.resize(place + place / 2 + 1, kNone);
    return first_copies_[place];
}

// A block with one holder, the last copy of its content.
BlockId PrefixCachingBlockPool::make_block(std::int64_t key) {
    const BlockId block = make_entry();
    at(block).key = key;
    at(block).holders = 1;
    BlockId* last = &first_copy(key);
    while (*last != kNone) last = &at(*last).next_copy;
    *last = block;
    return block;
}

void PrefixCachingBlockPool::drop_block(BlockId block) {
    const Entry& own = at(block);
    BlockId* place = &first_copy(own.key);
    while (*place != block) place = &at(*place).next_copy;
    *place = own.next_copy;
    // A chunk goes with its last block: of a prefix the blocks behind go before those ahead.
    const bool is_last_copy = first_copy(own.key) == kNone;
    if (logged_chunk_tokens() && is_last_copy) note_evicted(static_cast<std::uint64_t>(own.key));
    spare_entries_.push_back(block);
}

// Puts own blocks of a request at the end of the free queue.
void PrefixCachingBlockPool::append_run(const Request& request, const Run& run) {
    link_before(kNone, make_run(request.index, run));
    cached_free_ += run.to - run.from;
}

BlockId PrefixCachingBlockPool::make_run(std::int64_t request, const Run& run) {
    const BlockId entry = make_entry();
    std::int64_t key = -1 - static_cast<std::int64_t>(runs_.size());
    if (spare_runs_.empty()) {
        runs_.emplace_back();
    } else {
        key = spare_runs_.back();
        spare_runs_.pop_back();
    }
    at(entry).key = key;
    FreeRun& made = run_of(at(entry));
    BlockId& runs = runs_of_request_[static_cast<std::uint64_t>(request)];
    made = {run, request, runs};
    runs = entry;
    return entry;
}

// Takes a run, of which nothing is left, out of the free queue.
void PrefixCachingBlockPool::drop_run(BlockId entry) {
    unlink(entry);
    const FreeRun& run = run_of(at(entry));
    const auto request = static_cast<std::uint64_t>(run.request);
    BlockId* place = runs_of_request_.find(request);
    if (*place == entry && run.of_same_request == kNone) {
        runs_of_request_.erase(request);
    } else {
        while (*place != entry) place = &run_of(at(*place)).of_same_request;
        *place = run.of_same_request;
    }
    spare_runs_.push_back(at(entry).key);
    spare_entries_.push_back(entry);
}

BlockId PrefixCachingBlockPool::make_entry() {
    if (spare_entries_.empty()) {
        entries_.emplace_back();
        return static_cast<BlockId>(entries_.size() - 1);
    }
    const BlockId entry = spare_entries_.back();
    spare_entries_.pop_back();
    at(entry) = {};
    return entry;
}

void PrefixCachingBlockPool::link_before(BlockId next, BlockId entry) {
    Entry &own = at(entry), &behind = at(next);
    own.before = behind.before;
    own.after = next;
    at(own.before).after = entry;
    behind.before = entry;
}

void PrefixCachingBlockPool::unlink(BlockId entry) {
    const Entry& own = at(entry);
    at(own.before).after = own.after;
    at(own.after).before = own.before;
}

}  // namespace serving
