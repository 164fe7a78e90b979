#include "coordinator/api/jinja_program.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace outrider {
namespace {

using jinja::context;
using jinja::statement_ptr;
using jinja::value;

constexpr int kMaxCalls =
    300;  // depth of nested nodes: templates reach some tens, and a recursive call adds ten
constexpr uint64_t kComparedPerWork = 64;  // bytes of the text times bytes of the characters to strip
constexpr uint64_t kStrippedPerWork = 4;   // bytes

// Stands for an operand that is already known.
struct Constant : jinja::expression {
  explicit Constant(value known) : known(std::move(known)) {}
  value execute_impl(context&) override { return known; }
  value known;
};

statement_ptr Known(const value& v) { return std::make_unique<Constant>(v); }

class Call {
 public:
  explicit Call(JinjaLimits* limits) : limits_(limits) {
    if (limits->calls() >= kMaxCalls) JinjaLimits::Fail("it calls itself too often");
    ++limits_->calls();
  }
  ~Call() { --limits_->calls(); }
  Call(const Call&) = delete;

 private:
  JinjaLimits* const limits_;
};

// Executes a node. This form leaves the work to the engine; the overloads below do it for some nodes.
template <class Node>
value Run(Node& node, context& ctx, JinjaLimits&) {
  return node.Node::execute_impl(ctx);
}

std::vector<value> Execute(const jinja::statements& arguments, context& ctx) {
  std::vector<value> values;
  for (const statement_ptr& argument : arguments) values.push_back(argument->execute(ctx));
  return values;
}

jinja::statements Known(const std::vector<value>& values) {
  jinja::statements nodes;
  for (const value& v : values) nodes.push_back(Known(v));
  return nodes;
}

// The name and the arguments of a filter or a test.
struct NamedCall {
  std::string name;
  bool has_arguments = false;
  std::vector<value> arguments = {};

