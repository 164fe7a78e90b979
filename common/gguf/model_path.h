// How models are named on command lines.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace outrider {

// For the help of flags.
inline constexpr char kModelNames[] =
    "a Hugging Face folder, a GGUF file, or ORG/NAME[@REVISION][:FILE.gguf] in Hugging Face's cache";

// Whether the file's name says so.
bool IsGguf(absl::string_view path);

// Returns what loaders take: a folder that has `file`, or a GGUF file, the first if it is in several shards.
// `name` is one of these, a folder with one GGUF file, or ORG/NAME[@REVISION][:FILE.gguf], for either in
// Hugging Face's cache (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME); a path that exists comes first. Fetches
// nothing. NOT_FOUND, or INVALID_ARGUMENT for several models or another shard; in one line,
// "no model at NAME (...)", with the command that fetches a model from the hub.
absl::StatusOr<std::string> FindModel(const std::string& name, absl::string_view file = "config.json");

// Of such a model the path of one of its files: the GGUF file has the content of all.
std::string FileOf(const std::string& model, absl::string_view file);

// What such a model is called: by its folder or file, or by its repository if it is a folder of the cache.
std::string ModelName(const std::string& model);

}  // namespace outrider
