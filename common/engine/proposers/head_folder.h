// A folder of heads, for the loaders of proposers (load.h).
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

// A folder, its config and its target.
struct HeadFolder {
  const std::string& dir;
  FieldReader& fields;  // of config.json
  const ProposerTarget& target;

  std::string config() const { return dir + "/config.json"; }
  int hidden() const { return target.decoder.hidden_size; }
  int vocab() const { return target.decoder.vocab_size; }
};

// Reads the inner size, which must be even for Matrix::Multiply.
int ReadInner(FieldReader& fields);

// Checks that the sizes that the config has are the target's.
void CheckSizes(FieldReader& fields, const DecoderSpec& target);

// Reads tensors of a folder for a model. Keeps the first error, which names file and tensor; later results
// are meaningless.
class HeadWeights {
 public:
  // Both must outlive it.
  HeadWeights(const SafeTensors& tensors, Model& model) : tensors_(tensors), model_(model) {}

  bool Has(const std::string& name) const { return tensors_.Find(name) != nullptr; }
  // 0 if there is no such tensor.
  int64_t RowsOf(const std::string& name) const;

  std::vector<float> Values(const std::string& name, const std::vector<int64_t>& shape);
  // The ids i + offset[i] of int64 offsets [count]; they must ascend below `vocab`.
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
