// One thread at a time, checked.
#pragma once

#include <atomic>
#include <netsim/types.hpp>

namespace netsim {

// Reserves something for the caller while it lives. Throws where another thread is inside.
class ExclusiveUse {
  public:
    explicit ExclusiveUse(std::atomic_flag& in_use) : in_use_(in_use) {
        if (in_use_.test_and_set()) {
            throw MisuseError("backend: found a call while another thread is inside, expected one thread at a time");
        }
    }
    ~ExclusiveUse() { in_use_.clear(); }
    ExclusiveUse(const ExclusiveUse&) = delete;
    ExclusiveUse& operator=(const ExclusiveUse&) = delete;

  private:
    std::atomic_flag& in_use_;
};

}  // namespace netsim
