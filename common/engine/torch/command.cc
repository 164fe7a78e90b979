#include "common/engine/torch/command.h"

#include "absl/status/status.h"

namespace outrider::libtorch {
namespace {

// The first number of a command.
enum Kind : int64_t { kForward = 1, kCopy = 2, kMove = 3 };

// Reads numbers one after the other. Returns 0 after the last.
class Reader {
 public:
  explicit Reader(absl::Span<const int64_t> numbers) : rest_(numbers) {}

  template <class T = int64_t>
  T Next() {
    if (rest_.empty()) {
      is_short_ = true;
      return {};
    }
    const int64_t number = rest_.front();
    rest_.remove_prefix(1);
    return static_cast<T>(number);
  }
  // Reads a list, which follows its length.
  template <class T>
  std::vector<T> List() {
    const size_t count = Next<size_t>();
    if (count > rest_.size()) {
      is_short_ = true;
      return {};
    }
    std::vector<T> list(count);
    for (T& item : list) item = Next<T>();
    return list;
  }

  // Whether exactly the given numbers have been read.
  bool fits() const { return !is_short_ && rest_.empty(); }
  bool ends() const { return is_short_ || rest_.empty(); }

 private:
  absl::Span<const int64_t> rest_;
  bool is_short_ = false;
};

template <class T>
void AppendList(absl::Span<const T> list, std::vector<int64_t>& numbers) {
  numbers.push_back(static_cast<int64_t>(list.size()));
  numbers.insert(numbers.end(), list.begin(), list.end());
}

}  // namespace

absl::StatusOr<Command> Command::Decode(absl::Span<const int64_t> numbers) {
  Command command;
  Reader reader(numbers);
  const int64_t kind = reader.Next();
  if (kind == kCopy) {
    command.from = reader.Next<BlockId>();
    command.to = reader.Next<BlockId>();
  }
  if (kind == kMove) {
    command.blocks = reader.List<BlockId>();
    do {
      const int from = reader.Next<int>();
      command.moves.push_back({.from = from, .to = reader.Next<int>()});
    } while (!reader.ends());
  }
  while (kind == kForward && !reader.ends()) {
    SequenceRows sequence;
    sequence.position = reader.Next<int>();
    sequence.logit_rows = reader.Next<int>();
    sequence.tree_begin = reader.Next<int>();
    // A list keeps its place in memory when the list of lists grows.
    for (absl::Span<const int32_t>* list : {&sequence.tokens, &sequence.blocks, &sequence.parents}) {
      *list = command.lists.emplace_back(reader.List<int32_t>());
    }
    command.batch.push_back(sequence);
  }
  const bool is_known = kind == kCopy || kind == kMove || (kind == kForward && !command.batch.empty());
  if (!is_known || !reader.fits()) {
    return absl::InvalidArgumentError("rank 0 sent something that is not a command");
  }
  return command;
}

std::vector<int64_t> EncodeForward(absl::Span<const SequenceRows> batch) {
  std::vector<int64_t> numbers = {kForward};
  for (const SequenceRows& sequence : batch) {
    numbers.push_back(sequence.position);
    numbers.push_back(sequence.logit_rows);
    numbers.push_back(sequence.tree_begin);
    AppendList(sequence.tokens, numbers);
    AppendList(sequence.blocks, numbers);
    AppendList(sequence.parents, numbers);
  }
  return numbers;
}

std::vector<int64_t> EncodeMoves(absl::Span<const BlockId> blocks, absl::Span<const SlotMove> moves) {
  std::vector<int64_t> numbers = {kMove};
  AppendList(blocks, numbers);
  for (const SlotMove& move : moves) numbers.insert(numbers.end(), {move.from, move.to});
  return numbers;
}

std::vector<int64_t> EncodeCopy(BlockId from, BlockId to) { return {kCopy, from, to}; }

}  // namespace outrider::libtorch
