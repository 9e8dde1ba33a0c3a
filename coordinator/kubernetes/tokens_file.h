// The file of --kubernetes-tokens: which service accounts of a Kubernetes cluster may call, and whom to ask about their
// tokens.
#ifndef TACC_COORDINATOR_KUBERNETES_TOKENS_FILE_H_
#define TACC_COORDINATOR_KUBERNETES_TOKENS_FILE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "identity/principal.h"

namespace tacc::coordinator {

struct KubernetesTokens {
  std::string api_server = "https://kubernetes.default.svc";
  std::string audience = "tacc-coordinator";  // That tokens must be for.
  // The coordinator's own, as a pod has them.
  std::string token_file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
  std::string ca_file = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
  std::map<std::string, identity::Principal> service_accounts;  // By NAMESPACE/NAME.
};

// InvalidArgument: FILE:LINE:COLUMN and what to do.
absl::StatusOr<KubernetesTokens> ReadKubernetesTokens(const std::string& path);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_KUBERNETES_TOKENS_FILE_H_
