// When the host of an instance is ready, and from that when the iterations of a sequence end.
//
// The host works on one iteration after another: it prepares, launches, and waits for a result before it goes on to the
// next. With iterations decided ahead that is the result of the iteration before the last, so that the device hides
// the host as long as it takes longer; without, it is that of the last. The device begins an iteration when it has
// ended the one before and the first kernel is there, and cannot end it before all of it is launched. Workers in
// processes of their own are handed the next one while they launch this one.
#pragma once

#include <aicb/iteration_pricing.hpp>
#include <algorithm>
#include <vector>

#include "request.hpp"

namespace serving {

using aicb::HostWork;

class HostClock {
  public:
    // `launches_apart`: workers in processes of their own launch, so that handing over to them can be hidden.
    explicit HostClock(bool plans_ahead, bool launches_apart = false)
        : plans_ahead_(plans_ahead), launches_apart_(launches_apart) {}

    // Steps of one instance, back to back from `start_ps` on; the first was decided at `decided_ps`. `device_ps`: what
    // each takes on the device, without `communication_ps`; becomes what it takes in all. Returns when the host has
    // launched each.
    std::vector<TimePs> expose(HostWork work, TimePs decided_ps, TimePs start_ps, TimePs communication_ps,
                               std::vector<TimePs>& device_ps) const {
        std::vector<TimePs> launched_ps;
        launched_ps.reserve(device_ps.size());
        const TimePs hand_over_ps = launches_apart_ ? work.hand_over_ps : 0;
        TimePs host_ps = std::max(std::max(decided_ps, result_ps_) + hand_over_ps, free_ps_);
        for (TimePs& step_ps : device_ps) {
            const TimePs first_kernel_ps = std::max(start_ps, host_ps + work.prepare_ps - hand_over_ps);
            launched_ps.push_back(host_ps + work.total_ps() - hand_over_ps);
            const TimePs end_ps = std::max(first_kernel_ps + step_ps + communication_ps, launched_ps.back());
            step_ps = std::max<TimePs>(end_ps - start_ps - communication_ps, 0);
            host_ps = std::max(launched_ps.back(), (plans_ahead_ ? start_ps : end_ps) + hand_over_ps);
            start_ps += step_ps + communication_ps;
        }
        return launched_ps;
    }

    // An iteration has ended whose last step began and ended so, and was launched at `launched_ps`.
    void end(TimePs launched_ps, TimePs began_ps, TimePs ended_ps) {
        free_ps_ = launched_ps;
        result_ps_ = plans_ahead_ ? began_ps : ended_ps;
    }

    // When the host turns to an iteration that was decided at `decided_ps`.
    TimePs ready(TimePs decided_ps) const { return std::max({decided_ps, free_ps_, result_ps_}); }

  private:
    bool plans_ahead_, launches_apart_;
    TimePs free_ps_ = 0;    // the last iteration has been launched
    TimePs result_ps_ = 0;  // the result is there that the host waits for before it turns to the next
};

}  // namespace serving
