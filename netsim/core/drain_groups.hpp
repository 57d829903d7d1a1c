// Flows that drain at the same rate, together.
#pragma once

#include <vector>

#include "movable_queue.hpp"
#include "rate_policy.hpp"

namespace netsim {

// What a flow has yet to send is kept as rate x time, exactly. The flows of a limiter form a group that shares one
// count of what each of them has sent (the virtual time of processor sharing; Parekh and Gallager, 1993): a flow is
// done when the count reaches its mark, so another rate changes one number and not one per flow, and the next to be
// done is the one with the smallest mark. Marks of a group are in a pairing heap (Fredman, Sedgewick, Sleator and
// Tarjan, 1986), threaded through the slots.
class DrainGroups {
  public:
    explicit DrainGroups(std::size_t links) : groups_(links), links_(links) {}

    // A flow that waits for a limiter, with what it has to send.
    void insert(Slot slot, Work amount);
    // Gives the flow a limiter, or another.
    void assign(Slot slot, Limiter limiter, TimePs now_ps);
    void set_rate(Limiter limiter, Rate rate, TimePs now_ps);
    void remove(Slot slot, TimePs now_ps);
    // Ends a series of changes at an instant. What would end after `last_ps` never does.
    void settle(TimePs now_ps, TimePs last_ps);

    Work left(Slot slot, TimePs now_ps) const;
    // 0 while the flow waits for a limiter.
    Rate rate(Slot slot) const;

    // First whole picosecond by which some flow is done; kNever where none will be. Valid after `settle`.
    TimePs next_ps() const { return queue_.empty() ? kNever : queue_.next_value(); }
    // Removes the flows that are done by now and appends them, in the order of slots.
    void pop(TimePs now_ps, std::vector<Slot>& done);

  private:
    static constexpr Slot kNone = ~Slot{0};
    struct Group {
        Work count = 0;  // sent by each flow that was always in the group, up to settled_at_ps
        TimePs settled_at_ps = 0;
        Rate rate = 0;
        Slot first = kNone;  // root of the heap
        bool is_dirty = false;
    };
    struct Member {
        Work mark;  // count at which the flow is done; what is left while there is no limiter
        Limiter limiter = kNoLimiter;
        Slot child = kNone, next = kNone;
        Slot before = kNone;  // previous sibling, or parent of the first child
    };

    Work count(const Group& group, TimePs now_ps) const {
        return group.count + Work{group.rate} * (now_ps - group.settled_at_ps);
    }
    Group& dirty_group(Limiter limiter, TimePs now_ps);
    Slot merged(Slot a, Slot b);
    Slot merged_siblings(Slot first);
    void link(Group& group, Slot slot);
    void unlink(Group& group, Slot slot);

    std::vector<Group> groups_;  // [limiters]
    std::size_t links_;
    std::vector<Member> members_;  // [slots]
    std::vector<Limiter> dirty_;   // groups whose next end may have changed
    std::vector<Slot> siblings_;   // being merged
    MovableQueue queue_;           // of limiters, by the next end in their groups
};

}  // namespace netsim