  statement_ptr Node() const {
    auto known = std::make_unique<jinja::identifier>(name);
    if (!has_arguments) return known;
    return std::make_unique<jinja::call_expression>(std::move(known), Known(arguments));
  }
};

// The filter or test that is called on `input`, with its arguments evaluated.
NamedCall KnownCall(const statement_ptr& called, const value& input, context& ctx, JinjaLimits& limits) {
  const auto* call = jinja::cast_stmt<jinja::call_expression>(called);
  const auto* name = jinja::cast_stmt<jinja::identifier>(call == nullptr ? called : call->callee);
  if (name == nullptr) throw std::runtime_error("the name of a filter or a test is missing");
  NamedCall known = {name->val, call != nullptr};
  if (call != nullptr) known.arguments = Execute(call->args, ctx);
  limits.CheckCall(known.name, input, known.arguments);
  return known;
}

std::optional<StripEnds> EndsOf(const std::string& name) {
  if (name == "trim" || name == "strip") return StripEnds::kBoth;
  if (name == "lstrip") return StripEnds::kLeft;
  if (name == "rstrip") return StripEnds::kRight;
  return std::nullopt;
}

// The result of a function or filter that strips a text; null for any other.
value Stripped(const std::string& name, const value& input, const std::vector<value>& arguments,
               JinjaLimits& limits) {
  using Text = jinja::value_string;
  const std::optional<StripEnds> ends = EndsOf(name);
  if (!ends || input == nullptr || !jinja::is_val<Text>(input) || arguments.size() > 1) return nullptr;
  const std::string text = input->val_str.str();
  std::optional<std::string> characters;
  if (!arguments.empty() && jinja::is_val<Text>(arguments[0])) {
    characters = arguments[0]->val_str.str();
    limits.Spend(text.size() * characters->size() / kComparedPerWork);
  } else if (!arguments.empty() && !jinja::is_val<jinja::value_none>(arguments[0])) {
    return nullptr;
  }
  const std::string_view rest = Strip(text, *ends, characters);
  limits.Spend((text.size() - rest.size()) / kStrippedPerWork);
  return jinja::mk_val<Text>(
      Slice(input->val_str, static_cast<size_t>(rest.data() - text.data()), rest.size()));
}

// Whether a filter or a method makes new texts, rather than returning a part of its input.
bool MakesTexts(const std::string& name, const value& input) {
  if (IsText(input)) return name != "default" && name != "d";
  return name == "join" || name == "tojson";
}

value Filter(const statement_ptr& filter, const value& input, context& ctx, JinjaLimits& limits) {
  const NamedCall call = KnownCall(filter, input, ctx, limits);
  // The engine runs the method of that name, whose format has braces; the filter's has percent signs.
  if (call.name == "format") Refuse("the filter format");
  if (value made = PythonFilter(call.name, input, call.arguments)) return made;
  if (value stripped = Stripped(call.name, input, call.arguments, limits)) return stripped;
  value result = jinja::filter_expression(Known(input), call.Node()).execute_impl(ctx);
  if (MakesTexts(call.name, input)) KeepInput(input, result);
  return result;
}

value Run(jinja::binary_expression& node, context& ctx, JinjaLimits& limits) {
  if (node.op.value == "and" || node.op.value == "or")
    return node.jinja::binary_expression::execute_impl(ctx);
  const value left = node.left->execute(ctx);
  const value right = node.right->execute(ctx);
  limits.Measure(left);
  limits.Measure(right);
  if (node.op.value == "*") {
    const uint64_t bytes = left->val_str.length() + right->val_str.length();
    for (const value& times : {left, right}) {
      if (jinja::is_val<jinja::value_int>(times) && times->val_int > 0 && bytes > 0) {
        limits.Spend(static_cast<uint64_t>(times->val_int));
        limits.Spend(static_cast<uint64_t>(times->val_int) * bytes / 16);
      }
    }
  }
  if (value made = PythonOperator(node.op.value, left, right)) return made;
  value result = jinja::binary_expression(node.op, Known(left), Known(right)).execute_impl(ctx);
  if (IsText(result)) {
    for (const value& operand : {left, right}) KeepInput(operand, result);
  }
  return result;
}

std::optional<int64_t> BoundOf(const statement_ptr& bound, context& ctx) {
  const value v = bound == nullptr ? nullptr : bound->execute(ctx);
  if (v == nullptr || v->is_none()) return std::nullopt;
  return v->as_int();
}

value Run(jinja::member_expression& node, context& ctx, JinjaLimits& limits) {
  const value object = node.object->execute(ctx);
  if (object->is_undefined()) throw std::runtime_error("a member of what is not defined");
  if (node.computed && IsText(object)) {
    if (const auto* slice = jinja::cast_stmt<jinja::slice_expression>(node.property)) {
      limits.Measure(object);
      const auto start = BoundOf(slice->start_expr, ctx), stop = BoundOf(slice->stop_expr, ctx);
      return SliceOf(object, start, stop, BoundOf(slice->step_expr, ctx).value_or(1));
    }
    const value index = node.property->execute(ctx);
    if (jinja::is_val<jinja::value_int>(index)) {
      limits.Measure(object);
      const value character = CharacterAt(object, index->val_int);
      return character != nullptr ? character : jinja::mk_val<jinja::value_undefined>("character");
    }
  }
  // Lends the node its known object, so that the engine does not evaluate it again until a loop's next turn.
  statement_ptr known = Known(object);
  std::swap(node.object, known);
  value member = node.jinja::member_expression::execute_impl(ctx);
  std::swap(node.object, known);
  return member;
}

value Run(jinja::filter_expression& node, context& ctx, JinjaLimits& limits) {
  return Filter(node.filter, node.operand->execute(ctx), ctx, limits);
}

value Run(jinja::filter_statement& node, context& ctx, JinjaLimits& limits) {
  const auto parts = jinja::mk_val<jinja::value_array>();
  for (const statement_ptr& statement : node.body) parts->push_back(statement->execute(ctx));
  return Filter(node.filter, jinja::runtime::gather_string_parts(parts), ctx, limits);
}

value Run(jinja::test_expression& node, context& ctx, JinjaLimits& limits) {
  const value input = node.operand->execute(ctx);
  const NamedCall call = KnownCall(node.test, input, ctx, limits);
  CheckPythonTest(call.name, input, call.arguments);
  return jinja::test_expression(Known(input), node.negate, call.Node()).execute_impl(ctx);
}

value Run(jinja::call_expression& node, context& ctx, JinjaLimits& limits) {
  const std::vector<value> arguments = Execute(node.args, ctx);
  const value callee = node.callee->execute(ctx);
  const auto* function = jinja::cast_val<std::shared_ptr<jinja::value_func_t>>(callee);
  const value input = function == nullptr ? nullptr : function->arg0;
  if (function != nullptr) {
    limits.CheckCall(function->name, input, arguments);
    if (input != nullptr) {
      CheckPythonMethod(function->name, input);
      if (value made = PythonFilter(function->name, input, arguments)) return made;
    }
    if (value stripped = Stripped(function->name, input, arguments, limits)) return stripped;
  }
  value result = jinja::call_expression(Known(callee), Known(arguments)).execute_impl(ctx);
  if (input != nullptr && MakesTexts(function->name, input)) KeepInput(input, result);
  return result;
}

value Run(jinja::call_statement& node, context& ctx, JinjaLimits&) {
  auto* call = jinja::cast_stmt<jinja::call_expression>(node.call);
  const value callee = call->callee->execute(ctx);
  const auto* function = jinja::cast_val<std::shared_ptr<jinja::value_func_t>>(callee);
  if (function != nullptr && function->arg0 != nullptr)
    throw std::runtime_error("a call block calls macros only");
  return node.jinja::call_statement::execute_impl(ctx);
}

value Run(jinja::set_statement& node, context& ctx, JinjaLimits& limits) {
  auto* member = jinja::cast_stmt<jinja::member_expression>(node.assignee);
  if (member == nullptr || node.val == nullptr) return node.jinja::set_statement::execute_impl(ctx);
  const auto* name = jinja::cast_stmt<jinja::identifier>(member->property);
  const value assigned = node.val->execute(ctx);
  const value object = member->object->execute(ctx);
  if (member->computed || name == nullptr || !jinja::is_val<jinja::value_object>(object)) {
    throw std::runtime_error("only members of a namespace can be set");
  }
  limits.CheckInsert(object, assigned);
  object->insert(jinja::mk_val<jinja::value_string>(name->val), assigned);
  return jinja::mk_val<jinja::value_undefined>();
}

// The engine's node, which also keeps to the limits.
template <class Node>
struct Bounded final : Node {
  Bounded(Node&& node, JinjaLimits* limits) : Node(std::move(node)), limits(limits) {}

