#include <utility>

#include "coordinator/decode/drafters/grammar_drafter.h"
#include "coordinator/decode/drafters/model_drafter.h"
#include "coordinator/decode/drafters/paired_drafter.h"
#include "coordinator/decode/round_loop.h"

namespace outrider {
namespace {

std::unique_ptr<Drafter> MakeModelDrafter(Generation* generation, const DecodeParts& parts, Fork fork,
                                          ModelDrafter::Place place = ModelDrafter::Place::kFirst) {
  const int vocab = static_cast<int>(parts.targets->info()->vocab_size());
  DraftPool* const pool = place == ModelDrafter::Place::kFirst ? parts.drafts : parts.second_drafts;
  return std::make_unique<ModelDrafter>(generation, pool, parts.metrics, parts.draft_budget, vocab,
                                        std::move(fork), place);
}

// Makes the drafter that `auto` asks first, or alone. `only_long`: with n-grams of the longest context only.
std::unique_ptr<Drafter> MakeFirst(Generation* generation, NgramOptions options, bool only_long) {
  if (!generation->request().prediction.empty()) return std::make_unique<CopyDrafter>(generation);
  if (only_long) options.min_context = options.max_context;
  return std::make_unique<NgramDrafter>(generation, options);
}

std::unique_ptr<Drafter> MakeFreeAutoDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  std::unique_ptr<Drafter> second;
  if (generation->request().params.proposer() == v1::PROPOSER_EAGLE) {
    second = std::make_unique<TargetDrafter>(generation, v1::DRAFTER_KIND_EAGLE);
  } else if (parts.drafts != nullptr) {
    second = MakeModelDrafter(generation, parts, std::move(fork));
  } else {
    return MakeFirst(generation, parts.ngram, /*only_long=*/false);
  }
  return std::make_unique<AutoDrafter>(generation, MakeFirst(generation, parts.ngram, /*only_long=*/true),
                                       std::move(second));
}

std::unique_ptr<Drafter> MakeAutoDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  std::unique_ptr<Drafter> free = MakeFreeAutoDrafter(generation, parts, std::move(fork));
  if (generation->request().grammar == nullptr) return free;
  return std::make_unique<AutoDrafter>(
      generation, std::make_unique<GrammarDrafter>(generation, parts.tokenizer), std::move(free));
}

}  // namespace

std::unique_ptr<Drafter> MakeDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  const v1::DrafterKind kind = generation->request().drafter;
  switch (kind) {
    case v1::DRAFTER_KIND_MODEL:
      return MakeModelDrafter(generation, parts, std::move(fork));
    case v1::DRAFTER_KIND_BOTH_MODELS:
      return std::make_unique<PairedDrafter>(
          generation, MakeModelDrafter(generation, parts, std::move(fork)),
          MakeModelDrafter(generation, parts, Fork(), ModelDrafter::Place::kSecond));
    case v1::DRAFTER_KIND_NGRAM:
      return std::make_unique<NgramDrafter>(generation, parts.ngram);
    case v1::DRAFTER_KIND_COPY:
      return std::make_unique<CopyDrafter>(generation);
    case v1::DRAFTER_KIND_GRAMMAR:
      return std::make_unique<GrammarDrafter>(generation, parts.tokenizer);
    case v1::DRAFTER_KIND_AUTO:
      return MakeAutoDrafter(generation, parts, std::move(fork));
    default:
      return std::make_unique<TargetDrafter>(generation, kind);
  }
}

}  // namespace outrider
