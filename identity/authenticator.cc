#include "identity/authenticator.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "identity/folder.h"
#include "identity/token.h"

namespace tacc::identity {
namespace {

constexpr absl::string_view kScheme = "Bearer ";

absl::StatusOr<absl::string_view> TokenOf(absl::string_view authorization) {
  if (!absl::StartsWithIgnoreCase(authorization, kScheme))
    return absl::UnauthenticatedError("the authorization header is not `Bearer TOKEN`");
  const absl::string_view token = authorization.substr(kScheme.size());
  if (absl::Status status = CheckToken(token); !status.ok()) return absl::UnauthenticatedError(status.message());
  return token;
}

}  // namespace

Authenticator::Authenticator(std::string folder, std::shared_ptr<TokenReviewer> reviewer)
    : folder_(std::move(folder)), reviewer_(std::move(reviewer)) {}

absl::StatusOr<Principal> Authenticator::Authenticate(absl::string_view authorization) {
  const absl::StatusOr<absl::string_view> token = TokenOf(authorization);
  if (!token.ok()) return token.status();
  return IsOurToken(*token) || reviewer_ == nullptr ? ReadOwn(*token) : reviewer_->Review(*token);
}

absl::StatusOr<Principal> Authenticator::Recall(absl::string_view authorization) {
  const absl::StatusOr<absl::string_view> token = TokenOf(authorization);
  if (!token.ok()) return token.status();
  return IsOurToken(*token) || reviewer_ == nullptr ? ReadOwn(*token) : reviewer_->Recall(*token);
}

absl::StatusOr<Principal> Authenticator::ReadOwn(absl::string_view token) {
  const std::time_t now = std::time(nullptr);
  std::shared_ptr<const std::vector<KeyPointer>> keys;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (keys_ == nullptr || keys_read_ != now) {
      const absl::StatusOr<std::string> authorities = ReadAuthorities(folder_);
      if (!authorities.ok()) return TokenUnchecked(authorities.status().message());
      keys_ = std::make_shared<const std::vector<KeyPointer>>(TokenKeys(*authorities, now));
      keys_read_ = now;
    }
    keys = keys_;
  }
  return ReadToken(token, *keys, now);
}

}  // namespace tacc::identity
