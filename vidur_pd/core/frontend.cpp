#include "frontend.hpp"

#include <algorithm>

#include "rank_group.hpp"

namespace serving {

TimePs Frontend::begin(std::int64_t server, TimePs at_ps, TimePs work_ps) {
    TimePs& free_ps = free_ps_.at(static_cast<std::size_t>(server));
    const TimePs begin_ps = std::max(free_ps, at_ps);
    free_ps = begin_ps + work_ps;
    return begin_ps;
}

std::vector<std::int64_t> Frontend::shares(const std::vector<RequestPtr>& requests) const {
    std::vector<std::int64_t> found(free_ps_.size(), 0);
    for (const RequestPtr& request : requests) ++found.at(static_cast<std::size_t>(request->server));
    return found;
}

void Frontend::pass(PassedSteps& run, TimePs at_ps, GapCounts& gaps) {
    run.first_ps.resize(free_ps_.size());
    run.last_ps.resize(free_ps_.size());
    for (std::size_t server = 0; server < free_ps_.size(); ++server) {
        const std::int64_t tokens = run.tokens[server];
        if (!tokens) continue;
        const TimePs work_ps = work_.message_ps + tokens * (work_.process_ps + work_.send_ps);
        const TimePs begin_ps = begin(static_cast<std::int64_t>(server), at_ps, work_ps);
        if (run.steps) {
            gaps.add(begin_ps - run.last_ps[server], tokens);
        } else {
            run.first_ps[server] = begin_ps;
        }
        run.last_ps[server] = begin_ps;
    }
    ++run.steps;
}

void Frontend::stamp(const std::vector<RequestPtr>& requests, const PassedSteps& run, GapCounts& gaps) const {
    std::vector<std::int64_t> sent(free_ps_.size(), 0);
    for (const RequestPtr& request : requests) {
        const auto server = static_cast<std::size_t>(request->server);
        const TimePs after_ps =
            work_.message_ps + run.tokens[server] * work_.process_ps + ++sent[server] * work_.send_ps;
        get_tokens(*request, run.first_ps[server] + after_ps, run.last_ps[server] + after_ps, gaps);
    }
}

void Frontend::deliver(const std::vector<RequestPtr>& requests, TimePs at_ps, GapCounts& gaps) {
    PassedSteps step;
    step.tokens = shares(requests);
    pass(step, at_ps, gaps);
    stamp(requests, step, gaps);
}

}  // namespace serving
