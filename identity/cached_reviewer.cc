#include "identity/cached_reviewer.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "identity/token.h"

namespace tacc::identity {
namespace {

std::string Hash(absl::string_view token) {
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned int size = 0;
  EVP_Digest(token.data(), token.size(), reinterpret_cast<unsigned char*>(hash.data()), &size, EVP_sha256(), nullptr);
  hash.resize(size);
  return hash;
}

}  // namespace

CachedReviewer::CachedReviewer(Limits limits, std::function<absl::StatusOr<TokenReview>(absl::string_view)> ask,
                               std::function<double()> now)
    : limits_(limits), ask_(std::move(ask)), now_(std::move(now)), tickets_(limits.reviews_per_second) {}

absl::StatusOr<Principal> CachedReviewer::Review(absl::string_view token) {
  const std::string hash = Hash(token);
  std::unique_lock<std::mutex> lock(mutex_);
  const double now = now_();
  if (const auto found = kept_.find(hash); found != kept_.end() && now < found->second.until)
    return found->second.principal;
  if (num_waiting_ >= limits_.max_waiting)
    return TokenUnchecked("too many calls wait for an answer about theirs; try again in a second");
  std::shared_ptr<Answer> answer;
  if (const auto asked = being_asked_.find(hash); asked != being_asked_.end()) {
    answer = asked->second;
    ++num_waiting_;
    answered_.wait(lock, [&answer] { return answer->has_value(); });
    --num_waiting_;
    return **answer;
  }
  if (!MayAsk(now)) return TokenUnchecked("there are too many new ones at once; try again in a second");
  answer = std::make_shared<Answer>();
  being_asked_.emplace(hash, answer);
  ++num_waiting_;
  lock.unlock();
  const absl::StatusOr<TokenReview> review = ask_(token);
  lock.lock();
  --num_waiting_;
  being_asked_.erase(hash);
  Keep(hash, review);
  *answer = review.ok() ? absl::StatusOr<Principal>(review->principal) : review.status();
  answered_.notify_all();
  return **answer;
}

absl::StatusOr<Principal> CachedReviewer::Recall(absl::string_view token) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = kept_.find(Hash(token));
  if (found == kept_.end()) return absl::UnauthenticatedError("the token is not known any more; try again");
  return found->second.principal;
}

bool CachedReviewer::MayAsk(double now) {
  const double gained = std::max(0.0, now - tickets_at_) * limits_.reviews_per_second;
  tickets_ = std::min(limits_.reviews_per_second, tickets_ + gained);
  tickets_at_ = now;
  if (tickets_ < 1) return false;
  tickets_ -= 1;
  return true;
}

void CachedReviewer::Keep(const std::string& hash, const absl::StatusOr<TokenReview>& review) {
  kept_.erase(hash);
  const double now = now_();
  if (review.ok()) {
    kept_.emplace(hash, Kept{review->principal, std::min(review->expires, now + limits_.good_seconds)});
  } else if (absl::IsUnauthenticated(review.status())) {
    kept_.emplace(hash, Kept{review.status(), now + limits_.bad_seconds});
  }
  while (kept_.size() > limits_.max_kept) {
    kept_.erase(std::min_element(kept_.begin(), kept_.end(),
                                 [](const auto& a, const auto& b) { return a.second.until < b.second.until; }));
  }
}

}  // namespace tacc::identity
