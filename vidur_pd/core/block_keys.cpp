#include "block_keys.hpp"

#include <algorithm>
#include <numeric>

namespace serving {

namespace {

constexpr int kBlocksPerRequestBits = 32;

}  // namespace

BlockKeys::BlockKeys(Tokens block_tokens, Tokens hash_block_tokens)
    : block_tokens_(block_tokens), hash_block_tokens_(hash_block_tokens) {
    check_least("hash_block_tokens", hash_block_tokens, 1);
    end_step_ = std::gcd(block_tokens, hash_block_tokens);
}

std::int64_t BlockKeys::extend(std::int64_t chain, std::int64_t id) {
    return chains_.try_emplace({chain, id}, static_cast<std::int64_t>(chains_.size()) + 1).first->second;
}

BlockKeys::Walk::Walk(BlockKeys& keys, const Request& request, std::int64_t first_block)
    : keys_(keys), request_(request), block_(first_block) {
    const Tokens hashed =
        request.block_hashes ? static_cast<Tokens>(request.block_hashes->size()) * keys.hash_block_tokens_ : 0;
    shareable_ = std::min(request.prompt_tokens, hashed) / keys.block_tokens_;
}

std::int64_t BlockKeys::Walk::next() {
    const std::int64_t block = block_++;
    if (block >= shareable_) return -(((request_.index + 1) << kBlocksPerRequestBits) + block);
    const Tokens block_end = (block + 1) * keys_.block_tokens_;
    const std::int64_t needed = (block_end + keys_.hash_block_tokens_ - 1) / keys_.hash_block_tokens_;
    while (chained_ < needed) {
        chain_ = keys_.extend(chain_, (*request_.block_hashes)[static_cast<std::size_t>(chained_)]);
        ++chained_;
    }
    const Tokens offset = block_end - (needed - 1) * keys_.hash_block_tokens_;
    return (chain_ * keys_.hash_block_tokens_ + offset) / keys_.end_step_ - 1;
}

}  // namespace serving
