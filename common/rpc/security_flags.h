// CLI11 flags for TLS and tokens.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/rpc/credentials.h"

namespace outrider {

// `prefix` starts the names: "tls" defines --tls-ca, --tls-cert, --tls-key and --tls-token-file.
inline std::vector<CLI::Option*> DefineChannelSecurityFlags(CLI::App& app, const std::string& prefix,
                                                            const std::string& server,
                                                            ChannelSecurity& security) {
  return {app.add_option(
              "--" + prefix + "-ca", security.ca,
              "PEM file; the certificate of " + server + " must be signed by one of these; empty: no TLS"),
          app.add_option("--" + prefix + "-cert", security.cert,
                         "PEM file with a certificate to show to " + server),
          app.add_option("--" + prefix + "-key", security.key, "PEM file with its private key"),
          app.add_option("--" + prefix + "-token-file", security.token_file,
                         "bearer token for " + server + ", in the first line of this file")};
}

// Defines --tls-cert, --tls-key, --tls-client-ca and --token-file.
inline void DefineServerSecurityFlags(CLI::App& app, ServerSecurity& security) {
  app.add_option("--tls-cert", security.cert,
                 "PEM file with the certificate chain to serve with; empty: no TLS");
  app.add_option("--tls-key", security.key, "PEM file with its private key");
  app.add_option("--tls-client-ca", security.client_ca,
                 "PEM file; clients must have a certificate that is signed by one of these");
  app.add_option("--token-file", security.token_file,
                 "clients must send one of these bearer tokens, one a line; needs TLS");
}

}  // namespace outrider
