// Whose bearer tokens a coordinator takes: those of its own authority, and, if it has someone to ask, another
// service's.
#ifndef TACC_IDENTITY_AUTHENTICATOR_H_
#define TACC_IDENTITY_AUTHENTICATOR_H_

#include <ctime>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "identity/openssl_pointer.h"
#include "identity/principal.h"

namespace tacc::identity {

// Knows tokens of another service. Calls may come from several threads.
class TokenReviewer {
 public:
  virtual ~TokenReviewer() = default;
  // Whom the token is of; may wait for another machine. Unauthenticated: it is nobody's here. Unavailable: that cannot
  // be found out now.
  virtual absl::StatusOr<Principal> Review(absl::string_view token) = 0;
  // The same of a token that was reviewed a moment ago, without waiting.
  virtual absl::StatusOr<Principal> Recall(absl::string_view token) = 0;
};

class Authenticator {
 public:
  // Trusts the authorities in the folder's ca.crt, which it reads anew when it is replaced. `reviewer` may be null.
  Authenticator(std::string folder, std::shared_ptr<TokenReviewer> reviewer);

  // Who makes a call with that `authorization` header. Unauthenticated or Unavailable, in words without the token.
  absl::StatusOr<Principal> Authenticate(absl::string_view authorization);
  // The same of a header that has just passed, without waiting.
  absl::StatusOr<Principal> Recall(absl::string_view authorization);
  // Whether Authenticate may wait for another machine.
  bool MayWait() const { return reviewer_ != nullptr; }

 private:
  absl::StatusOr<Principal> ReadOwn(absl::string_view token);

  const std::string folder_;
  const std::shared_ptr<TokenReviewer> reviewer_;

  std::mutex mutex_;
  std::time_t keys_read_ = 0;  // Seconds since the epoch.
  std::shared_ptr<const std::vector<KeyPointer>> keys_;
};

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_AUTHENTICATOR_H_
