#include "drain_queue.hpp"

namespace netsim {

void DrainQueue::set(Slot slot, TimePs at_ps) {
    if (slot >= position_.size()) position_.resize(slot + 1, kAbsent);
    if (position_[slot] == kAbsent) {
        position_[slot] = static_cast<std::uint32_t>(heap_.size());
        heap_.push_back({at_ps, slot});
    }
    sift(position_[slot], {at_ps, slot});
}

void DrainQueue::remove(Slot slot) {
    if (slot >= position_.size() || position_[slot] == kAbsent) return;
    const std::uint32_t hole = position_[slot];
    position_[slot] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.slot != slot) sift(hole, last);
}

void DrainQueue::place(std::uint32_t at, Entry entry) {
    heap_[at] = entry;
    position_[entry.slot] = at;
}

// Puts the entry where it belongs, starting from the free place `at`.
void DrainQueue::sift(std::uint32_t at, Entry entry) {
    for (; at > 0 && entry < heap_[(at - 1) / 2]; at = (at - 1) / 2) place(at, heap_[(at - 1) / 2]);
    while (true) {
        std::uint32_t child = 2 * at + 1;
        if (child >= heap_.size()) break;
        if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
        if (!(heap_[child] < entry)) break;
        place(at, heap_[child]);
        at = child;
    }
    place(at, entry);
}

}  // namespace netsim
