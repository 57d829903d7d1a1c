// A request on its way through the cluster: what was asked, how far it is, when each stage happened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace serving {

using Tokens = std::int64_t;
using TimePs = std::int64_t;

enum class Status : std::uint8_t { kWaiting, kRunning, kPrefilled, kTransferring, kCompleted, kRejected, kFailed };

// Part of a request's life that a rank serves: all of it, up to the first token, or after a KV transfer.
enum class Role : std::uint8_t { kMixed, kPrefill, kDecode };

// Time of an instance's iterations, or of those that a request was in.
struct InstanceTime {
    TimePs compute_ps = 0;
    TimePs communication_ps = 0;  // not hidden by compute
    TimePs contention_ps = 0;     // part of it beyond that on an idle fabric; negative where that was priced too long
};

// Chained hash (63 bits) of a prefix and the next block: among a million prefixes, two collide in one of 20 million
// runs.
inline std::uint64_t chained(std::uint64_t content, std::uint64_t id) {
    std::uint64_t mixed = (content ^ id * 0x9E3779B97F4A7C15U) + 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9U;  // the finaliser of SplitMix64 (Steele et al., 2014)
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBU;
    return (mixed ^ mixed >> 31) >> 1;
}

// What an iteration waits for besides its own work: layers that tiers load of a request in it, one after another, or a
// copy of what was in blocks that it takes.
struct LayerArrivals {
    Tokens tokens = 0;          // that come
    std::vector<TimePs> at_ps;  // [layers], or one time for all; empty until all have come
    TimePs recomputing_ps = 0;  // of tokens that did not come: they are computed behind the others

    bool have_come() const { return !at_ps.empty(); }
};

// A request; mutable, with one owner at a time: the queue, the scheduler or the transfer that has it.
struct Request {
    Request(std::int64_t index, std::string request_id, Tokens prompt_tokens, Tokens output_tokens, TimePs arrived_ps,
            std::optional<std::vector<std::int64_t>> block_hashes)
        : index(index),
          request_id(std::move(request_id)),
          prompt_tokens(prompt_tokens),
          output_tokens(output_tokens),
          arrived_ps(arrived_ps),
          block_hashes(std::move(block_hashes)) {
        context_tokens = hashed_tokens = prompt_tokens;
        max_output_tokens = output_tokens;
        check_least("request " + this->request_id + ": prompt_tokens", prompt_tokens, 1);
        check_least("request " + this->request_id + ": output_tokens", output_tokens, 1);
        if (!this->block_hashes) return;
        std::uint64_t content = 0;
        for (const std::int64_t id : *this->block_hashes) {
            contents.push_back(content = chained(content, static_cast<std::uint64_t>(id)));
        }
    }

    // Prompt + generated tokens, those under way included: what has to be computed before the next token can be
    // sampled. Drafts under way count as if all were kept.
    Tokens sequence_tokens() const { return known_tokens() + tokens_under_way + drafts_under_way; }
    // Prompt + generated tokens.
    Tokens known_tokens() const { return prompt_tokens + generated_tokens; }

    // Sets the progress of a request that does not run: 0 computed tokens after a preemption, P after a KV transfer.
    void set_progress(Tokens computed, Tokens generated) {
        ensure(!is_running, "request " + request_id + " is running; its scheduler owns its progress");
        computed_tokens = computed;
        generated_tokens = generated;
    }

    // Begins again without KV, with the first `kept` of its generated tokens, after what ran it has failed. Stamps of
    // stages are those of the new attempt; those of tokens stay with the tokens.
    void restart(Tokens kept) {
        ensure(kept <= generated_tokens && kept < output_tokens,
               "request " + request_id + " has not got so many tokens");
        is_running = is_decided = is_loaded = skips_tiers = is_held = false;
        arrivals.reset();
        leave_iterations();
        set_progress(0, kept);
        capacity_tokens = 0;
        context_tokens = prompt_tokens + kept;
        resident_tokens = 0;
        status = Status::kWaiting;
#define REQUEST_FIGURE(type, name, is_stage) \
    if (is_stage) name = {};
#include "request_figures.inc"
        if (kept == 0) first_token_ps = last_token_ps = std::nullopt;
        prefill_compute_ps = prefill_communication_ps = decode_compute_ps = decode_communication_ps = 0;
        prefill_contention_ps = decode_contention_ps = prefill_preempted_ps = decode_preempted_ps = 0;
        is_counting = false;
        preempted_at_ps.reset();
        ++restarts;
    }

