#include "key_span.hpp"

namespace aicb {

void KeySpan::add_chunks(std::int64_t new_tokens, std::int64_t kv_tokens, PromptRequests& made) const {
    for (std::int64_t begin = kv_tokens - new_tokens; begin < kv_tokens;) {
        const std::int64_t end = std::min((begin / tokens + 1) * tokens, kv_tokens);
        made.add(end - begin, end - begin / tokens * tokens);
        begin = end;
    }
}

}  // namespace aicb
