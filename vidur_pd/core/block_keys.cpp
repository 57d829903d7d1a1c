#include "block_keys.hpp"

#include <algorithm>
#include <numeric>

namespace serving {

namespace {

constexpr int kBlocksPerRequestBits = 32;

}  // namespace

BlockKeys::BlockKeys(Tokens block_tokens, Tokens hash_block_tokens)
    : block_tokens_(block_tokens),
      hash_block_tokens_(hash_block_tokens),
      end_step_(std::gcd(block_tokens, hash_block_tokens)) {
    check_least("hash_block_tokens", hash_block_tokens, 1);
}

BlockKeys::Walk::Walk(BlockKeys& keys, const Request& request, std::int64_t first_block)
    : keys_(keys), request_(request), block_(first_block) {
    const Tokens hashed = static_cast<Tokens>(request.contents.size()) * keys.hash_block_tokens_;
    shareable_ = std::min(request.hashed_tokens, hashed) / keys.block_tokens_;
}

std::int64_t BlockKeys::Walk::next() {
    if (is_unique()) return unique();
    if (!enter()) {
        number_ = keys_.contents_++;
        keys_.numbers_.insert(request_.contents[static_cast<std::size_t>(trace_block_)], number_);
    }
    return shared();
}

std::optional<std::int64_t> BlockKeys::Walk::next_known() {
    if (is_unique()) return unique();
    if (!enter()) return std::nullopt;
    return shared();
}

// Goes to the trace block in which the next block ends; whether its content has a number.
bool BlockKeys::Walk::enter() {
    const std::int64_t trace_block = ((block_ + 1) * keys_.block_tokens_ - 1) / keys_.hash_block_tokens_;
    if (trace_block == trace_block_) return true;
    trace_block_ = trace_block;
    const std::int32_t* known = keys_.numbers_.find(request_.contents[static_cast<std::size_t>(trace_block)]);
    if (known != nullptr) number_ = *known;
    return known != nullptr;
}

std::int64_t BlockKeys::Walk::unique() { return -(((request_.index + 1) << kBlocksPerRequestBits) + block_++); }

std::int64_t BlockKeys::Walk::shared() {
    const Tokens offset = ++block_ * keys_.block_tokens_ - trace_block_ * keys_.hash_block_tokens_;
    return (number_ * keys_.hash_block_tokens_ + offset) / keys_.end_step_ - 1;
}

}  // namespace serving
