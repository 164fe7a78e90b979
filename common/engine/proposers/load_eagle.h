// Loads EAGLE (eagle.h): the layouts of its authors' releases, and ours.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/engine/decoder/decoder_spec.h"
#include "common/engine/decoder/field_reader.h"
#include "common/engine/proposers/head_folder.h"
#include "common/engine/proposers/proposer.h"

namespace outrider {

// The layer as a decoder. INVALID_ARGUMENT, naming file and field.
absl::StatusOr<DecoderSpec> ReadEagleSpec(FieldReader& fields, const DecoderSpec& target);

// Errors are those of LoadProposers.
absl::StatusOr<std::unique_ptr<Proposer>> LoadEagle(const HeadFolder& folder);

}  // namespace outrider
