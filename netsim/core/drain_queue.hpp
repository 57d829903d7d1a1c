// A priority queue of drain times whose entries can be moved and removed.
#pragma once

#include <vector>

#include "active_flows.hpp"

namespace netsim {

// Binary heap ordered by (time, slot), with the position of every slot.
class DrainQueue {
  public:
    bool empty() const { return heap_.empty(); }
    TimePs next_ps() const { return heap_.front().at_ps; }
    Slot next() const { return heap_.front().slot; }

    // Inserts or moves.
    void set(Slot slot, TimePs at_ps);
    // Does nothing where the slot is absent.
    void remove(Slot slot);

  private:
    struct Entry {
        TimePs at_ps;
        Slot slot;
        bool operator<(const Entry& other) const {
            return at_ps != other.at_ps ? at_ps < other.at_ps : slot < other.slot;
        }
    };
    static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

    void place(std::uint32_t at, Entry entry);
    void sift(std::uint32_t at, Entry entry);

    std::vector<Entry> heap_;
    std::vector<std::uint32_t> position_;  // [slot]
};

}  // namespace netsim
