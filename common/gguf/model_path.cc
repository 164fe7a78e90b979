#include "common/gguf/model_path.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/spec/status.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

constexpr char kFirstShard[] = "-00001-of-";

// The index of the shard number in a path, such as "-00002-of-00005.gguf"; npos if the file is no shard.
size_t ShardNumber(absl::string_view path) {
  static constexpr absl::string_view kForm = "-00000-of-00000.gguf";
  const size_t begin = path.size() - kForm.size();
  bool fits = path.size() >= kForm.size();
  for (size_t i = 0; fits && i < kForm.size(); ++i) {
    fits = kForm[i] == '0' ? absl::ascii_isdigit(path[begin + i]) : path[begin + i] == kForm[i];
  }
  return fits ? begin : std::string::npos;
}

bool IsLaterShard(const std::string& path) {
  const size_t number = ShardNumber(path);
  return number != std::string::npos && path.compare(number, sizeof(kFirstShard) - 1, kFirstShard) != 0;
}

absl::Status NoModel(const std::string& name, const std::string& why) {
  return absl::NotFoundError(absl::StrCat("no model at ", name, " (", why, ")"));
}

// Finds the model in a folder. `name` is the name that the user gave, for messages.
absl::StatusOr<std::string> InFolder(const fs::path& folder, const std::string& name,
                                     absl::string_view file) {
  std::error_code error;
  std::vector<std::string> models;
  bool has_weights = false;
  for (fs::directory_iterator entry(folder, error), end; entry != end; entry.increment(error)) {
    const std::string model = entry->path().filename().string();
    if (IsGguf(model) && !IsLaterShard(model)) models.push_back(model);
    has_weights = has_weights || absl::StartsWith(model, "model.safetensors");
  }
  // Repositories of GGUF files may have a config.json, too.
  if (fs::exists(folder / std::string(file), error) && (models.empty() || has_weights))
    return folder.string();
  if (models.size() == 1) return (folder / models[0]).string();
  if (models.empty()) return NoModel(name, absl::StrCat("it has no ", file, " and no GGUF file"));
  std::sort(models.begin(), models.end());
  return Invalid("no model at ", name, " (it has several; name one of them: ", absl::StrJoin(models, ", "),
                 ")");
}

// ORG/NAME[@REVISION][:FILE.gguf]
struct HubName {
  std::string repository;
  std::string revision;
  std::string file;
};

std::optional<HubName> ParseHubName(const std::string& name) {
  const auto is_word = [](absl::string_view word) {
    return !word.empty() && word[0] != '.' && std::all_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isalnum(c) || absl::StrContains("-_.", c);
    });
  };
  const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits(':', 1));
  const std::pair<std::string, std::string> versioned = absl::StrSplit(parts.first, absl::MaxSplits('@', 1));
  const std::vector<std::string> words = absl::StrSplit(versioned.first, '/');
  const bool has_file = parts.first.size() < name.size();
  if (words.size() != 2 || !is_word(words[0]) || !is_word(words[1])) return std::nullopt;
  if (has_file && !IsGguf(parts.second)) return std::nullopt;
  return HubName{versioned.first, versioned.second, parts.second};
}

fs::path CacheFolder() {
  static constexpr std::pair<const char*, const char*> kPlaces[] = {{"HF_HUB_CACHE", ""},
                                                                    {"HF_HOME", "hub"},
                                                                    {"XDG_CACHE_HOME", "huggingface/hub"},
                                                                    {"HOME", ".cache/huggingface/hub"}};
  for (const auto& [variable, below] : kPlaces) {
    const char* const folder = std::getenv(variable);
    if (folder != nullptr && *folder != '\0') return fs::path(folder) / below;
  }
  return {};
}

// The folder in which the cache has the files of this revision, if it has them.
fs::path SnapshotOf(const HubName& hub) {
  const fs::path repository =
      CacheFolder() / absl::StrCat("models--", absl::StrReplaceAll(hub.repository, {{"/", "--"}}));
  const std::string revision = hub.revision.empty() ? "main" : hub.revision;
  std::string commit;
  // A revision without a file in refs may be a commit.
  if (!(std::ifstream(repository / "refs" / revision) >> commit)) commit = revision;
  return repository / "snapshots" / commit;
}