  value execute_impl(context& ctx) override {
    const Call call(limits);
    limits->SpendStep();
    value result = Run(static_cast<Node&>(*this), ctx, *limits);
    limits->Measure(result);
    return result;
  }
  JinjaLimits* const limits;
};

// The name of the filter or function that an expression ends with; empty if there is none.
std::string MadeBy(const statement_ptr& node) {
  const jinja::statement* named = nullptr;
  if (const auto* filter = jinja::cast_stmt<jinja::filter_expression>(node)) {
    const auto* call = jinja::cast_stmt<jinja::call_expression>(filter->filter);
    named = call == nullptr ? filter->filter.get() : call->callee.get();
  } else if (const auto* call = jinja::cast_stmt<jinja::call_expression>(node)) {
    const auto* member = jinja::cast_stmt<jinja::member_expression>(call->callee);
    named = member == nullptr ? call->callee.get() : member->property.get();
  }
  const auto* name = dynamic_cast<const jinja::identifier*>(named);
  return name == nullptr ? "" : name->val;
}

// A statement of a body, whose value becomes text.
struct Output final : jinja::statement {
  Output(statement_ptr node, JinjaLimits* limits) : node(std::move(node)), limits(limits) {
    pos = this->node->pos;
  }
  value execute_impl(context& ctx) override {
    limits->SpendStep();
    value result = node->execute(ctx);
    limits->Measure(result);
    if (dynamic_cast<const jinja::expression*>(node.get()) == nullptr) return result;
    if (!IsText(result)) CheckWrittenOut(MadeBy(node));
    return Printed(result);
  }
  const statement_ptr node;
  JinjaLimits* const limits;
};

// Replaces nodes by bounded ones.
class Nodes {
 public:
  explicit Nodes(JinjaLimits* limits) : limits_(limits) {}

