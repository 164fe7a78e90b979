#include "common/text/stop_matcher.h"

#include <algorithm>

#include "common/spec/status.h"
#include "common/text/utf8.h"

namespace outrider {
absl::StatusOr<StopMatcher> StopMatcher::Create(std::span<const std::string> stops) {
  if (stops.size() > kMaxStopStrings) {
    return Invalid("stop: ", stops.size(), " strings, at most ", kMaxStopStrings, " are allowed");
  }
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t size = stops[i].size();
    if (size < 1 || size > kMaxStopBytes) {
      return Invalid("stop[", i, "]: ", size, " bytes, must be 1 to ", kMaxStopBytes);
    }
    if (!IsValidUtf8(stops[i])) return Invalid("stop[", i, "]: not valid UTF-8");
  }
  StopMatcher matcher;
  std::vector<Node>& nodes = matcher.nodes_;
  nodes.emplace_back();

  // Every prefix of a stop string becomes a node. `edges` has one edge per node, in order of creation.
  struct Edge {
    int32_t parent;
    char byte;
  };
  std::vector<Edge> edges = {{0, 0}};  // node 0 has none; a placeholder
  for (size_t i = 0; i < stops.size(); ++i) {
    int32_t node = 0;
    for (const char byte : stops[i]) {
      auto [child, is_new] = matcher.children_.try_emplace({node, byte}, static_cast<int32_t>(nodes.size()));
      if (is_new) {
        nodes.push_back({.depth = nodes[node].depth + 1});
        edges.push_back({node, byte});
      }
      node = child->second;
    }
    if (nodes[node].stop < 0) {
      nodes[node].stop = static_cast<int32_t>(i);
      nodes[node].stop_size = nodes[node].depth;
    }
  }

  // A node's fail link is computed from its parent's, so shorter prefixes come first.
  std::vector<std::vector<int32_t>> by_depth(1);
  for (int32_t node = 1; node < static_cast<int32_t>(nodes.size()); ++node) {
    by_depth.resize(std::max<size_t>(by_depth.size(), nodes[node].depth + 1));
    by_depth[nodes[node].depth].push_back(node);
  }
  for (const std::vector<int32_t>& level : by_depth) {
    for (const int32_t node : level) {
      const Edge& edge = edges[node];
      nodes[node].fail = edge.parent == 0 ? 0 : matcher.Next(nodes[edge.parent].fail, edge.byte);
      if (nodes[node].stop < 0) {
        nodes[node].stop = nodes[nodes[node].fail].stop;
        nodes[node].stop_size = nodes[nodes[node].fail].stop_size;
      }
    }
  }
  return matcher;
}

std::string StopMatcher::Append(std::string_view piece, bool counts) {
  const int64_t index = pieces_++;
  if (match_.has_value()) return "";
  const size_t held_before = held_.size();
  held_.append(piece);
  size_t size = held_.size() - nodes_[state_].depth;  // bytes to emit; 0 if `piece` is empty
  for (size_t i = 0; i < piece.size(); ++i) {
    state_ = Next(state_, piece[i]);
    const Node& node = nodes_[state_];
    const size_t read = held_before + i + 1;
    if (node.stop >= 0 && counts) {
      size = read - node.stop_size;
      match_ = StopMatch{.stop_index = node.stop, .piece = index, .text_size = emitted_ + size};
      break;
    }
    size = read - node.depth;
  }
  std::string text = held_.substr(0, size);
  emitted_ += size;
  if (match_.has_value()) {
    held_.clear();
  } else {
    held_.erase(0, size);
  }
  return text;
}

}  // namespace outrider
