// Pending events of ns-3, ordered by time and then by the order of scheduling.
#pragma once

#include <ns3/event-impl.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "../types.hpp"

namespace netsim {

struct PendingEvent {
    TimePs at_ps;
    std::uint64_t serial;
    ns3::EventImpl* event;  // one reference, which goes to whoever pops it
    std::uint32_t context;

    bool is_before(const PendingEvent& other) const { return key() < other.key(); }

  private:
    __extension__ typedef unsigned __int128 Key;
    Key key() const { return Key{static_cast<std::uint64_t>(at_ps)} << 64 | serial; }  // times are never negative
};

// A heap of four children per node: half the depth of a binary one, and the children share cache lines.
class EventHeap {
  public:
    bool empty() const { return events_.empty(); }
    std::size_t size() const { return events_.size(); }
    const PendingEvent& top() const { return events_.front(); }

    void push(const PendingEvent& added) {
        events_.push_back(added);
        rise(events_.size() - 1, added);
    }

    PendingEvent pop() {
        const PendingEvent first = events_.front();
        const PendingEvent last = events_.back();
        events_.pop_back();
        if (!events_.empty()) sink(0, last);
        return first;
    }

    // Takes out all events that satisfy the condition, which may release them; the order of the rest stays.
    template <typename Condition>
    void erase_if(Condition condition) {
        std::erase_if(events_, condition);
        if (events_.size() < 2) return;
        for (std::size_t i = (events_.size() - 2) / kChildren + 1; i-- > 0;) sink(i, PendingEvent(events_[i]));
    }

  private:
    static constexpr std::size_t kChildren = 4;

    void rise(std::size_t hole, const PendingEvent& moved) {
        while (hole > 0) {
            const std::size_t parent = (hole - 1) / kChildren;
            if (!moved.is_before(events_[parent])) break;
            events_[hole] = events_[parent];
            hole = parent;
        }
        events_[hole] = moved;
    }

    void sink(std::size_t hole, const PendingEvent& moved) {
        const std::size_t size = events_.size();
        for (std::size_t first = hole * kChildren + 1; first < size; first = hole * kChildren + 1) {
            const std::size_t end = std::min(first + kChildren, size);
            std::size_t least = first;
            for (std::size_t child = first + 1; child < end; ++child) {
                if (events_[child].is_before(events_[least])) least = child;
            }
            if (!events_[least].is_before(moved)) break;
            events_[hole] = events_[least];
            hole = least;
        }
        events_[hole] = moved;
    }

    std::vector<PendingEvent> events_;
};

}  // namespace netsim
