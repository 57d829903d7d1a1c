// Keys that a query sees where it does not see all past ones (aicb/model/key_span.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aicb {

// Requests of one kernel over prompts.
struct PromptRequests {
    std::vector<std::int64_t> new_tokens, kv_tokens;

    void add(std::int64_t new_count, std::int64_t kv_count) {
        new_tokens.push_back(new_count);
        kv_tokens.push_back(kv_count);
    }
    void clear() {
        new_tokens.clear();
        kv_tokens.clear();
    }
};

struct KeySpan {
    std::int64_t tokens;
    bool is_chunked;

    // Keys that the last of so many tokens sees.
    std::int64_t seen(std::int64_t kv_tokens) const {
        return is_chunked ? (kv_tokens - 1) % tokens + 1 : std::min(kv_tokens, tokens);
    }
    // Adds the requests of their own that the chunks of one request are.
    void add_chunks(std::int64_t new_tokens, std::int64_t kv_tokens, PromptRequests& made) const;
};

}  // namespace aicb
