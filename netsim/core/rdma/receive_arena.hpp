// Parts of the one registered block in which messages arrive, given to those under way.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace netsim::rdma {

class ReceiveArena {
  public:
    ReceiveArena(char* memory, std::int64_t bytes) : memory_(memory) {
        if (bytes > 0) free_[0] = bytes;
    }

    // The lowest part that is free, or nothing while there is none: then the sender has to wait.
    char* take(std::int64_t bytes) {
        for (auto part = free_.begin(); part != free_.end(); ++part) {
            const auto [offset, room] = *part;
            if (room < bytes) continue;
            free_.erase(part);
            if (room > bytes) free_[offset + bytes] = room - bytes;
            return memory_ + offset;
        }
        return nullptr;
    }

    void give_back(const char* part, std::int64_t bytes) {
        std::int64_t offset = part - memory_;
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

  private:
    char* const memory_;
    std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes
};

}  // namespace netsim::rdma
