// The sequences a server holds, by id, in the order in which they were last touched.
#pragma once

#include <cstddef>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/kv/sequence_id.h"

namespace outrider {

// Entries keep their address until they are released or expire. A released id is remembered for a while (the
// last `max_tombstones`), so that an item that comes late cannot bring the sequence back. Time is passed in
// and must not run backwards. Not synchronised.
template <class Entry>
class LeaseTable {
 public:
  explicit LeaseTable(size_t max_tombstones = 4096) : max_tombstones_(max_tombstones) {}

  // The entry of a sequence, or null. Does not touch it.
  Entry* Find(const SequenceId& id) {
    auto it = index_.find(id);
    return it == index_.end() ? nullptr : &it->second->entry;
  }

  // Adds a sequence, touched at `now`. Null if the id is present or released.
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

  // Frees a sequence and remembers its id, also when it was not present. Returns whether it was.
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

  // Frees a sequence that may come back. Returns whether it was present.
  bool Erase(const SequenceId& id) {
    auto it = index_.find(id);
    if (it == index_.end()) return false;
    nodes_.erase(it->second);
    index_.erase(it);
    return true;
  }

  // Frees every sequence that was not touched for `lease`, and returns their ids. They are not remembered:
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

  // Calls visit(id, entry) from the least to the most recently touched until it returns false: the order in
  // which a victim of preemption is looked for. `visit` must not change the table.
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
