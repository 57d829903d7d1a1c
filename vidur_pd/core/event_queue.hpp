// The events of a simulation in the order (time, priority, serial).
#pragma once

#include <cstdint>
#include <queue>
#include <string>
#include <vector>

#include "errors.hpp"
#include "request.hpp"

namespace serving {

// What happens first at one instant.
enum class Priority : std::uint8_t { kDecision, kCompletion, kArrival, kDispatch };

// What an event is about. `number` tells apart events of one target: one that no longer counts is skipped.
struct Event {
    enum class Kind : std::uint8_t { kCall, kEnd, kDispatch, kDecision, kTraffic };

    TimePs at_ps;
    Priority priority;
    Kind kind;
    std::int32_t instance;  // of the end of an iteration, of a dispatch, or of a decision ahead
    std::int64_t serial;
    std::int64_t number;  // of the call, or of the end
};

// A zero delay is queued; the past is refused. The owner decides which events still count.
class EventQueue {
  public:
    TimePs now_ps() const { return now_ps_; }
    bool is_empty() const { return heap_.empty(); }
    const Event& top() const { return heap_.top(); }
    void pop() { heap_.pop(); }

    void schedule(TimePs at_ps, Priority priority, Event::Kind kind, std::int32_t instance, std::int64_t number) {
        if (at_ps < now_ps_) {
            throw BrokenInvariant("event at " + std::to_string(at_ps) + " ps scheduled in the past of " +
                                  std::to_string(now_ps_) + " ps");
        }
        heap_.push({at_ps, priority, kind, instance, ++serial_, number});
    }

    void move_to(TimePs at_ps) {
        if (at_ps < now_ps_) {
            throw BrokenInvariant("clock would go back from " + std::to_string(now_ps_) + " to " +
                                  std::to_string(at_ps) + " ps");
        }
        now_ps_ = at_ps;
    }

  private:
    struct Later {
        bool operator()(const Event& a, const Event& b) const {
            if (a.at_ps != b.at_ps) return a.at_ps > b.at_ps;
            if (a.priority != b.priority) return a.priority > b.priority;
            return a.serial > b.serial;
        }
    };

    std::priority_queue<Event, std::vector<Event>, Later> heap_;
    TimePs now_ps_ = 0;
    std::int64_t serial_ = 0;
};

}  // namespace serving
