// Numbers of things that have changed since somebody last looked.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace serving {

class ChangeList {
  public:
    explicit ChangeList(std::size_t things) : is_noted_(things, false) {}

    void note(std::uint32_t number) {
        if (is_noted_[number]) return;
        is_noted_[number] = true;
        noted_.push_back(number);
    }
    // Those that were noted since the last call.
    std::vector<std::uint32_t> take() {
        for (const std::uint32_t number : noted_) is_noted_[number] = false;
        return std::exchange(noted_, {});
    }

  private:
    std::vector<bool> is_noted_;  // [things]
    std::vector<std::uint32_t> noted_;
};

}  // namespace serving
