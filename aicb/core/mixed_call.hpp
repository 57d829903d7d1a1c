// Prompts and decodes in one call of FA3, as aicb/kernels/mixed_attention.py describes it.
#pragma once

#include <cstdint>

namespace aicb {

// Prompts of one kernel: their time alone, and what they make of tiles.
struct PromptPart {
    double time_us = 0.0;
    double new_tokens = 0.0;  // of all requests
    double most_new = 0.0, most_kv = 0.0;
    double tiles = 0.0;  // of all KV heads
};

// Decodes of one kernel: their time alone, and the keys that they see.
struct DecodePart {
    double time_us = 0.0;
    double requests = 0.0, queries = 1.0;  // queries of each
    double kv_tokens = 0.0, most_kv = 0.0;
};

class MixedCall {
  public:
    double floor_us, decode_floor_us;  // parts of the times alone that one call has once
    double split_us;                   // of a mixed batch that may be split
    double prompt_split_us;            // of prompts alone that may be, per token
    double start_us, key_us;           // an SM's time for a KV head of a decode, and per key of it
    double rows, block_tokens;         // of a tile
    double sharing, kv_heads, sms;
    double split_tokens;  // up to so many of a batch any request may be split
    bool is_estimate;     // such heads were not measured

    double tiles_of(double new_tokens) const;
    // Adds a prompt, of which so many keys are seen.
    void add(PromptPart& prompts, std::int64_t new_tokens, std::int64_t kv_tokens) const;
    // Of prompts without decodes.
    double prompts_us(const PromptPart& prompts) const;
    // Of both, not less than of the prompts.
    double time_us(const PromptPart& prompts, const DecodePart& decodes) const;

  private:
    double splits(const PromptPart& prompts, const DecodePart& decodes) const;
};

}  // namespace aicb
