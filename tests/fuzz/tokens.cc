// What strangers and a cluster's API server say of who someone is. The input's first byte says what the rest is: a
// bearer token, the claims of one that the authority has signed, the file of --kubernetes-tokens, or an API server's
// answer.
#include <ctime>

#include "absl/strings/escaping.h"
#include "coordinator/kubernetes/token_review.h"
#include "coordinator/kubernetes/tokens_file.h"
#include "identity/authority.h"
#include "identity/token.h"
#include "tests/fuzz/input.h"

namespace tacc::coordinator {
namespace {

enum class Kind { kToken, kClaims, kFile, kAnswer };
constexpr int kNumKinds = 4;

class Reader {
 public:
  Reader()
      : now_(std::time(nullptr)),
        authority_(*identity::Authority::Make(identity::ValidFor(1, now_))),
        keys_(identity::TokenKeys(*authority_.CertificatePem(), now_)) {
    const std::string good = *identity::IssueToken(authority_, {identity::Role::kAdmin, "a", ""}, 1, now_);
    header_ = good.substr(0, good.find('.'));
    fuzz::Require(identity::ReadToken(good, keys_, now_).ok(), "a token that was issued is good");
    tokens_.service_accounts["ml/trainer"] = {identity::Role::kUser, "trainer", "vision"};
  }

  void Take(Kind kind, absl::string_view text) const {
    switch (kind) {
      case Kind::kToken:
        return fuzz::Require(!identity::ReadToken(text, keys_, now_).ok(), "nobody else makes a token");
      case Kind::kClaims: {
        const std::string claims = absl::WebSafeBase64Escape(text), head = header_ + "." + claims;
        const auto holder =
            identity::ReadToken(head + "." + absl::WebSafeBase64Escape(*authority_.SignEs256(head)), keys_, now_);
        return RequireHolder(holder);
      }
      case Kind::kFile: {
        const auto read = ReadKubernetesTokens(fuzz::InputFile(text).path());
        if (!read.ok()) return;
        for (const auto& [account, holder] : read->service_accounts) RequireHolder(holder);
        return;
      }
      case Kind::kAnswer: {
        const auto review = ReadTokenReview(tokens_, std::string(text), "token");
        if (review.ok()) RequireHolder(review->principal);
        return;
      }
    }
  }

 private:
  static void RequireHolder(const absl::StatusOr<identity::Principal>& holder) {
    if (!holder.ok()) return;
    fuzz::Require(identity::CheckPrincipal(*holder).ok(), "who holds a token has good names");
    fuzz::Require(identity::MayHaveToken(holder->role), "a worker's and a server's role have no token");
  }

  const std::time_t now_;
  const identity::Authority authority_;
  const std::vector<identity::KeyPointer> keys_;
  std::string header_;
  KubernetesTokens tokens_;
};

}  // namespace
}  // namespace tacc::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tacc::coordinator::Reader reader;
  if (size == 0) return 0;
  const auto kind = static_cast<tacc::coordinator::Kind>(data[0] % tacc::coordinator::kNumKinds);
  reader.Take(kind, tacc::fuzz::TextOf(data + 1, size - 1));
  return 0;
}
