// Reviews of another service's tokens, of which each costs a call: what was found out is kept for a while, by the
// token's hash, and there are only so many in a second.
#ifndef TACC_IDENTITY_CACHED_REVIEWER_H_
#define TACC_IDENTITY_CACHED_REVIEWER_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "identity/authenticator.h"
#include "identity/principal.h"

namespace tacc::identity {

// Of a token that was good.
struct TokenReview {
  Principal principal;
  double expires = 0;  // Seconds since the epoch; infinity: it does not say.
};

class CachedReviewer : public TokenReviewer {
 public:
  struct Limits {
    double good_seconds = 300;  // For which a good token is kept, unless it expires before.
    double bad_seconds = 30;
    size_t max_kept = 1024;          // Of more the one that would be forgotten first is.
    double reviews_per_second = 10;  // And as many at once.
    size_t max_waiting = 32;         // Calls that wait for an answer, each of which holds a thread; more do not.
  };
  // `ask` may wait, and is called from several threads: Unauthenticated says that the token is bad, any other error
  // that this is not known. `now` is in seconds since the epoch.
  CachedReviewer(Limits limits, std::function<absl::StatusOr<TokenReview>(absl::string_view token)> ask,
                 std::function<double()> now);

  absl::StatusOr<Principal> Review(absl::string_view token) override;
  absl::StatusOr<Principal> Recall(absl::string_view token) override;

 private:
  using Answer = std::optional<absl::StatusOr<Principal>>;
  struct Kept {
    absl::StatusOr<Principal> principal;
    double until;
  };
  bool MayAsk(double now);
  void Keep(const std::string& hash, const absl::StatusOr<TokenReview>& review);

  const Limits limits_;
  const std::function<absl::StatusOr<TokenReview>(absl::string_view)> ask_;
  const std::function<double()> now_;

  std::mutex mutex_;
  std::condition_variable answered_;
  std::map<std::string, Kept> kept_;  // By SHA-256.
  // Whoever else shows the same token waits for the one answer, whatever it is.
  std::map<std::string, std::shared_ptr<Answer>> being_asked_;
  size_t num_waiting_ = 0;
  double tickets_;  // Reviews that may be begun now.
  double tickets_at_ = 0;
};

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_CACHED_REVIEWER_H_
