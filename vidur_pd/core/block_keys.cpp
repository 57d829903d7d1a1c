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
    const Tokens end_step = std::gcd(block_tokens, hash_block_tokens);  // KV blocks end at multiples of this
    block_ends_ = block_tokens / end_step;
    hash_block_ends_ = hash_block_tokens / end_step;
}

BlockKeys::Walk::Walk(BlockKeys& keys, const Request& request, std::int64_t first_block)
    : keys_(keys), request_(request), block_(first_block) {
    const Tokens hashed = static_cast<Tokens>(request.contents.size()) * keys.hash_block_tokens_;
    shareable_ = std::min(request.hashed_tokens, hashed) / keys.block_tokens_;
}

std::int64_t BlockKeys::Walk::next() {
    if (is_unique()) return unique();
    if (!is_inside()) {
        const std::uint64_t content = enter();
        const std::int32_t* known = keys_.numbers_.find(content);
        if (known == nullptr) keys_.numbers_.insert(content, keys_.contents_);
        number(known != nullptr ? *known : keys_.contents_++);
    }
    return shared();
}

std::optional<std::int64_t> BlockKeys::Walk::next_known() {
    if (is_unique()) return unique();
    if (!is_inside()) {
        const std::int32_t* known = keys_.numbers_.find(enter());
        if (known == nullptr) return std::nullopt;
        number(*known);
    }
    return shared();
}

// Goes to the trace block in which the next block ends; its content.
std::uint64_t BlockKeys::Walk::enter() {
    const std::int64_t trace_block = ((block_ + 1) * keys_.block_ends_ - 1) / keys_.hash_block_ends_;
    trace_end_ = (trace_block + 1) * keys_.hash_block_ends_;
    return request_.contents[static_cast<std::size_t>(trace_block)];
}

// The trace block's content has this number.
void BlockKeys::Walk::number(std::int32_t number) {
    first_key_ = (number + 1) * keys_.hash_block_ends_ - trace_end_ - 1;
}

std::int64_t BlockKeys::Walk::unique() { return -(((request_.index + 1) << kBlocksPerRequestBits) + block_++); }

}  // namespace serving
