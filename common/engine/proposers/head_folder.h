// A folder of heads as the loaders of proposers read it (load.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/decoder/safetensors.h"
#include "common/engine/model.h"
#include "common/engine/proposers/load.h"
#include "common/spec/types.h"

namespace outrider {

// More tokens than anybody asks for.
inline constexpr int kNoLimit = 1 << 10;

// A folder and what was read of it.
struct HeadFolder {
  const std::string& dir;
  FieldReader& fields;  // of config.json
  const ProposerTarget& target;

  std::string config() const { return dir + "/config.json"; }
  int hidden() const { return target.decoder.hidden_size; }
  int vocab() const { return target.decoder.vocab_size; }
};

// Even, as the rows that a matrix multiplies have to be.
int ReadInner(FieldReader& fields);

// Whether sizes that the config has are the target's.
void CheckSizes(FieldReader& fields, const DecoderSpec& target);

// Tensors of a folder for a model. Keeps the first error, which names file and tensor; after it, what is read
// means nothing.
class HeadWeights {
 public:
  // Both must outlive it.
  HeadWeights(const SafeTensors& tensors, Model& model) : tensors_(tensors), model_(model) {}

  bool Has(const std::string& name) const { return tensors_.Find(name) != nullptr; }
  // 0 if there is no such tensor.
  int64_t RowsOf(const std::string& name) const;

  std::vector<float> Values(const std::string& name, const std::vector<int64_t>& shape);
  // The ids i + offset[i], which ascend below `vocab`, of int64 offsets [count].
  std::vector<TokenId> Ids(const std::string& name, int64_t count, int vocab);
  std::unique_ptr<Matrix> Load(const std::string& name, int64_t n, int64_t k);
  std::unique_ptr<Matrix> Load(const absl::StatusOr<TensorView>& view);

  const absl::Status& status() const { return status_; }

 private:
  const SafeTensors& tensors_;
  Model& model_;
  absl::Status status_;
};

}  // namespace outrider
