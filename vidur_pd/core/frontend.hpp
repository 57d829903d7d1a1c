// What lies between clients and engines: API servers, each a loop that takes one job after another.
//
// Requests are jobs on their way in. On their way out, the tokens that an iteration has given to the requests of a
// server are one job: a message from the engine, the tokens processed, and then each sent to its client. When a job
// ends is known as soon as it comes, so tokens need no events of their own.
#pragma once

#include <cstdint>
#include <vector>

#include "request.hpp"

namespace serving {

class GapCounts;

// Work of a server's loop on tokens.
struct TokenWork {
    TimePs message_ps;  // for each iteration that has some
    TimePs process_ps;  // for each token, before any of them is sent
    TimePs send_ps;     // for each token, one after another
};

// Steps of a run whose tokens the servers have taken.
struct PassedSteps {
    std::int64_t steps = 0;
    std::vector<std::int64_t> tokens;       // [servers] of each step
    std::vector<TimePs> first_ps, last_ps;  // [servers] begins of the jobs of the first step and of the last
};

class Frontend {
  public:
    Frontend(std::int64_t servers, TokenWork work) : free_ps_(static_cast<std::size_t>(servers), 0), work_(work) {}

    // Takes a job, which comes no earlier than those before; returns its end.
    TimePs take(std::int64_t server, TimePs at_ps, TimePs work_ps) { return begin(server, at_ps, work_ps) + work_ps; }
    // [servers] how many of the requests each has.
    std::vector<std::int64_t> shares(const std::vector<RequestPtr>& requests) const;
    // Takes the tokens of the next step of a run, which ends at `at_ps`.
    void pass(PassedSteps& run, TimePs at_ps, GapCounts& gaps);
    // Stamps the requests of a run, and counts the gaps to the tokens before it.
    void stamp(const std::vector<RequestPtr>& requests, const PassedSteps& run, GapCounts& gaps) const;
    // The same for one step, which ends at `at_ps`.
    void deliver(const std::vector<RequestPtr>& requests, TimePs at_ps, GapCounts& gaps);

  private:
    // Takes a job; returns when the server begins it.
    TimePs begin(std::int64_t server, TimePs at_ps, TimePs work_ps);

    std::vector<TimePs> free_ps_;  // [servers]
    TokenWork work_;
};

}  // namespace serving