  void BoundBody(jinja::statements& body) {
    for (statement_ptr& statement : body) {
      Bound(statement);
      statement = std::make_unique<Output>(std::move(statement), limits_);
    }
  }

  uint64_t variables() const { return variables_; }

 private:
  void Bound(statement_ptr& node);
  void Bound(jinja::statements& nodes) {
    for (statement_ptr& node : nodes) Bound(node);
  }
  void Bound(std::vector<std::pair<statement_ptr, statement_ptr>>& pairs) {
    for (auto& [key, element] : pairs) {
      Bound(key);
      Bound(element);
    }
  }
  template <class Node, class... Children>
  bool Replace(statement_ptr& node, Children Node::*... children) {
    auto* const found = dynamic_cast<Node*>(node.get());
    if (found == nullptr) return false;
    (Bound(found->*children), ...);
    const size_t pos = found->pos;
    node = std::make_unique<Bounded<Node>>(std::move(*found), limits_);
    node->pos = pos;
    return true;
  }

  JinjaLimits* const limits_;
  uint64_t variables_ = 0;
};

void Nodes::Bound(statement_ptr& node) {
  if (node == nullptr) return;
  // Bodies first. Only their statements become Outputs, since the engine may inspect the types of all others.
  if (auto* found = jinja::cast_stmt<jinja::if_statement>(node))
    BoundBody(found->body), BoundBody(found->alternate);
  if (auto* found = jinja::cast_stmt<jinja::for_statement>(node))
    BoundBody(found->body), BoundBody(found->default_block);
  if (auto* found = jinja::cast_stmt<jinja::set_statement>(node)) BoundBody(found->body), ++variables_;
  if (auto* found = jinja::cast_stmt<jinja::macro_statement>(node)) {
    BoundBody(found->body);
    variables_ += 1 + found->args.size();
  }
  if (auto* found = jinja::cast_stmt<jinja::call_statement>(node)) BoundBody(found->body);
  if (auto* found = jinja::cast_stmt<jinja::filter_statement>(node)) BoundBody(found->body);
  // Identifiers, literals and the like stay. So do slices, whose type the engine inspects, not their bounds.
  if (auto* found = jinja::cast_stmt<jinja::slice_expression>(node)) {
    Bound(found->start_expr), Bound(found->stop_expr), Bound(found->step_expr);
  } else {
    using namespace jinja;
    Replace(node, &member_expression::object, &member_expression::property) ||
        Replace(node, &if_statement::test) || Replace(node, &for_statement::iterable) ||
        Replace(node, &set_statement::assignee, &set_statement::val) ||
        Replace(node, &macro_statement::args) ||
        Replace(node, &call_statement::call, &call_statement::caller_args) ||
        Replace(node, &filter_statement::filter) ||
        Replace(node, &call_expression::callee, &call_expression::args) ||
        Replace(node, &array_literal::val) || Replace(node, &tuple_literal::val) ||
        Replace(node, &object_literal::val) ||
        Replace(node, &binary_expression::left, &binary_expression::right) ||
        Replace(node, &filter_expression::operand, &filter_expression::filter) ||
        Replace(node, &select_expression::lhs, &select_expression::test) ||
        Replace(node, &test_expression::operand, &test_expression::test) ||
        Replace(node, &unary_expression::argument) || Replace(node, &keyword_argument_expression::val) ||
        Replace(node, &spread_expression::argument) ||
        Replace(node, &ternary_expression::condition, &ternary_expression::true_expr,
                &ternary_expression::false_expr);
  }
}

}  // namespace

uint64_t BoundNodes(jinja::statements& body, JinjaLimits* limits) {
  Nodes nodes(limits);
  nodes.BoundBody(body);
  return nodes.variables();
}

}  // namespace outrider
