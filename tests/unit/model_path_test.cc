#include "common/gguf/model_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "bench/temporary_folder.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;

constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

// A folder of models, which is also the home directory.
class FindModelTest : public testing::Test {
 protected:
  FindModelTest() {
    for (const char* variable : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(variable);
    setenv("HOME", folder_.path().c_str(), 1);
  }

  std::string PathOf(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }

  void Write(const std::string& name, const std::string& content = "") const {
    fs::create_directories(fs::path(PathOf(name)).parent_path());
    std::ofstream(PathOf(name)) << content;
  }

  // Writes a repository's file as the cache has it, behind a link. Returns its path.
  std::string Cache(const std::string& file, const std::string& cache = ".cache/huggingface/hub",
                    const std::string& revision = "main") const {
    const std::string repository = cache + "/models--org--a-model";
    Write(repository + "/refs/" + revision, kCommit);
    Write(repository + "/blobs/hash");
    const std::string path = absl::StrCat(repository, "/snapshots/", kCommit, "/", file);
    fs::create_directories(fs::path(PathOf(path)).parent_path());
    fs::create_symlink(PathOf(repository + "/blobs/hash"), PathOf(path));
    return PathOf(path);
  }

  // The path of the model that is found, or the error, with "FOLDER" for the folder.
  std::string Found(const std::string& name, absl::string_view file = "config.json") const {
    const absl::StatusOr<std::string> model = FindModel(name, file);
    std::string said = model.ok() ? *model : std::string(model.status().message());
    for (size_t at; (at = said.find(folder_.path())) != std::string::npos;) {
      said.replace(at, folder_.path().size(), "FOLDER");
    }
    return said;
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(FindModelTest, AFolderWithItsFileIsAModelWhateverElseIsInIt) {
  for (const char* name : {"m/config.json", "m/model.safetensors", "m/a.gguf"}) Write(name);
  EXPECT_EQ(Found(PathOf("m")), "FOLDER/m");
  Write("t/tokenizer.json");
  EXPECT_EQ(Found(PathOf("t"), "tokenizer.json"), "FOLDER/t");
}

TEST_F(FindModelTest, AFileIsAModelByItsName) {
  Write("a.gguf");
  Write("b.GGUF");
  Write("c.bin");
  EXPECT_EQ(Found(PathOf("a.gguf")), "FOLDER/a.gguf");
  EXPECT_EQ(Found(PathOf("b.GGUF")), "FOLDER/b.GGUF");
  EXPECT_EQ(Found(PathOf("c.bin")), "no model at FOLDER/c.bin (neither a folder nor a GGUF file)");
}

TEST_F(FindModelTest, LayersAndTheRestAreEachFound) {
  Write("d/layers.gguf");
  Write("m/whole.gguf");
  Write("t/config.json");
  EXPECT_EQ(Found(absl::StrCat(PathOf("d/layers.gguf"), "+", PathOf("m"))),
            "FOLDER/d/layers.gguf+FOLDER/m/whole.gguf");
  EXPECT_THAT(Found(absl::StrCat(PathOf("d/layers.gguf"), "+", PathOf("t"))),
              HasSubstr("t is no GGUF file)"));
  EXPECT_THAT(Found(absl::StrCat(PathOf("d/none.gguf"), "+", PathOf("m"))),
              HasSubstr("no model at FOLDER/d/none.gguf"));
}

TEST_F(FindModelTest, TheFirstShardStandsForAllAndIsNamedWhereAnotherWas) {
  Write("a-00001-of-00002.gguf");
  Write("a-00002-of-00002.gguf");
  EXPECT_EQ(Found(PathOf("a-00001-of-00002.gguf")), "FOLDER/a-00001-of-00002.gguf");
  EXPECT_EQ(Found(PathOf("a-00002-of-00002.gguf")),
            "no model at FOLDER/a-00002-of-00002.gguf (a later shard of one; name the first: "
            "FOLDER/a-00001-of-00002.gguf)");
  // Names that only look like those of shards.
  for (const char* name : {"-0002-of-00002.gguf", "b-00002-of-0000x.gguf", "b_00002-of-00002.gguf"}) {
    Write(name);
    EXPECT_EQ(Found(PathOf(name)), absl::StrCat("FOLDER/", name));
  }
}

TEST_F(FindModelTest, AFolderWithOneFileIsThatFileAndShardsAreOne) {
  Write("one/a.gguf");
  Write("one/README.md");
  EXPECT_EQ(Found(PathOf("one")), "FOLDER/one/a.gguf");
  for (const char* shard : {"3", "1", "2"}) Write(absl::StrCat("shards/a-0000", shard, "-of-00003.gguf"));
  EXPECT_EQ(Found(PathOf("shards")), "FOLDER/shards/a-00001-of-00003.gguf");
}

TEST_F(FindModelTest, AConfigurationBesideAFileIsAFoldersOnlyWithItsWeights) {
  Write("both/config.json");
  EXPECT_EQ(Found(PathOf("both")), "FOLDER/both") << "loading says what is missing";
  Write("both/a.gguf");
  EXPECT_EQ(Found(PathOf("both")), "FOLDER/both/a.gguf");
  Write("both/model.safetensors.index.json");
  EXPECT_EQ(Found(PathOf("both")), "FOLDER/both");
}

TEST_F(FindModelTest, AFolderWithSeveralListsThemAndOneWithoutAnySaysSo) {
  for (const char* name : {"b.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"}) {
    Write(absl::StrCat("several/", name));
  }
  EXPECT_EQ(Found(PathOf("several")),
            "no model at FOLDER/several (it has several; name one of them: a-00001-of-00002.gguf, b.gguf)");
  Write("none/README.md");
  EXPECT_EQ(Found(PathOf("none")), "no model at FOLDER/none (it has no config.json and no GGUF file)");
  EXPECT_TRUE(absl::IsNotFound(FindModel(PathOf("none")).status()));
}

TEST_F(FindModelTest, ARepositoryIsFoundInTheCacheByItsNameRevisionAndCommit) {
  const std::string path = Cache("config.json");
  const std::string snapshot = fs::path(path).parent_path().string();
  EXPECT_EQ(*FindModel("org/a-model"), snapshot);
  EXPECT_EQ(*FindModel("org/a-model@main"), snapshot);
  EXPECT_EQ(*FindModel(absl::StrCat("org/a-model@", kCommit)), snapshot);
  EXPECT_THAT(Found("org/a-model@v2"), EndsWith("hf download org/a-model --revision v2)"));
  Write(".cache/huggingface/hub/models--org--a-model/refs/refs/pr/1", absl::StrCat(kCommit, "\n"));
  EXPECT_EQ(*FindModel("org/a-model@refs/pr/1"), snapshot);
}

TEST_F(FindModelTest, AFileOfARepositoryKeepsItsNameThoughItIsALink) {
  const std::string path = Cache("quantised/a.gguf");
  EXPECT_EQ(*FindModel("org/a-model:quantised/a.gguf"), path);
  EXPECT_EQ(*FindModel(absl::StrCat("org/a-model@", kCommit, ":quantised/a.gguf")), path);
  const std::string only = Cache("b.gguf");
  EXPECT_EQ(*FindModel("org/a-model"), only);
  Cache("c.gguf");
  EXPECT_EQ(Found("org/a-model"),
            "no model at org/a-model (it has several; name one of them: b.gguf, c.gguf)");
}

TEST_F(FindModelTest, TheVariablesOfTheCacheCountInTheirOrder) {
  const std::string home = Cache("a.gguf");
  EXPECT_EQ(*FindModel("org/a-model"), home);
  setenv("XDG_CACHE_HOME", PathOf("xdg").c_str(), 1);
  EXPECT_FALSE(FindModel("org/a-model").ok());
  const std::string xdg = Cache("a.gguf", "xdg/huggingface/hub");
  EXPECT_EQ(*FindModel("org/a-model"), xdg);
  setenv("HF_HOME", PathOf("hf").c_str(), 1);
  EXPECT_FALSE(FindModel("org/a-model").ok());
  const std::string hf = Cache("a.gguf", "hf/hub");
  EXPECT_EQ(*FindModel("org/a-model"), hf);
  setenv("HF_HUB_CACHE", PathOf("cache").c_str(), 1);
  EXPECT_FALSE(FindModel("org/a-model").ok());
  const std::string cache = Cache("a.gguf", "cache");
  EXPECT_EQ(*FindModel("org/a-model"), cache);
  setenv("HF_HUB_CACHE", "", 1);
  EXPECT_EQ(*FindModel("org/a-model"), hf) << "an empty one is none";
}

TEST_F(FindModelTest, WhatIsNotThereComesWithTheCommandThatFetchesIt) {
  const std::string how = " (neither here nor in Hugging Face's cache; to fetch it: hf download org/a-model";
  const auto expected = [&](const std::string& name, const std::string& options) {
    return absl::StrCat("no model at ", name, how, options, ")");
  };
  for (const bool has_another_file : {false, true}) {
    if (has_another_file) Cache("README.md");
    EXPECT_EQ(Found("org/a-model"), expected("org/a-model", ""));
    EXPECT_EQ(Found("org/a-model@v2:a.gguf"), expected("org/a-model@v2:a.gguf", " --revision v2 a.gguf"));
    EXPECT_EQ(Found("org/a-model:a-00001-of-00002.gguf"),
              expected("org/a-model:a-00001-of-00002.gguf", " --include 'a-*-of-00002.gguf'"));
  }
  EXPECT_EQ(Found("org/a-model:a-00002-of-00002.gguf"),
            "no model at org/a-model:a-00002-of-00002.gguf (a later shard of one; name the first: "
            "org/a-model:a-00001-of-00002.gguf)");
}

TEST_F(FindModelTest, ALinkThatLeadsNowhereIsNotThere) {
  fs::remove(fs::canonical(Cache("a.gguf")));
  EXPECT_THAT(Found("org/a-model:a.gguf"), EndsWith("hf download org/a-model a.gguf)"));
}

TEST_F(FindModelTest, AnythingElseIsNoName) {
  for (const char* name : {"", "/nowhere", "model", "./model", "../a/model", "a/b/c", "org/a model", "org/",
                           "/model", "org/a-model:Q4_0", "org/a-model:"}) {
    EXPECT_EQ(Found(name),
              absl::StrCat("no model at ", name,
                           " (no such file or folder, and not ORG/NAME[@REVISION][:FILE.gguf])"));
  }
}

TEST_F(FindModelTest, APathThatExistsComesBeforeTheCache) {
  Cache("a.gguf");
  Write("org/a-model/config.json");
  const fs::path before = fs::current_path();
  fs::current_path(PathOf(""));
  EXPECT_EQ(Found("org/a-model"), "org/a-model");
  fs::current_path(before);
}

TEST_F(FindModelTest, AModelIsCalledByItsFolderFileOrRepository) {
  fs::create_directories(PathOf("Llama-3"));
  EXPECT_EQ(ModelName(PathOf("Llama-3")), "Llama-3");
  EXPECT_EQ(ModelName(PathOf("Llama-3/")), "Llama-3");
  fs::create_symlink("Llama-3", PathOf("link"));
  EXPECT_EQ(ModelName(PathOf("link")), "Llama-3");
  EXPECT_EQ(ModelName(PathOf("Llama-3.Q4_1.gguf")), "Llama-3.Q4_1");
  EXPECT_EQ(ModelName(PathOf("Llama-3-00001-of-00002.gguf")), "Llama-3");
  EXPECT_EQ(ModelName(fs::path(Cache("config.json")).parent_path().string()), "org/a-model");
  EXPECT_EQ(ModelName(Cache("a.gguf")), "a");
  EXPECT_EQ(ModelName("d/draft.gguf+m/whole.gguf"), "draft");
}

TEST(FileOf, IsInTheFolderOrTheModelItself) {
  EXPECT_EQ(FileOf("m", "tokenizer.json"), "m/tokenizer.json");
  EXPECT_EQ(FileOf("m.gguf", "tokenizer.json"), "m.gguf");
}

TEST(IsGguf, SaysTheEndOfTheNameInAnyCase) {
  EXPECT_TRUE(IsGguf("a/b.gguf"));
  EXPECT_TRUE(IsGguf("B.GGUF"));
  EXPECT_FALSE(IsGguf("a.gguf/b"));
  EXPECT_FALSE(IsGguf("gguf"));
}

}  // namespace
}  // namespace outrider
