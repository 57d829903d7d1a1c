// Memory in which messages arrive: one registered block of which messages under way have parts.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

namespace netsim::rdma {

class ReceiveArena {
  public:
    explicit ReceiveArena(std::int64_t bytes) : memory_(static_cast<std::size_t>(bytes)) {
        if (bytes > 0) free_[0] = bytes;
    }

    // The lowest part that is free, or nothing while there is none: then the sender has to wait.
    char* take(std::int64_t bytes) {
        for (auto part = free_.begin(); part != free_.end(); ++part) {
            const auto [offset, room] = *part;
            if (room < bytes) continue;
            free_.erase(part);
            if (room > bytes) free_[offset + bytes] = room - bytes;
            return memory_.data() + offset;
        }
        return nullptr;
    }

    void give_back(const char* part, std::int64_t bytes) {
        std::int64_t offset = part - memory_.data();
        auto next = free_.lower_bound(offset);
        if (next != free_.end() && next->first == offset + bytes) {
            bytes += next->second;
            next = free_.erase(next);
        }
        if (next != free_.begin()) {
            const auto before = std::prev(next);
            if (before->first + before->second == offset) {
                before->second += bytes;
                return;
            }
        }
        free_[offset] = bytes;
    }

    void* data() { return memory_.data(); }
    std::size_t bytes() const { return memory_.size(); }

  private:
    std::vector<char> memory_;
    std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes
};

}  // namespace netsim::rdma
