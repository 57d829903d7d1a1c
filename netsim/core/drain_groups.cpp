#include "drain_groups.hpp"

#include <algorithm>

namespace netsim {

void DrainGroups::insert(Slot slot, Work amount) {
    if (slot >= members_.size()) members_.resize(slot + 1);
    if (links_ + slot >= groups_.size()) groups_.resize(links_ + slot + 1);
    members_[slot] = {.mark = amount};
}

void DrainGroups::assign(Slot slot, Limiter limiter, TimePs now_ps) {
    Member& member = members_[slot];
    if (member.limiter == limiter) return;
    const Work amount = left(slot, now_ps);
    if (member.limiter != kNoLimiter) unlink(dirty_group(member.limiter, now_ps), slot);
    Group& group = dirty_group(limiter, now_ps);
    member.limiter = limiter;
    member.mark = group.count + amount;
    link(group, slot);
}

void DrainGroups::set_rate(Limiter limiter, Rate rate, TimePs now_ps) { dirty_group(limiter, now_ps).rate = rate; }

void DrainGroups::remove(Slot slot, TimePs now_ps) {
    Member& member = members_[slot];
    if (member.limiter == kNoLimiter) return;
    unlink(dirty_group(member.limiter, now_ps), slot);
    member.limiter = kNoLimiter;
}

void DrainGroups::settle(TimePs now_ps, TimePs last_ps) {
    for (const Limiter limiter : dirty_) {
        Group& group = groups_[limiter];
        group.is_dirty = false;
        Work duration = kNever;
        if (group.first != kNone && group.rate != 0) {
            duration = (members_[group.first].mark - group.count + group.rate - 1) / group.rate;
        }
        if (duration <= last_ps - now_ps) {
            queue_.set(limiter, now_ps + static_cast<TimePs>(duration));
        } else {
            queue_.remove(limiter);
        }
    }
    dirty_.clear();
}

Work DrainGroups::left(Slot slot, TimePs now_ps) const {
    const Member& member = members_[slot];
    return member.limiter == kNoLimiter ? member.mark : member.mark - count(groups_[member.limiter], now_ps);
}

Rate DrainGroups::rate(Slot slot) const {
    const Limiter limiter = members_[slot].limiter;
    return limiter == kNoLimiter ? 0 : groups_[limiter].rate;
}

void DrainGroups::pop(TimePs now_ps, std::vector<Slot>& done) {
    const auto begin = static_cast<std::ptrdiff_t>(done.size());
    while (!queue_.empty() && queue_.next_value() <= now_ps) {
        const Limiter limiter = queue_.next();
        queue_.remove(limiter);
        Group& group = dirty_group(limiter, now_ps);
        while (group.first != kNone && members_[group.first].mark <= group.count) {
            const Slot slot = group.first;
            unlink(group, slot);
            members_[slot].limiter = kNoLimiter;
            done.push_back(slot);
        }
    }
    std::sort(done.begin() + begin, done.end());
}

// The group, with its count up to now; its next end is looked up when settling.
DrainGroups::Group& DrainGroups::dirty_group(Limiter limiter, TimePs now_ps) {
    Group& group = groups_[limiter];
    group.count = count(group, now_ps);
    group.settled_at_ps = now_ps;
    if (!group.is_dirty) {
        group.is_dirty = true;
        dirty_.push_back(limiter);
    }
    return group;
}

// Two heaps as one: the root with the smaller mark (then slot) gets the other as its first child.
Slot DrainGroups::merged(Slot a, Slot b) {
    if (a == kNone || b == kNone) return a == kNone ? b : a;
    if (members_[b].mark < members_[a].mark || (members_[b].mark == members_[a].mark && b < a)) std::swap(a, b);
    members_[b].next = members_[a].child;
    members_[b].before = a;
    if (members_[a].child != kNone) members_[members_[a].child].before = b;
    members_[a].child = b;
    return a;
}

// Of the children of a removed root: in pairs from the left, then all from the right.
Slot DrainGroups::merged_siblings(Slot first) {
    siblings_.clear();
    while (first != kNone) {
        const Slot a = first, b = members_[a].next;
        first = b == kNone ? kNone : members_[b].next;
        for (const Slot slot : {a, b}) {
            if (slot != kNone) members_[slot].next = members_[slot].before = kNone;
        }
        siblings_.push_back(merged(a, b));
    }
    Slot root = kNone;
    for (; !siblings_.empty(); siblings_.pop_back()) root = merged(siblings_.back(), root);
    return root;
}

void DrainGroups::link(Group& group, Slot slot) { group.first = merged(group.first, slot); }

void DrainGroups::unlink(Group& group, Slot slot) {
    Member& member = members_[slot];
    const Slot below = merged_siblings(member.child);
    if (group.first == slot) {
        group.first = below;
    } else {
        if (members_[member.before].child == slot) {
            members_[member.before].child = member.next;
        } else {
            members_[member.before].next = member.next;
        }
        if (member.next != kNone) members_[member.next].before = member.before;
        group.first = merged(group.first, below);
    }
    member.child = member.next = member.before = kNone;
}

}  // namespace netsim
