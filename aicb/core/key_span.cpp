#include "key_span.hpp"

namespace aicb {

void KeySpan::add_causal(std::int64_t new_tokens, std::int64_t kv_tokens, PromptRequests& made) const {
    if (is_chunked) {
        add_chunks(new_tokens, kv_tokens, made);
    } else {
        add_window(new_tokens, kv_tokens, made);
    }
}

void KeySpan::add_chunks(std::int64_t new_tokens, std::int64_t kv_tokens, PromptRequests& made) const {
    for (std::int64_t begin = kv_tokens - new_tokens; begin < kv_tokens;) {
        const std::int64_t end = std::min((begin / tokens + 1) * tokens, kv_tokens);
        made.add(end - begin, end - begin / tokens * tokens);
        begin = end;
    }
}

// Queries that do not see a full window yet, then pieces whose causal pairs are those of as many full windows: q
// queries over W + (q − 1) / 2 keys make q·W pairs, for odd q up to 2·W − 1, where all keys are new.
void KeySpan::add_window(std::int64_t new_tokens, std::int64_t kv_tokens, PromptRequests& made) const {
    const std::int64_t past = kv_tokens - new_tokens;
    const std::int64_t growing = std::clamp(tokens - past, std::int64_t{0}, new_tokens);
    if (growing > 0) made.add(growing, past + growing);
    for (std::int64_t left = new_tokens - growing; left > 0;) {
        const std::int64_t piece = std::min(left - (left + 1) % 2, 2 * tokens - 1);
        made.add(piece, tokens + (piece - 1) / 2);
        left -= piece;
    }
}

}  // namespace aicb
