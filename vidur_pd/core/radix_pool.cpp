#include "radix_pool.hpp"

namespace serving {

RadixBlockPool::RadixBlockPool(std::int64_t num_blocks, Tokens block_tokens, Tokens hash_block_tokens,
                               Eviction eviction, const KvGroups& groups)
    : BlockPool(num_blocks, block_tokens, groups),
      hash_block_tokens_(hash_block_tokens),
      tree_(block_tokens, eviction),
      blank_(usable_blocks()) {
    check_least("hash_block_tokens", hash_block_tokens, 1);
}

CachedPrefix RadixBlockPool::cached_prefix(const Request& request, Tokens tokens) {
    const RadixTree::Peeked found = tree_.peek(TokenLabel(request, hash_block_tokens_), tokens - 1);
    CachedPrefix prefix;
    prefix.tokens = found.tokens;
    prefix.shared_blocks = found.locked / block_tokens();
    return prefix;
}

void RadixBlockPool::allocate(const Request& request, Tokens tokens, const CachedPrefix& prefix) {
    Held& held = held_[request.index];
    if (!held.kept) held.kept = std::make_shared<const KeptLabel>(request, hash_block_tokens_);
    if (prefix.tokens > 0) {
        ensure(held.in_tree == 0 && held.own_blocks == 0,
               "request " + request.request_id + " reuses a prefix but holds blocks already");
        const RadixTree::Found found = tree_.match(held.kept->label, prefix.tokens);
        ensure(found.tokens == prefix.tokens,
               "the prefix of request " + request.request_id + " is not cached any more");
        held.node = found.node;
        held.in_tree = found.tokens;
        tree_.lock(held.node);
    }
    const std::int64_t needed = blocks(tokens) - held.in_tree / block_tokens() - held.own_blocks;
    if (needed <= 0) return;
    held.own_blocks += needed;
    blank_ -= needed;
    ensure(free_blocks() >= 0, "request " + request.request_id + " takes more blocks than are free");
}

void RadixBlockPool::register_blocks(const Request& request, Tokens computed_tokens) {
    Held& held = held_.at(request.index);
    const Tokens end = computed_tokens / block_tokens() * block_tokens();
    if (end == 0) return;
    const RadixTree::Found found = tree_.insert(held.kept, end, held.counted);
    held.counted = std::max(held.counted, end);
    const Tokens prompt_end = request.prompt_tokens / block_tokens() * block_tokens();
    if (0 < prompt_end && prompt_end < end) tree_.insert(held.kept, prompt_end, prompt_end);
    held.own_blocks -= (end - held.in_tree) / block_tokens();
    blank_ += (found.tokens - held.in_tree) / block_tokens();
    const RadixTree::Node node = tree_.match(held.kept->label, end).node;
    tree_.lock(node);
    tree_.unlock(held.node);
    held.node = node;
    held.in_tree = end;
}

void RadixBlockPool::release(const Request& request) {
    const auto held = held_.find(request.index);
    ensure(held != held_.end(), "request " + request.request_id + " holds no block");
    blank_ += held->second.own_blocks;
    tree_.unlock(held->second.node);
    held_.erase(held);
}

void RadixBlockPool::clear() {
    held_.clear();
    tree_.clear();
    blank_ = usable_blocks();
}

void RadixBlockPool::evict(std::int64_t blank_blocks) {
    while (blank_ < blank_blocks) {
        const RadixTree::Evicted evicted = tree_.evict_leaf();
        if (evicted.tokens() == 0) return;
        blank_ += evicted.tokens() / block_tokens();
        if (logged_chunk_tokens()) note_chunks_of(evicted);
    }
}

// The chunks that end in a leaf, the last first; contents are those of a hash block, which has several.
void RadixBlockPool::note_chunks_of(const RadixTree::Evicted& evicted) {
    const Tokens chunk = logged_chunk_tokens();
    for (Tokens end = evicted.end / chunk * chunk; end > evicted.start; end -= chunk) {
        const TokenLabel& label = evicted.kept->label;
        if (label.is_identified(end - 1)) note_evicted(chained(label.at(end - 1), static_cast<std::uint64_t>(end)));
    }
}

std::optional<std::uint64_t> RadixBlockPool::chunk_content(const Request& request, Tokens tokens) {
    const auto found = content(request, tokens);
    return found ? std::optional(chained(*found, static_cast<std::uint64_t>(tokens))) : std::nullopt;
}

Tokens RadixBlockPool::touch(const Request& request, Tokens tokens) {
    return tree_.match(TokenLabel(request, hash_block_tokens_), tokens).tokens;
}

std::optional<std::uint64_t> RadixBlockPool::content(const Request& request, Tokens tokens) {
    const TokenLabel label(request, hash_block_tokens_);
    if (tokens < 1 || !label.is_identified(tokens - 1)) return std::nullopt;
    return label.at(tokens - 1);
}

std::vector<std::size_t> RadixBlockPool::depth_first(const std::vector<RequestPtr>& requests) {
    std::vector<RadixTree::Node> ends;
    for (const RequestPtr& request : requests) {
        ends.push_back(tree_.match(TokenLabel(*request, hash_block_tokens_), request->sequence_tokens()).node);
    }
    return tree_.depth_first(ends);
}

}  // namespace serving
