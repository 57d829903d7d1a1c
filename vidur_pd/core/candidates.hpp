// What a router chooses among: which candidates take requests, and which of them has the least load.
//
// A candidate is one rank, or all ranks of an instance. A load is read again only if something has happened to it
// since, and stands in a tournament tree: a choice costs what has changed, not the number of candidates.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "change_list.hpp"
#include "rank_state.hpp"

namespace serving {

// What is compared; of equal tokens, the requests decide.
struct Load {
    Tokens tokens = 0;
    std::int64_t requests = 0;
    auto operator<=>(const Load&) const = default;
};

class Candidates {
  public:
    enum class Measure : std::uint8_t { kNone, kRequests, kTokens };
    using Place = std::int64_t;
    // Places from the first of each pair to before the second; rising, without overlap.
    using Spans = std::vector<std::pair<Place, Place>>;

    // All are open. With the measure `kNone` loads are never read.
    Candidates(std::vector<std::vector<std::shared_ptr<RankState>>> candidates, Measure measure);

    void set_open(Place place, bool is_open);
    // Number of open candidates in the spans.
    std::int64_t open(const Spans& spans) const;
    // The `number`-th open candidate in the spans, from 0 on.
    std::optional<Place> nth(const Spans& spans, std::int64_t number) const;
    // The first open candidate in the spans at or after a place, or else the first of all.
    std::optional<Place> next(const Spans& spans, Place from) const;
    // The open candidate of the least load in the spans, the first of equals.
    std::optional<Place> least(const Spans& spans);

    // How often a load has been read.
    std::int64_t loads_read() const { return loads_read_; }

  private:
    static constexpr std::int32_t kNobody = -1;

    Load read(std::size_t place);
    void refresh();
    void update(std::size_t leaf);
    std::int32_t better(std::int32_t a, std::int32_t b) const;
    std::int64_t open_before(Place place) const;

    std::vector<std::vector<std::shared_ptr<RankState>>> candidates_;
    Measure measure_;
    std::shared_ptr<ChangeList> changes_;
    std::size_t width_ = 1;           // leaves of the tree: a power of two above the candidates
    std::vector<Load> loads_;         // [candidates]
    std::vector<std::int64_t> open_;  // [2 * width] open candidates below each knot; knot 1 is the root
    std::vector<std::int32_t> best_;  // [2 * width] place of the best of them
    std::int64_t loads_read_ = 0;
};

}  // namespace serving
