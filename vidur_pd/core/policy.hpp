// What decides which requests of a rank compute how many tokens in its next iteration, and which lose their KV.
#pragma once

#include "rank_state.hpp"

namespace serving {

// A policy of the core. Policies in Python are asked by the loop's notice `kSchedule` instead: C++ does not call
// Python.
class Policy {
  public:
    virtual ~Policy() = default;
    // Decides one iteration by `RankState::run`, `admit` and `preempt`. Where it only preempts, it is asked once more.
    virtual void decide(RankState& rank) = 0;
    // Every decision would be to decode all running requests, until one of them ends or lacks a KV block, or something
    // is added to the rank. Asked only where the next one can be such a decision (`RankState::plain_decode_steps`).
    virtual bool is_steady(RankState& rank) = 0;
};

}  // namespace serving
