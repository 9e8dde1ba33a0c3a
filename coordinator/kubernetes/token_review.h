// Asks a Kubernetes API server whose a token is (TokenReview of authentication.k8s.io/v1).
#ifndef TACC_COORDINATOR_KUBERNETES_TOKEN_REVIEW_H_
#define TACC_COORDINATOR_KUBERNETES_TOKEN_REVIEW_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/kubernetes/tokens_file.h"
#include "identity/cached_reviewer.h"

namespace tacc::coordinator {

// What the API server's answer (JSON) says of `token`. Unauthenticated: it is not good, not for the audience, or of a
// service account that may not call. Unavailable: that is no answer.
absl::StatusOr<identity::TokenReview> ReadTokenReview(const KubernetesTokens& tokens, const std::string& answer,
                                                      absl::string_view token);

// One call, over TLS that the file's CA has to have signed, of at most 5 s. Errors are in words without either token.
absl::StatusOr<identity::TokenReview> AskTokenReview(const KubernetesTokens& tokens, absl::string_view token);

// That, with what was found out kept for a while. InvalidArgument: the coordinator's own token or the CA cannot be
// read.
absl::StatusOr<std::shared_ptr<identity::TokenReviewer>> MakeTokenReviewer(const KubernetesTokens& tokens);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_KUBERNETES_TOKEN_REVIEW_H_
