#include "common/engine/cuda/matmul_choices.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/engine/cuda/layer_rows.h"
#include "common/engine/decoder/field_reader.h"
#include "common/spec/status.h"
#include "common/text/json.h"

namespace outrider::cuda {
namespace {

using Json = nlohmann::json;

// The names of MatmulLaunches in the file, in the order of the enum.
constexpr const char* kLaunches[] = {"pair", "few_only", "tiles"};

Json ToJson(const MatmulAlgorithm& algorithm) {
  Json words = Json::array();
  for (const uint64_t word : algorithm.words) words.push_back(absl::StrCat(absl::Hex(word)));
  return {{"config", algorithm.config}, {"words", std::move(words)}};
}

Json ToJson(const MatmulChoices& choices) {
  Json products = Json::array();
  for (const MatmulChoice& product : choices.products) {
    products.push_back({{"n", product.n},
                        {"k", product.k},
                        {"few_rows", ToJson(product.few_rows)},
                        {"many_rows", ToJson(product.many_rows)},
                        {"launches", kLaunches[static_cast<size_t>(product.launches)]}});
  }
  return {{"gpu", choices.gpu},
          {"cublas", choices.cublas},
          {"operand", choices.operand},
          {"products", std::move(products)}};
}

MatmulAlgorithm ReadAlgorithm(FieldReader& product, const char* name) {
  MatmulAlgorithm algorithm;
  if (!product.Has(name)) product.Fail(name, "is missing");
  if (!product.status().ok()) return algorithm;
  FieldReader fields = product.Nested(name);
  if (!fields.status().ok()) return algorithm;
  algorithm.config = fields.String("config", "");
  const Json words = fields.Has("words") ? fields.At("words") : Json();
  bool valid = words.is_array() && words.size() == algorithm.words.size();
  for (size_t i = 0; valid && i < words.size(); ++i) {
    valid = words[i].is_string() && absl::SimpleHexAtoi(words[i].get<std::string>(), &algorithm.words[i]);
  }
  if (!valid) fields.Fail("words", "is not a list of ", algorithm.words.size(), " hexadecimal numbers");
  return algorithm;
}

MatmulLaunches ReadLaunches(FieldReader& product) {
  const std::string name = product.String("launches", "");
  const auto* const found = std::find(std::begin(kLaunches), std::end(kLaunches), name);
  if (found == std::end(kLaunches)) {
    product.Fail("launches", "is none of ", absl::StrJoin(kLaunches, ", "));
    return MatmulLaunches::kPair;
  }
  return static_cast<MatmulLaunches>(found - std::begin(kLaunches));
}

absl::Status MismatchError(const std::string& path, absl::string_view what, absl::string_view written,
                           absl::string_view here) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": ", what, " was ", written, " when it was written and is ", here,
                   ": other bits would come out; remove the file to choose algorithms anew"));
}

}  // namespace

const MatmulChoice* MatmulChoices::Find(int n, int k) const {
  const auto found = std::find_if(products.begin(), products.end(), [&](const MatmulChoice& product) {
    return product.n == n && product.k == k;
  });
  return found == products.end() ? nullptr : &*found;
}

absl::StatusOr<std::optional<MatmulChoices>> ReadMatmulChoices(const std::string& path,
                                                               const MatmulChoices& here) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  const Json json = OUTRIDER_TRY(JsonObjectIn(path));
  FieldReader fields(path, json);
  MatmulChoices choices{.gpu = fields.String("gpu", ""),
                        .cublas = fields.Int("cublas", 0),
                        .operand = fields.String("operand", ""),
                        .products = {}};
  if (!fields.Has("products") || !fields.At("products").is_array()) fields.Fail("products", "is not a list");
  if (!fields.status().ok()) return fields.status();
  if (choices.gpu != here.gpu) return MismatchError(path, "the GPU", choices.gpu, here.gpu);
  if (choices.cublas != here.cublas) {
    return MismatchError(path, "cuBLASLt", absl::StrCat(choices.cublas), absl::StrCat(here.cublas));
  }
  if (choices.operand != here.operand) return MismatchError(path, "--dtype", choices.operand, here.operand);
  for (const Json& product : fields.At("products")) {
    if (!product.is_object()) {
      fields.Fail("products", "has something else than objects: ", DumpJson(product));
      break;
    }
    FieldReader reader(path, product);
    choices.products.push_back({.n = reader.Int("n", 1),
                                .k = reader.Int("k", 1),
                                .few_rows = ReadAlgorithm(reader, "few_rows"),
                                .many_rows = ReadAlgorithm(reader, "many_rows"),
                                .launches = ReadLaunches(reader)});
    fields.TakeError(reader);
  }
  if (!fields.status().ok()) return fields.status();
  return choices;
}

absl::Status WriteMatmulChoices(const std::string& path, const MatmulChoices& choices) {
  // Two servers may start at the same time, so each writes to a file of its own first.
  const std::string part = absl::StrCat(path, ".", getpid());
  std::ofstream file(part);
  file << DumpJson(ToJson(choices)) << "\n";
  file.close();
  if (file.good() && std::rename(part.c_str(), path.c_str()) == 0) return absl::OkStatus();
  std::remove(part.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

std::string InWords(const MatmulChoices& choices) {
  std::vector<std::string> products;
  for (const MatmulChoice& product : choices.products) {
    products.push_back(absl::StrCat(product.n, "x", product.k, ": ", product.few_rows.config));
    if (product.launches == MatmulLaunches::kTiles) {
      absl::StrAppend(&products.back(), ", ", kRowTile,
                      " rows at a time, as none gives a row the same bits in larger launches");
    } else if (product.launches == MatmulLaunches::kFewOnly) {
      absl::StrAppend(&products.back(), ", of many rows too, as none for these has the same bits");
    } else if (product.many_rows != product.few_rows) {
      absl::StrAppend(&products.back(), ", of many rows ", product.many_rows.config);
    }
  }
  return absl::StrCat("cuBLASLt ", choices.cublas, "; ", absl::StrJoin(products, "; "));
}

}  // namespace outrider::cuda
