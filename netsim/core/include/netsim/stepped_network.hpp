// A network on a clock of its own, which a simulation advances step by step.
#pragma once

#include <netsim/types.hpp>
#include <vector>

namespace netsim {

using Handle = std::int64_t;

struct Completion {
    Handle graph;
    std::int64_t flow;  // kWholeGraph for the graph itself
    TimePs at_ps;
    bool is_failed;  // a whole graph of which a flow was given up
};
inline constexpr std::int64_t kWholeGraph = -1;

// The part of netsim.backends.contract.NetworkBackend that runs the clock; flow graphs are submitted elsewhere.
class SteppedNetwork {
  public:
    virtual ~SteppedNetwork() = default;

    virtual TimePs now_ps() = 0;
    // A lower bound of the next completion that is never before now; kNever where nothing will happen by itself.
    virtual TimePs next_event_ps() = 0;
    // Runs up to an instant, or to the first one with completions, which are returned.
    virtual std::vector<Completion> advance(TimePs until_ps) = 0;
};

}  // namespace netsim
