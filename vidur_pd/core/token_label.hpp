// Content of the tokens of a request, position by position from 0, as far as anybody knows it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "request.hpp"

namespace serving {

// The label of a request's tokens. Contents are chained: where they are equal, all tokens before are equal too.
// `id_tokens` is the length of the blocks that the request's hashes stand for.
class TokenLabel {
  public:
    TokenLabel(const Request& request, Tokens id_tokens)
        : contents_(request.contents.data()),
          id_tokens_(id_tokens),
          identified_(std::min(request.hashed_tokens, static_cast<Tokens>(request.contents.size()) * id_tokens)),
          own_(kUnique | static_cast<std::uint64_t>(request.index)) {}
    // The same with contents that outlive the request.
    TokenLabel(const TokenLabel& label, const std::vector<std::uint64_t>& contents) : TokenLabel(label) {
        contents_ = contents.data();
    }

    // Equal for two labels exactly where the tokens up to this position, and this one, are equal.
    std::uint64_t at(Tokens position) const { return position < identified_ ? contents_[position / id_tokens_] : own_; }
    bool is_identified(Tokens position) const { return position < identified_; }

    // Length of the common start of two labels that agree in the first `from` tokens; at most `most`.
    Tokens common(const TokenLabel& other, Tokens from, Tokens most) const {
        if (own_ == other.own_) return most;
        const Tokens shared = std::min({identified_, other.identified_, most});
        Tokens equal = from / id_tokens_, unequal = (shared + id_tokens_ - 1) / id_tokens_;
        while (equal < unequal) {
            const Tokens block = (equal + unequal) / 2;
            if (contents_[block] == other.contents_[block]) {
                equal = block + 1;
            } else {
                unequal = block;
            }
        }
        return std::min(shared, equal * id_tokens_);
    }

  private:
    static constexpr std::uint64_t kUnique = std::uint64_t{1} << 63;  // contents have 63 bits

    const std::uint64_t* contents_;  // [blocks]
    Tokens id_tokens_;
    Tokens identified_;  // leading tokens that the hashes name; those beyond are the request's own
    std::uint64_t own_;  // content of all other tokens
};

// A label with the contents that it needs.
struct KeptLabel {
    KeptLabel(const Request& request, Tokens id_tokens)
        : contents(request.contents), label(TokenLabel(request, id_tokens), contents) {}
    KeptLabel(const KeptLabel&) = delete;
    KeptLabel& operator=(const KeptLabel&) = delete;

    std::vector<std::uint64_t> contents;
    TokenLabel label;
};

}  // namespace serving
