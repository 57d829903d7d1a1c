#include "movable_queue.hpp"

namespace netsim {

void MovableQueue::set(Item item, Value value) {
    if (item >= position_.size()) position_.resize(item + 1, kAbsent);
    if (position_[item] == kAbsent) {
        position_[item] = static_cast<std::uint32_t>(heap_.size());
        heap_.push_back({value, item});
    }
    sift(position_[item], {value, item});
}

void MovableQueue::remove(Item item) {
    if (item >= position_.size() || position_[item] == kAbsent) return;
    const std::uint32_t hole = position_[item];
    position_[item] = kAbsent;
    const Entry last = heap_.back();
    heap_.pop_back();
    if (last.item != item) sift(hole, last);
}

void MovableQueue::place(std::uint32_t at, Entry entry) {
    heap_[at] = entry;
    position_[entry.item] = at;
}

// Puts the entry where it belongs, starting from the free place `at`.
void MovableQueue::sift(std::uint32_t at, Entry entry) {
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
