// Errors of the core: bad input, and broken invariants, which become Python's AssertionError.
#pragma once

#include <stdexcept>
#include <string>

namespace serving {

// A limit that the caller gave is impossible; becomes boundary.errors.InputError.
class InputError : public std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A policy has decided what its rank does not allow; becomes vidur_pd.scheduling.BrokenRule.
class BrokenRule : public std::runtime_error {
  public:
    BrokenRule(const std::string& rule, const std::string& what) : std::runtime_error(rule + ": " + what) {}
};

// A call that the state does not allow: a defect of the caller.
class BrokenInvariant : public std::logic_error {
    using std::logic_error::logic_error;
};

inline void ensure(bool holds, const std::string& message) {
    if (!holds) throw BrokenInvariant(message);
}

// The same where the message is at hand: no text is made of it unless it is wanted.
inline void ensure(bool holds, const char* message) {
    if (!holds) throw BrokenInvariant(message);
}

inline void check_least(const std::string& name, std::int64_t found, std::int64_t least) {
    if (found < least) {
        throw InputError(name + ": found " + std::to_string(found) + ", expected at least " + std::to_string(least));
    }
}

}  // namespace serving
