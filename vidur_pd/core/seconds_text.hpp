// Durations in picoseconds as text.
#pragma once

#include <cstdint>
#include <string>

namespace serving {

// Exact decimal seconds without trailing zeros, of a duration that is not negative.
std::string seconds_text(std::int64_t duration_ps);

}  // namespace serving
