// Random numbers for marks: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace netsim::roce {

inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

constexpr std::uint64_t mix64(std::uint64_t state) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ULL;
    state = (state ^ state >> 27) * 0x94d049bb133111ebULL;
    return state ^ state >> 31;
}

// One stream of draws. Streams of other numbers or seeds are unrelated, also where these are neighbours.
class SplitMix {
  public:
    constexpr SplitMix(std::uint64_t seed, std::uint64_t stream)
        : state_(mix64(mix64(seed + kGoldenGamma) + (stream + 1) * kGoldenGamma)) {}

    // In [0, 1), in steps of 2^-53.
    constexpr double draw() {
        state_ += kGoldenGamma;
        return static_cast<double>(mix64(state_) >> 11) * 0x1p-53;
    }

  private:
    std::uint64_t state_;
};

}  // namespace netsim::roce
