// Payload that tells flows apart without being written anew for each: every flow is a window of one random text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace netsim::rdma {

class PayloadPattern {
  public:
    // Enough for flows of up to `largest_bytes`.
    explicit PayloadPattern(std::int64_t largest_bytes)
        : words_(static_cast<std::size_t>(largest_bytes + 7) / 8 + kWindows) {
        std::uint64_t state = 0;
        for (std::uint64_t& word : words_) word = next(state);
    }

    char* at(std::uint32_t flow, std::int64_t offset) {
        return reinterpret_cast<char*>(words_.data()) + place_of(flow, offset);
    }
    // In bytes from data().
    static std::size_t place_of(std::uint32_t flow, std::int64_t offset) {
        return window_of(flow) * sizeof(std::uint64_t) + static_cast<std::size_t>(offset);
    }
    bool is(std::uint32_t flow, std::int64_t offset, const void* data, std::int64_t bytes) {
        return std::memcmp(at(flow, offset), data, static_cast<std::size_t>(bytes)) == 0;
    }
    void* data() { return words_.data(); }
    std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

  private:
    static constexpr std::size_t kWindows = 1 << 16;

    // Flows with neighbouring numbers are far apart: Knuth's multiplicative hash (TAOCP 3, 6.4).
    static std::size_t window_of(std::uint32_t flow) { return (flow * 2654435761u) >> 16; }

    // Splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
    static std::uint64_t next(std::uint64_t& state) {
        std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }

    std::vector<std::uint64_t> words_;
};

}  // namespace netsim::rdma
