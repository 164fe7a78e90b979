// The nodes of a Jinja program that keep to JinjaLimits.
#pragma once

#include <cstdint>
#include <utility>

#include "jinja/runtime.h"

namespace outrider {

class JinjaLimits;

// Replaces the nodes of a program.
class JinjaNodes {
 public:
  explicit JinjaNodes(JinjaLimits* limits) : limits_(limits) {}

  // Replaces the statements of a body.
  void Bound(jinja::statements& body);

  // How many names the program can set.
  uint64_t variables() const { return variables_; }

 private:
  using Pair = std::pair<jinja::statement_ptr, jinja::statement_ptr>;

  void BoundNode(jinja::statement_ptr& node);
  void BoundAll(jinja::statements& nodes);
  void BoundChild(jinja::statement_ptr& node) { BoundNode(node); }
  void BoundChild(jinja::statements& nodes) { BoundAll(nodes); }
  void BoundChild(std::vector<Pair>& pairs);
  template <class Node, class... Children>
  bool Replace(jinja::statement_ptr& node, Children Node::*... children);

  JinjaLimits* const limits_;
  uint64_t variables_ = 0;
};

}  // namespace outrider
