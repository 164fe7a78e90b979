// Guesses how a text goes on from what the same words were followed by earlier, as prompt lookup decoding
// does (Saxena 2023) and the input-guided method of Yang et al. (arXiv 2304.04487).
#pragma once

#include <span>
#include <vector>

#include "common/spec/types.h"

namespace outrider {

// Returns the tokens that followed the most recent earlier occurrence of the longest suffix that repeats: as
// many as that suffix has, but at most `most`. Suffixes of one token, which prove little, do not count. Takes
// time linear in the length of the text; any thread.
std::vector<TokenId> LookUp(std::span<const TokenId> text, int most);

}  // namespace outrider
