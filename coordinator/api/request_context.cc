#include "coordinator/api/request_context.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/obs/tracer.h"
#include "common/rpc/address.h"
#include "common/rpc/credentials.h"
#include "common/rpc/fresh_bits.h"
#include "common/spec/check.h"

namespace outrider {
namespace {

constexpr size_t kMaxRequestId = 128;

absl::string_view Find(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? absl::string_view()
                                 : absl::string_view(found->second.data(), found->second.size());
}

// gRPC knows the address of every connection, but has none for a channel within the process.
bool IsInProcess(const std::string& peer) { return peer == "unknown"; }

std::string KeyedHash(absl::string_view bytes, absl::string_view key) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  OUTRIDER_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash.data(),
                      &size));
  return std::string(reinterpret_cast<const char*>(hash.data()), size);
}

}  // namespace

v1::RequestContext ReadRequestContext(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  v1::RequestContext context;
  const absl::string_view id = Find(metadata, kRequestIdKey);
  const bool is_valid =
      !id.empty() && id.size() <= kMaxRequestId && std::ranges::all_of(id, absl::ascii_isgraph);
  context.set_request_id(is_valid ? std::string(id)
                                  : absl::StrCat(absl::Hex(FreshBits(), absl::kZeroPad16),
                                                 absl::Hex(FreshBits(), absl::kZeroPad16)));
  const absl::string_view parent = Find(metadata, kTraceparentKey);
  if (ParseTraceparent(parent)) context.set_traceparent(std::string(parent));
  return context;
}

uint64_t CacheSalt(const std::string& client, const std::string& key) {
  uint64_t salt = 0;
  std::memcpy(&salt, KeyedHash(client, key).data(), sizeof(salt));
  return salt;
}

std::string ClientWithToken(absl::string_view authorization) {
  return absl::StrCat("token:", absl::BytesToHexString(KeyedHash(BearerToken(authorization), "client")));
}
std::string ClientWithCertificate(const std::string& name) { return absl::StrCat("certificate:", name); }
std::string ClientAtHost(absl::string_view host) {
  // An IPv6 listener sees an IPv4 client's address with this prefix.
  constexpr absl::string_view kMapped = "::ffff:";
  if (absl::StartsWith(host, kMapped) && absl::StrContains(host, '.')) host.remove_prefix(kMapped.size());
  return absl::StrCat("host:", host);
}
std::string ClientAtPeer(absl::string_view peer) {
  absl::string_view address = peer;
  if (!absl::ConsumePrefix(&address, "ipv4:") && !absl::ConsumePrefix(&address, "ipv6:")) {
    return ClientAtHost(peer);
  }
  // The peer string is a URI: it escapes brackets, and the percent sign before a zone.
  const std::optional<HostPort> parts =
      ParseHostPort(absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}}));
  return ClientAtHost(parts ? parts->host : peer);
}

std::string ReadClient(const grpc::CallbackServerContext& context, bool checks_tokens) {
  const auto& metadata = context.client_metadata();
  const absl::string_view token = Find(metadata, "authorization");
  if (checks_tokens && !token.empty()) return ClientWithToken(token);
  const std::string peer = context.peer();
  if (const absl::string_view named = Find(metadata, kClientKey); IsInProcess(peer) && !named.empty()) {
    return std::string(named);
  }
  if (const auto auth = context.auth_context(); auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) return ClientWithCertificate(std::string(names[0].data(), names[0].size()));
  }
  return ClientAtPeer(peer);
}

}  // namespace outrider
