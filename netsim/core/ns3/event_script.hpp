// A script of events that schedule and cancel each other, to compare event engines of ns-3.
#pragma once

#include <cstdint>
#include <vector>

#include "session.hpp"

namespace netsim {

enum class How { schedule, with_context, now, at_destroy };
enum class Act { none, cancel, remove, stop, fail };

// An event that the event before it named `parent` schedules when it runs.
struct ScriptedEvent {
    std::int64_t parent;  // -1: scheduled before the simulation starts
    How how;
    std::int64_t delay_ps;  // ignored by How::now and How::at_destroy
    Act act;                // what it does after it has scheduled its children
    std::int64_t target;    // the event it looks at, and cancels or removes
};

// What an event saw: whether its target had expired, and in what time it was due.
struct ScriptLog {
    TimePs at_ps;
    std::int64_t event;
    std::uint32_t context;
    bool has_target_expired;
    TimePs target_left_ps;
};

// Runs the script to its end and destroys the simulator; `Act::stop` calls Simulator::Stop and the run is resumed.
// Engine::stepped is advanced in steps of step_ps where that is above 0, else by Simulator::Run. Events run
// in the context of their own number where scheduled with one. Throws std::runtime_error at Act::fail.
std::vector<ScriptLog> run_script(Engine engine, const std::vector<ScriptedEvent>& events, TimePs step_ps);

}  // namespace netsim
