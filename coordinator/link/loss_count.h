// How often in a row the connection to a server was lost under what a sequence sent.
#pragma once

#include <algorithm>
#include <cstddef>

namespace outrider {

// A server that dies takes all items in flight with it, and one of them may be the cause. After a first loss
// all are sent again at once. Those that were lost twice are suspects, and suspects are sent one at a time
// (Link::suspects), so that a third loss tells the culprit. One thread.
class LossCount {
 public:
  // An item that brings the sequence to `end` tokens was answered. The answer to an earlier part of the
  // sequence clears nothing: the part that was lost is yet to come.
  void OnAnswer(size_t end) {
    if (end >= end_) *this = {};
  }
  // The connection was lost under such an item.
  void OnLost(size_t end) {
    ++losses_;
    end_ = std::max(end_, end);
  }

  bool suspect() const { return losses_ >= kSuspect; }
  // Sending it once more would do to others what it has done before.
  bool guilty() const { return losses_ >= kGuilty; }

 private:
  static constexpr int kSuspect = 2;
  static constexpr int kGuilty = 3;

  int losses_ = 0;
  size_t end_ = 0;  // of the longest item that was lost
};

}  // namespace outrider
