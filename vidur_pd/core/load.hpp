// How much ranks and instances have to do, as routing compares them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "request.hpp"

namespace serving {

// Of a rank, or of all ranks of an instance. Requests count from when they are assigned, those in transfer included.
struct Load {
    std::int64_t requests = 0;  // 4 · waiting + running: vLLM 0.24.0's data-parallel front end
    // Prompt tokens that no ended iteration has computed; where decodes run, also the context of every request as it
    // was assigned. So counts Dynamo 1.6.1's router: prefill tokens until the first token, and active blocks of
    // prompts.
    Tokens tokens = 0;
};

enum class Measure : std::uint8_t { kRequests, kTokens };

// Of some loads the one with the least to do (of equal tokens, the fewest requests); of equal ones the next after place
// `after`, in turns. `load_at` is asked for places from 0 to `count`.
template <typename LoadAt>
std::size_t least_loaded(std::size_t count, Measure measure, std::size_t after, const LoadAt& load_at) {
    std::size_t best = (after + 1) % count;
    for (std::size_t step = 2; step <= count; ++step) {
        const std::size_t place = (after + step) % count;
        const Load &one = load_at(place), &other = load_at(best);
        const bool decides = measure == Measure::kTokens && one.tokens != other.tokens;
        if (decides ? one.tokens < other.tokens : one.requests < other.requests) best = place;
    }
    return best;
}

// Loads of the instances [instances], kept up to date by their ranks.
using Loads = std::shared_ptr<std::vector<Load>>;

// What the requests of one rank add up to. Each change is told by a call; `publish` makes the sum known.
class RankLoad {
  public:
    explicit RankLoad(bool counts_context) : counts_context_(counts_context) {}

    Tokens outstanding_tokens() const { return outstanding_tokens_; }
    const Load& load() const { return load_; }
    // From now on the load is part of that of an instance, at this place of `loads`.
    void count_in(Loads loads, std::size_t instance);
    // A request comes, with so many tokens to compute and of context.
    void enter(Request& request, Tokens outstanding, Tokens context);
    void leave(Request& request);
    // All requests are gone.
    void clear() { outstanding_tokens_ = context_tokens_ = 0; }
    void set_outstanding(Request& request, Tokens outstanding);
    // An iteration has computed tokens of the request.
    void compute(Request& request, Tokens tokens);
    void publish(std::int64_t waiting, std::int64_t running);

  private:
    bool counts_context_;
    Tokens outstanding_tokens_ = 0, context_tokens_ = 0;
    Load load_;
    Loads loads_;
    std::size_t instance_ = 0;
};

}  // namespace serving