    std::int64_t index;
    std::string request_id;
    Tokens prompt_tokens;
    Tokens output_tokens;
    TimePs arrived_ps;
    std::optional<std::vector<std::int64_t>> block_hashes;
    // Leading tokens whose content the block hashes name: the prompt, or some of its answer too.
    Tokens hashed_tokens = 0;
    // [block hashes] of all content up to the end of each: the same id after another prefix is other content.
    std::vector<std::uint64_t> contents;

    // Recorded figures, as vidur_pd/metrics/request_figures.py lists them.
#define REQUEST_FIGURE(type, name, is_stage) type name{};
#include "request_figures.inc"

    std::int64_t vain_preemptions = 0;  // since its last token
    Status status = Status::kWaiting;
    std::optional<std::string> status_reason;
    Tokens computed_tokens = 0;

    // Begins to count the time of its instance; `done` is the instance's total so far.
    void begin(const InstanceTime& done) {
        counted_from = done;
        is_counting = true;
    }
    // Adds the time of its instance since the last call of `begin` or `count`.
    void count(const InstanceTime& done) {
        if (!is_counting) return;
        const bool decodes = prefill_completed_ps.has_value();
        (decodes ? decode_compute_ps : prefill_compute_ps) += done.compute_ps - counted_from.compute_ps;
        (decodes ? decode_communication_ps : prefill_communication_ps) +=
            done.communication_ps - counted_from.communication_ps;
        (decodes ? decode_contention_ps : prefill_contention_ps) += done.contention_ps - counted_from.contention_ps;
        counted_from = done;
    }
    // The first iteration that it is not in for having lost its KV blocks begins, or the first that it is in again.
    void lose_blocks(TimePs now_ps) {
        is_counting = false;
        if (!preempted_at_ps) preempted_at_ps = now_ps;
    }
    void run_again(TimePs now_ps) {
        if (!preempted_at_ps) return;
        (prefill_completed_ps ? decode_preempted_ps : prefill_preempted_ps) += now_ps - *preempted_at_ps;
        preempted_at_ps.reset();
    }

    // Loses what it was computing in iterations.
    void leave_iterations() {
        is_in_iteration = is_ending = false;
        tokens_under_way = drafts_under_way = iterations_under_way = 0;
    }

    std::int64_t server = 0;  // API server that it came through

    // State kept by the rank that runs it.
    Role role = Role::kMixed;  // what that rank serves of it
    bool is_running = false;
    const void* rank = nullptr;             // on which it runs, or ran last
    bool is_in_iteration = false;           // one is under way, without which it cannot go on
    bool is_ending = false;                 // its last token is under way, and its KV serves nothing else
    Tokens tokens_under_way = 0;            // of a rank that plans ahead: sampled by iterations that have not ended
    Tokens drafts_under_way = 0;            // that these verify
    std::int64_t iterations_under_way = 0;  // that it takes part in
    bool is_decided = false;                // takes part in the iteration that is being decided
    bool is_loaded = false;                 // the first of its tokens have come from tiers, and it does not run yet
    bool skips_tiers = false;               // a load of its has failed
    bool is_held = false;                   // it waits, and does not run: what lower tiers have of it is fetched
    Tokens prefill_end_tokens = 0;          // computed tokens up to which it prefills there
    Tokens end_tokens = 0;                  // prompt + output tokens after which it is done there
    Tokens capacity_tokens = 0;             // tokens that fit into the KV blocks held there
    Tokens reached_tokens = 0;              // known ones that its last iteration there computes, or has computed
    bool has_sampled = false;               // its last iteration there gives it a token: drafts follow it
    std::optional<Tokens> drafted_tokens;   // for its next step; nothing: as many as a step verifies
    Tokens outstanding_tokens = 0, assigned_tokens = 0;  // its parts of `TokenLoad`
    InstanceTime counted_from;                           // of its instance when it began to take part
    bool is_counting = false;
    std::optional<TimePs> preempted_at_ps;
    // Of a load that its first iteration, which has not begun, has to wait for.
    std::shared_ptr<LayerArrivals> arrivals;
};

using RequestPtr = std::shared_ptr<Request>;

// Of two requests that queue by priority the one with the smaller number goes first, then the one that came first
// (`Request.__lt__` in vllm/v1/request.py).
inline bool goes_first(const RequestPtr& a, const RequestPtr& b) {
    return std::tie(a->priority, a->arrived_ps, a->index) < std::tie(b->priority, b->arrived_ps, b->index);
}

// Puts a request to the end of a queue, or to its place in one by priority.
inline void enqueue(std::deque<RequestPtr>& queue, RequestPtr request, bool by_priority) {
    const auto place = by_priority ? std::upper_bound(queue.begin(), queue.end(), request, goes_first) : queue.end();
    queue.insert(place, std::move(request));
}

}  // namespace serving
