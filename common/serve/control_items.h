// What draft and target do alike with items that get no answer.
#pragma once

#include "common/engine/worker.h"
#include "common/serve/convert.h"

namespace outrider {

// Releases or cancels if that is what the item (DraftItem or TargetItem) asks for, and returns whether it is.
// An id that is none is ignored: nobody waits to hear of it.
template <class Item>
bool HandleControlItem(const Item& item, Worker& worker) {
  if (item.has_release()) {
    if (auto id = ParseSequenceId(item.release().sequence_id()); id.ok()) worker.Release(*id);
    return true;
  }
  if (item.has_cancel()) {
    if (auto id = ParseSequenceId(item.cancel().sequence_id()); id.ok()) {
      worker.Cancel(*id, item.cancel().round());
    }
    return true;
  }
  return false;
}

}  // namespace outrider
