// Finds the models that command lines name.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// Describes the names of models, for the help of flags.
inline constexpr char kModelNames[] =
    "a Hugging Face folder, a GGUF file, or ORG/NAME[@REVISION][:FILE.gguf] in Hugging Face's cache";

// Whether the path ends in ".gguf", in any case.
bool IsGguf(absl::string_view path);

// Splits LAYERS.gguf+FILE.gguf into the two files; nullopt for other paths.
std::optional<std::pair<std::string, std::string>> LayersAndFile(const std::string& path);

// Returns the path that loaders take: a folder that has `file`, or a GGUF file (the first of several shards).
// `name` is such a path, a folder with one GGUF file, ORG/NAME[@REVISION][:FILE.gguf] for a model in Hugging
// Face's cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME), or two names joined as LAYERS.gguf+FILE.gguf, which
// GgufFile::Open explains. A path that exists takes precedence. Fetches nothing. NOT_FOUND if there is no
// model, INVALID_ARGUMENT for several models or a later shard. The message is one line, "no model at NAME
// (...)", with the command that fetches a model from the hub.
absl::StatusOr<std::string> FindModel(const std::string& name, absl::string_view file = "config.json");

// The path of a file of such a model. For a GGUF model it is the GGUF file, which has the content of all.
std::string FileOf(const std::string& model, absl::string_view file);

// The name of such a model: that of its folder, file or layers, or its repository if it is a folder of the
// cache.
std::string ModelName(const std::string& model);

}  // namespace outrider
