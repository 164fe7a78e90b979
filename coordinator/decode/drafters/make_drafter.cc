#include <utility>

#include "coordinator/decode/drafters/model_drafter.h"
#include "coordinator/decode/round_loop.h"

namespace outrider {
namespace {

std::unique_ptr<Drafter> MakeModelDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  const int vocab = static_cast<int>(parts.targets->info()->vocab_size());
  return std::make_unique<ModelDrafter>(generation, parts.drafts, parts.metrics, parts.draft_budget, vocab,
                                        std::move(fork));
}

std::unique_ptr<Drafter> MakeAutoDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  std::unique_ptr<Drafter> second;
  if (generation->request().params.proposer() == v1::PROPOSER_EAGLE) {
    second = std::make_unique<TargetDrafter>(generation, v1::DRAFTER_KIND_EAGLE);
  } else if (parts.drafts != nullptr) {
    second = MakeModelDrafter(generation, parts, std::move(fork));
  } else {
    return std::make_unique<NgramDrafter>(generation, parts.ngram);
  }
  NgramOptions only_long = parts.ngram;
  only_long.min_context = only_long.max_context;
  return std::make_unique<AutoDrafter>(generation, std::make_unique<NgramDrafter>(generation, only_long),
                                       std::move(second));
}

}  // namespace

std::unique_ptr<Drafter> MakeDrafter(Generation* generation, const DecodeParts& parts, Fork fork) {
  const v1::DrafterKind kind = generation->request().drafter;
  switch (kind) {
    case v1::DRAFTER_KIND_MODEL:
      return MakeModelDrafter(generation, parts, std::move(fork));
    case v1::DRAFTER_KIND_NGRAM:
      return std::make_unique<NgramDrafter>(generation, parts.ngram);
    case v1::DRAFTER_KIND_COPY:
      return std::make_unique<CopyDrafter>(generation);
    case v1::DRAFTER_KIND_AUTO:
      return MakeAutoDrafter(generation, parts, std::move(fork));
    default:
      return std::make_unique<TargetDrafter>(generation, kind);
  }
}

}  // namespace outrider
