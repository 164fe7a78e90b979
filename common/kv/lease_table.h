// The sequences that a server holds, by id and in order of last use, with leases.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"

namespace outrider {

// 128 random bits, drawn by the coordinator once for each generation.
struct SequenceId {
  uint64_t hi = 0;
  uint64_t lo = 0;

  friend auto operator<=>(const SequenceId&, const SequenceId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceId& id) {
    return H::combine(std::move(h), id.hi, id.lo);
  }
};

// Entries keep their address until they are released, erased or expire. The last `max_tombstones` released
// ids are remembered, so that a late item cannot revive a released sequence. Callers pass the time, which
// must not run backwards. Not thread-safe.
template <class Entry>
class LeaseTable {
 public:
  explicit LeaseTable(size_t max_tombstones = 4096) : max_tombstones_(max_tombstones) {}

  // The entry of a sequence, or null. Does not renew the lease.
  Entry* Find(const SequenceId& id) {
    auto it = index_.find(id);
    return it == index_.end() ? nullptr : &it->second->entry;
  }

  // Adds a sequence whose lease starts at `now`, and whose id is neither present nor released.
  template <class... Args>
  Entry* Insert(const SequenceId& id, absl::Time now, Args&&... args) {
    nodes_.emplace_back(id, now, std::forward<Args>(args)...);
    index_.emplace(id, std::prev(nodes_.end()));
    return &nodes_.back().entry;
  }

  // Renews the lease of a sequence that is present.
  void Touch(const SequenceId& id, absl::Time now) {
    const auto node = index_.at(id);
    node->touched = now;
    nodes_.splice(nodes_.end(), nodes_, node);
  }

  // Removes a sequence and remembers its id, even if it was not present.
  void Release(const SequenceId& id) {
    if (max_tombstones_ > 0 && tombstones_.insert(id).second) {
      tombstone_order_.push_back(id);
      if (tombstone_order_.size() > max_tombstones_) {
        tombstones_.erase(tombstone_order_.front());
        tombstone_order_.pop_front();
      }
    }
    Erase(id);
  }

  // Removes a sequence that may come back, if it is present.
  void Erase(const SequenceId& id) {
    auto it = index_.find(id);
    if (it == index_.end()) return;
    nodes_.erase(it->second);
    index_.erase(it);
  }

  // Removes every sequence that was not touched for `lease`. They are not remembered: the coordinator may
  // send such a sequence again.
  void Expire(absl::Time now, absl::Duration lease) {
    while (!nodes_.empty() && now - nodes_.front().touched >= lease) Erase(SequenceId(nodes_.front().id));
  }

  // Calls visit(id, entry), least recently touched sequence first, until it returns false. This is the order
  // in which preemption looks for a victim. `visit` must not change the table.
  template <class Visit>
  void ForEachOldestFirst(Visit visit) {
    for (Node& node : nodes_) {
      if (!visit(node.id, node.entry)) return;
    }
  }

  bool released(const SequenceId& id) const { return tombstones_.contains(id); }
  size_t size() const { return index_.size(); }

 private:
  struct Node {
    template <class... Args>
    Node(const SequenceId& id, absl::Time touched, Args&&... args)
        : id(id), touched(touched), entry(std::forward<Args>(args)...) {}
    SequenceId id;
    absl::Time touched;
    Entry entry;
  };

  size_t max_tombstones_;
  std::list<Node> nodes_;  // least recently touched first
  absl::flat_hash_map<SequenceId, typename std::list<Node>::iterator> index_;
  absl::flat_hash_set<SequenceId> tombstones_;
  std::deque<SequenceId> tombstone_order_;
};

}  // namespace outrider
