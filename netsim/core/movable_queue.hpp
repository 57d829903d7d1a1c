// A priority queue whose entries can be moved and removed.
#pragma once

#include <cstdint>
#include <vector>

namespace netsim {

// Binary heap of items ordered by (value, item), with the position of every item. Items are small numbers.
class MovableQueue {
  public:
    using Item = std::uint32_t;
    using Value = std::int64_t;

    bool empty() const { return heap_.empty(); }
    Value next_value() const { return heap_.front().value; }
    Item next() const { return heap_.front().item; }

    // Inserts or moves.
    void set(Item item, Value value);
    // Does nothing where the item is absent.
    void remove(Item item);

  private:
    struct Entry {
        Value value;
        Item item;
        bool operator<(const Entry& other) const {
            return value != other.value ? value < other.value : item < other.item;
        }
    };
    static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};

    void place(std::uint32_t at, Entry entry);
    void sift(std::uint32_t at, Entry entry);

    std::vector<Entry> heap_;
    std::vector<std::uint32_t> position_;  // [items]
};

}  // namespace netsim
