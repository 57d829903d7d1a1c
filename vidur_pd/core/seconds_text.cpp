#include "seconds_text.hpp"

#include <charconv>

namespace serving {

namespace {

constexpr std::int64_t kPsPerSecond = 1'000'000'000'000;
constexpr int kDecimals = 12;
constexpr int kMostDigits = 20;  // of 64 bits

}  // namespace

std::string seconds_text(std::int64_t duration_ps) {
    char text[kMostDigits + 1 + kDecimals];
    char* end = std::to_chars(text, text + kMostDigits, duration_ps / kPsPerSecond).ptr;
    std::int64_t fraction_ps = duration_ps % kPsPerSecond;
    if (fraction_ps == 0) return {text, end};
    *end = '.';
    for (int place = kDecimals; place > 0; --place, fraction_ps /= 10) {
        end[place] = static_cast<char>('0' + fraction_ps % 10);
    }
    char* last = end + kDecimals;
    while (*last == '0') --last;
    return {text, last + 1};
}

}  // namespace serving
