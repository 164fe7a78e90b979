#include "common/engine/proposers/head_folder.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/engine/decoder/tensor_source.h"

namespace outrider {

int ReadInner(FieldReader& fields) {
  const int inner = fields.Int("intermediate_size", 2, 1 << 24);
  if (inner % 2 != 0) fields.Fail("intermediate_size", "is odd: ", inner);
  return inner;
}

void CheckSizes(FieldReader& fields, const DecoderConfig& target) {
  const std::pair<const char*, int> sizes[] = {{"hidden_size", target.hidden_size},
                                               {"target_hidden_size", target.hidden_size},
                                               {"vocab_size", target.vocab_size}};
  for (const auto& [name, wanted] : sizes) {
    if (!fields.Has(name)) continue;
    if (const int size = fields.Int(name, 1); size != wanted && fields.status().ok()) {
      fields.Fail(name, size, ", but the target's is ", wanted);
    }
  }
}

HeadWeights::HeadWeights(const HeadFolder& folder) : model_(folder.target.model) {
  absl::StatusOr<SafeTensors> opened = SafeTensors::Open(folder.dir);
  status_ = opened.status();
  if (opened.ok()) tensors_ = *std::move(opened);
}

std::vector<float> HeadWeights::Values(const std::string& name, const std::vector<int64_t>& shape) {
  const TensorView view = tensors_.Get(name, shape, status_);
  return status_.ok() ? AllElements(view) : std::vector<float>();
}

std::vector<TokenId> HeadWeights::Ids(const std::string& name, int64_t count, int vocab) {
  if (!status_.ok()) return {};
  const absl::StatusOr<absl::string_view> bytes = tensors_.GetBytes(name, "I64", {count});
  status_ = bytes.status();
  if (!status_.ok()) return {};
  if (count == 0) status_ = tensors_.Refuse(name, "names no token");
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    std::memcpy(&offset, bytes->data() + i * 8, sizeof(offset));
    if (offset < -i || offset >= vocab - i) {
      status_ = tensors_.Refuse(
          name, absl::StrCat("offset ", offset, " of token ", i, " leads out of [0, ", vocab, ")"));
      return {};
    }
    const TokenId id = static_cast<TokenId>(i + offset);
    if (!ids.empty() && id <= ids.back()) {
      status_ = tensors_.Refuse(
          name, absl::StrCat("token ", i, " is ", id, ", after ", ids.back(), ": they must ascend"));
      return {};
    }
    ids.push_back(id);
  }
  return ids;
}

std::unique_ptr<Matrix> HeadWeights::Load(const absl::StatusOr<TensorView>& view) {
  if (status_.ok()) status_ = view.status();
  if (!status_.ok()) return nullptr;
  absl::StatusOr<std::unique_ptr<Matrix>> matrix = model_.LoadMatrix(*view);
  status_ = matrix.status();
  return matrix.ok() ? *std::move(matrix) : nullptr;
}

}  // namespace outrider