std::string HowToFetch(const HubName& hub) {
  std::string command = absl::StrCat("hf download ", hub.repository);
  if (!hub.revision.empty()) absl::StrAppend(&command, " --revision ", hub.revision);
  if (ShardNumber(hub.file) != std::string::npos) {
    absl::StrAppend(&command, " --include '", absl::StrReplaceAll(hub.file, {{kFirstShard, "-*-of-"}}), "'");
  } else if (!hub.file.empty()) {
    absl::StrAppend(&command, " ", hub.file);
  }
  return command;
}

}  // namespace

bool IsGguf(absl::string_view path) { return absl::EndsWithIgnoreCase(path, ".gguf"); }

std::optional<std::pair<std::string, std::string>> LayersAndFile(const std::string& path) {
  static constexpr absl::string_view kEnd = ".gguf";
  const size_t end = path.find(absl::StrCat(kEnd, "+"));
  if (end == std::string::npos) return std::nullopt;
  return std::pair(path.substr(0, end + kEnd.size()), path.substr(end + kEnd.size() + 1));
}

absl::StatusOr<std::string> FindModel(const std::string& name, absl::string_view file) {
  if (const auto parts = LayersAndFile(name)) {
    const std::string layers = OUTRIDER_TRY(FindModel(parts->first));
    const std::string rest = OUTRIDER_TRY(FindModel(parts->second));
    if (!IsGguf(rest)) return NoModel(name, absl::StrCat(rest, " is no GGUF file"));
    return absl::StrCat(layers, "+", rest);
  }
  if (IsLaterShard(name)) {
    std::string first = name;
    first.replace(ShardNumber(name), sizeof(kFirstShard) - 1, kFirstShard);
    return Invalid("no model at ", name, " (a later shard of one; name the first: ", first, ")");
  }
  std::error_code error;
  if (fs::is_directory(name, error)) return InFolder(name, name, file);
  if (fs::exists(name, error)) {
    if (IsGguf(name)) return name;
    return NoModel(name, "neither a folder nor a GGUF file");
  }
  const std::optional<HubName> hub = ParseHubName(name);
  if (!hub) return NoModel(name, "no such file or folder, and not ORG/NAME[@REVISION][:FILE.gguf]");
  const fs::path snapshot = SnapshotOf(*hub);
  if (!hub->file.empty()) {
    // Links are not resolved: in the cache they lead to files that are named by their hash.
    const fs::path model = snapshot / hub->file;
    if (fs::exists(model, error)) return model.string();
  } else if (fs::is_directory(snapshot, error)) {
    const auto model = InFolder(snapshot, name, file);
    if (!absl::IsNotFound(model.status())) return model;
  }
  return NoModel(name,
                 absl::StrCat("neither here nor in Hugging Face's cache; to fetch it: ", HowToFetch(*hub)));
}

std::string FileOf(const std::string& model, absl::string_view file) {
  return IsGguf(model) ? model : absl::StrCat(model, "/", file);
}

std::string ModelName(const std::string& model) {
  if (const auto parts = LayersAndFile(model)) return ModelName(parts->first);
  if (IsGguf(model)) {
    const std::string file = fs::path(model).filename().string();
    return file.substr(0, std::min(ShardNumber(file), file.rfind('.')));
  }
  std::error_code error;
  fs::path folder = fs::weakly_canonical(model, error);
  if (!folder.has_filename()) folder = folder.parent_path();
  // A folder of the cache is named by its commit: models--ORG--NAME/snapshots/COMMIT.
  const fs::path parent = folder.parent_path();
  const std::string repository = parent.parent_path().filename().string();
  absl::string_view name = repository;
  const bool is_commit = parent.filename() == "snapshots" && absl::ConsumePrefix(&name, "models--");
  return is_commit ? absl::StrReplaceAll(name, {{"--", "/"}}) : folder.filename().string();
}

}  // namespace outrider
