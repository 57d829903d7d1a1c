// Identifiers, units and errors shared by the whole core.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>

namespace netsim {

using NodeId = std::uint32_t;
using LinkId = std::uint32_t;
using TimePs = std::int64_t;

// Rates are integers in units of 1/5040 bit/s. 5040 = 2^4·3^2·5·7, so a whole number of bit/s divides without a
// remainder among 1 to 10 flows, and a whole number of Gbit/s among nearly every number that occurs in practice.
using Rate = std::int64_t;
inline constexpr Rate kRateUnitsPerBps = 5040;
inline constexpr Rate kUncapped = std::numeric_limits<Rate>::max();
inline constexpr std::int64_t kMaxCapacityBps = 1'000'000'000'000'000;  // 1 Pbit/s: capacity in rate units fits Rate

// Work is rate x time: integer, so draining is exact however time is cut into steps.
__extension__ typedef __int128 Work;
inline constexpr std::int64_t kPsPerSecond = 1'000'000'000'000;

inline constexpr TimePs kNever = std::numeric_limits<TimePs>::max();

// kNever where the clock ends before. Neither is negative.
constexpr TimePs later(TimePs at_ps, TimePs by_ps) { return by_ps >= kNever - at_ps ? kNever : at_ps + by_ps; }

// Time that so many bytes take, to the nearest picosecond.
constexpr TimePs serialization_ps(std::int64_t bytes, std::int64_t rate_bps) {
    const Work time_ps = (Work{bytes} * 8 * kPsPerSecond + rate_bps / 2) / rate_bps;
    return time_ps < kNever ? static_cast<TimePs>(time_ps) : kNever;
}

// The caller used a simulation against its contract.
class MisuseError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

// Links that are up leave no way from one node to another.
class NoPath : public MisuseError {
  public:
    using MisuseError::MisuseError;
};

// A flow graph that cannot be executed.
class GraphError : public std::invalid_argument {
  public:
    using std::invalid_argument::invalid_argument;
};

}  // namespace netsim
