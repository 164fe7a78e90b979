// The sequences that a server holds, by id and in order of last use, with leases.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
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
  // 32 hexadecimal digits.
  std::string ToString() const { return absl::StrFormat("%016x%016x", hi, lo); }
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

  // Adds a sequence whose lease starts at `now`. Null if the id is present or released.
  template <class... Args>
  Entry* Insert(const SequenceId& id, absl::Time now, Args&&... args) {
    if (index_.contains(id) || released(id)) return nullptr;
    nodes_.emplace_back(id, now, std::forward<Args>(args)...);
    index_.emplace(id, std::prev(nodes_.end()));
    return &nodes_.back().entry;
  }

  // Renews the lease. False if the sequence is unknown.
  bool Touch(const SequenceId& id, absl::Time now) {
    auto it = index_.find(id);
    if (it == index_.end()) return false;
    it->second->touched = now;
    nodes_.splice(nodes_.end(), nodes_, it->second);
    return true;
  }

  // Removes a sequence and remembers its id, even if it was not present. Returns whether it was present.
  bool Release(const SequenceId& id) {
    if (max_tombstones_ > 0 && tombstones_.insert(id).second) {
      tombstone_order_.push_back(id);
      if (tombstone_order_.size() > max_tombstones_) {
        tombstones_.erase(tombstone_order_.front());
        tombstone_order_.pop_front();
      }
    }
    return Erase(id);
  }

  // Removes a sequence that may come back. Returns whether it was present.
  bool Erase(const SequenceId& id) {
    auto it = index_.find(id);
    if (it == index_.end()) return false;
    nodes_.erase(it->second);
    index_.erase(it);
    return true;
  }

  // Removes every sequence that was not touched for `lease` and returns their ids. They are not remembered:
  // the coordinator may send such a sequence again.
  std::vector<SequenceId> Expire(absl::Time now, absl::Duration lease) {
    std::vector<SequenceId> freed;
    while (!nodes_.empty() && now - nodes_.front().touched >= lease) {
      freed.push_back(nodes_.front().id);
      index_.erase(nodes_.front().id);
      nodes_.pop_front();
    }
    return freed;
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
