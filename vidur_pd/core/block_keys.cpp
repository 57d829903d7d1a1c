#include "block_keys.hpp"

#include <algorithm>
#include <numeric>

namespace serving {

BlockKeys::BlockKeys(Tokens block_tokens, Tokens hash_block_tokens)
    : block_tokens_(block_tokens), hash_block_tokens_(hash_block_tokens) {
    check_least("hash_block_tokens", hash_block_tokens, 1);
    const Tokens end_step = std::gcd(block_tokens, hash_block_tokens);  // KV blocks end at multiples of this
    block_ends_ = block_tokens / end_step;
    hash_block_ends_ = hash_block_tokens / end_step;
}

std::int64_t BlockKeys::shareable_blocks(const Request& request) const {
    const Tokens identified = static_cast<Tokens>(request.contents.size()) * hash_block_tokens_;
    return std::min(request.hashed_tokens, identified) / block_tokens_;
}

BlockKeys::Walk::Walk(BlockKeys& keys, const Request& request, std::int64_t first_block)
    : keys_(keys), request_(request), block_(first_block), shareable_(keys.shareable_blocks(request)) {}

std::optional<std::int64_t> BlockKeys::Walk::next() {
    if (is_at_end()) return std::nullopt;
    if (!is_inside()) {
        const std::uint64_t content = enter();
        const std::int32_t* known = keys_.numbers_.find(content);
        if (known == nullptr) keys_.numbers_.insert(content, keys_.contents_);
        number(known != nullptr ? *known : keys_.contents_++);
    }
    return shared();
}

std::optional<std::int64_t> BlockKeys::Walk::next_known() {
    if (is_at_end()) return std::nullopt;
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

}  // namespace serving
