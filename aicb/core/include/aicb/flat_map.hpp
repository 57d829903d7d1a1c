// A hash map from integers to values by open addressing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace aicb {

template <typename Value>
class FlatMap {
  public:
    FlatMap() : keys_(kLeastSlots, kEmpty), values_(kLeastSlots) {}

    // The value of `key`, nullptr if there is none; valid until the next change.
    const Value* find(std::uint64_t key) const {
        for (std::size_t slot = first_slot(key);; slot = (slot + 1) & (keys_.size() - 1)) {
            if (keys_[slot] == key) return &values_[slot];
            if (keys_[slot] == kEmpty) return nullptr;
        }
    }

    Value* find(std::uint64_t key) { return const_cast<Value*>(std::as_const(*this).find(key)); }

    // The value of `key`, which is not the largest integer; made if there is none.
    Value& operator[](std::uint64_t key) {
        if (2 * (size_ + 1) > keys_.size()) grow();
        std::size_t slot = first_slot(key);
        while (keys_[slot] != kEmpty && keys_[slot] != key) slot = (slot + 1) & (keys_.size() - 1);
        if (keys_[slot] == kEmpty) {
            ++size_;
            keys_[slot] = key;
            values_[slot] = Value{};
        }
        return values_[slot];
    }

    void insert(std::uint64_t key, Value value) { (*this)[key] = std::move(value); }

    std::size_t size() const { return size_; }

    // Calls `use` with every key and its value, in no order.
    template <typename Use>
    void for_each(Use use) const {
        for (std::size_t slot = 0; slot < keys_.size(); ++slot) {
            if (keys_[slot] != kEmpty) use(keys_[slot], values_[slot]);
        }
    }

    // Removes a key that is there, and closes the gap: what stands behind it moves up as far as its first slot.
    void erase(std::uint64_t key) {
        const std::size_t mask = keys_.size() - 1;
        std::size_t gap = first_slot(key);
        while (keys_[gap] != key) gap = (gap + 1) & mask;
        for (std::size_t slot = (gap + 1) & mask; keys_[slot] != kEmpty; slot = (slot + 1) & mask) {
            if (((slot - first_slot(keys_[slot])) & mask) < ((slot - gap) & mask)) continue;
            keys_[gap] = keys_[slot];
            values_[gap] = std::move(values_[slot]);
            gap = slot;
        }
        keys_[gap] = kEmpty;
        --size_;
    }

  private:
    static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
    static constexpr std::size_t kLeastSlots = 64;

    std::size_t first_slot(std::uint64_t key) const {
        key ^= key >> 32;
        key *= 0x9E3779B97F4A7C15U;  // 2^64 / golden ratio
        return static_cast<std::size_t>(key >> 20) & (keys_.size() - 1);
    }

    void grow() {
        FlatMap larger;
        larger.keys_.assign(2 * keys_.size(), kEmpty);
        larger.values_.resize(2 * keys_.size());
        for (std::size_t slot = 0; slot < keys_.size(); ++slot) {
            if (keys_[slot] != kEmpty) larger.insert(keys_[slot], std::move(values_[slot]));
        }
        *this = std::move(larger);
    }

    std::vector<std::uint64_t> keys_;
    std::vector<Value> values_;
    std::size_t size_ = 0;
};

}  // namespace aicb
