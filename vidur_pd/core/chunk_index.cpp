#include "chunk_index.hpp"

#include <algorithm>

namespace serving {

ChunkKeys::ChunkKeys(Tokens chunk_tokens, Tokens hash_block_tokens)
    : chunk_tokens_(chunk_tokens),
      keys_((check_least("chunk_tokens", chunk_tokens, 1), chunk_tokens), hash_block_tokens) {}

std::vector<std::int64_t> ChunkKeys::of(const Request& request, Tokens tokens) {
    std::vector<std::int64_t> found;
    BlockKeys::Walk walk(keys_, request, 0);
    for (Tokens end = chunk_tokens_; end <= tokens; end += chunk_tokens_) {
        const auto key = walk.next();
        if (!key) break;
        found.push_back(*key);
    }
    return found;
}

void ChunkIndex::add(const std::vector<std::int64_t>& keys) {
    for (const std::int64_t key : keys) {
        ensure(key >= 0, "chunks of a tier are such as others can have");
        const auto place = static_cast<std::size_t>(key);
        if (place >= is_there_.size()) is_there_.resize(place + place / 2 + 1, false);
        ensure(!is_there_[place], "a chunk is in a tier once");
        is_there_[place] = true;
        ++chunks_;
    }
}

void ChunkIndex::remove(const std::vector<std::int64_t>& keys) {
    for (const std::int64_t key : keys) {
        ensure(has(key), "a chunk that leaves a tier is there");
        is_there_[static_cast<std::size_t>(key)] = false;
        --chunks_;
    }
}

Tokens ChunkIndex::reach(const Request& request, Tokens from, Tokens tokens) const {
    const Tokens width = keys_->chunk_tokens_;
    Tokens reached = from;
    BlockKeys::Walk walk(keys_->keys_, request, from / width);
    for (Tokens end = (from / width + 1) * width; end <= tokens; end += width) {
        const auto key = walk.next_known();
        if (!key || !has(*key)) break;
        reached = end;
    }
    return reached;
}

}  // namespace serving
