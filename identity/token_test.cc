// Tokens of ours, and what somebody could make of one.
#include "identity/token.h"

#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "identity/authenticator.h"
#include "identity/folder.h"
#include "json/parse_json.h"

namespace tacc::identity {
namespace {

using testing::HasSubstr;

constexpr std::time_t kHour = 60 * 60;
const Principal kAlice = {Role::kUser, "alice", "vision"};

std::string Part(const nlohmann::json& part) { return absl::WebSafeBase64Escape(part.dump()); }

class TokenTest : public testing::Test {
 protected:
  std::string Issue(const Principal& principal, int hours = 1) const {
    const absl::StatusOr<std::string> token = IssueToken(authority_, principal, hours, now_);
    EXPECT_TRUE(token.ok()) << token.status();
    return token.ok() ? *token : "";
  }
  absl::StatusOr<Principal> Read(absl::string_view token, std::time_t now) const {
    return ReadToken(token, TokenKeys(pem_, now), now);
  }
  // Why the token is refused; whom it is of, where it is not.
  std::string Problem(absl::string_view token) const {
    const absl::StatusOr<Principal> principal = Read(token, now_);
    if (principal.ok()) return absl::StrCat("taken: ", Describe(*principal));
    EXPECT_TRUE(absl::IsUnauthenticated(principal.status())) << principal.status();
    return std::string(principal.status().message());
  }
  // Signed by the authority, whatever it says.
  std::string Sign(const nlohmann::json& header, const nlohmann::json& claims) const {
    const std::string text = absl::StrCat(Part(header), ".", Part(claims));
    return absl::StrCat(text, ".", absl::WebSafeBase64Escape(*authority_.SignEs256(text)));
  }
  std::string With(const char* claim, const nlohmann::json& value) const {
    nlohmann::json claims = claims_;
    if (value.is_null()) {
      claims.erase(claim);
    } else {
      claims[claim] = value;
    }
    return Sign(header_, claims);
  }

  const std::time_t now_ = std::time(nullptr);
  const Authority authority_ = *Authority::Make({now_ - 10 * kHour, now_ + 240 * kHour});
  const std::string pem_ = *authority_.CertificatePem();
  const nlohmann::json header_ = {{"alg", "ES256"}, {"typ", "JWT"}};
  const nlohmann::json claims_ = {{"iss", kTokenIssuer}, {"aud", kTokenAudience}, {"sub", "spiffe://tacc/user/alice"},
                                  {"project", "vision"}, {"iat", now_},           {"nbf", now_},
                                  {"exp", now_ + kHour}};
};

TEST_F(TokenTest, IsOfItsHolder) {
  const Principal holders[] = {kAlice, {Role::kAdmin, "a", ""}, {Role::kViewer, "v", ""}, {Role::kMetrics, "m", ""}};
  for (const Principal& holder : holders) {
    const std::string token = Issue(holder);
    EXPECT_LT(token.size(), 600U);
    EXPECT_EQ(Problem(token), absl::StrCat("taken: ", Describe(holder)));
  }
  EXPECT_NE(Issue(kAlice), Issue(kAlice)) << "each has its jti";
  EXPECT_EQ(Problem(Sign(header_, claims_)), "taken: user alice of project vision") << "what the bad ones alter";
}

TEST_F(TokenTest, IsValidForItsHours) {
  const std::string token = Issue(kAlice, 2);
  EXPECT_TRUE(Read(token, now_ - 4 * 60).ok()) << "a clock that is behind";
  EXPECT_TRUE(Read(token, now_ + 2 * kHour - 1).ok());
  EXPECT_THAT(std::string(Read(token, now_ + 2 * kHour).status().message()), HasSubstr("expired"));
  EXPECT_THAT(std::string(Read(token, now_ - 6 * 60).status().message()), HasSubstr("not valid yet"));
}

TEST_F(TokenTest, IsGivenToPeopleAndProgramsAlone) {
  const std::pair<Principal, const char*> wrong[] = {
      {{Role::kWorker, "w", ""}, "a worker has a certificate"},
      {{Role::kServer, "s", ""}, "a server has a certificate"},
      {{Role::kUser, "alice", ""}, "project"},
      {{Role::kAdmin, "a", "p"}, "has none, a user has"},
      {{Role::kViewer, "../v", ""}, "name = "},
  };
  for (const auto& [principal, message] : wrong) {
    const absl::Status status = IssueToken(authority_, principal, 1, now_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  for (const int hours : {0, -1, kMaxTokenHours + 1})
    EXPECT_TRUE(absl::IsInvalidArgument(IssueToken(authority_, kAlice, hours, now_).status())) << hours;
}

TEST_F(TokenTest, WithAnotherHeaderIsNoneOfOurs) {
  const std::string claims = Part(claims_);
  std::vector<std::string> tokens;
  for (const char* alg : {"none", "None", "HS256", "RS256", "ES384", "es256", ""})
    tokens.push_back(Sign({{"alg", alg}, {"typ", "JWT"}}, claims_));
  tokens.push_back(absl::StrCat(Part({{"alg", "none"}, {"typ", "JWT"}}), ".", claims, "."));
  tokens.push_back(Sign({{"alg", "ES256"}, {"typ", "JWT"}, {"kid", "x"}}, claims_));
  tokens.push_back(Sign({{"alg", "ES256"}, {"typ", "JWT"}, {"jwk", {{"kty", "EC"}}}}, claims_));
  for (const std::string& token : tokens) EXPECT_THAT(Problem(token), HasSubstr("its header is not")) << token;
  // The public key as the secret of an HMAC, under a header of its own and under ours.
  for (const char* alg : {"HS256", "ES256"}) {
    const std::string text = absl::StrCat(Part({{"alg", alg}, {"typ", "JWT"}}), ".", claims);
    unsigned char mac[32];
    HMAC(EVP_sha256(), pem_.data(), static_cast<int>(pem_.size()), reinterpret_cast<const unsigned char*>(text.data()),
         text.size(), mac, nullptr);
    for (const size_t size : {sizeof(mac), 2 * sizeof(mac)}) {
      std::string signature(reinterpret_cast<const char*>(mac), sizeof(mac));
      signature.resize(size, 'x');
      const std::string token = absl::StrCat(text, ".", absl::WebSafeBase64Escape(signature));
      EXPECT_THAT(Problem(token), testing::AnyOf(HasSubstr("its header is not"), HasSubstr("was signed by none")));
    }
  }
}

TEST_F(TokenTest, AlteredIsRefused) {
  const std::string token = Issue(kAlice);
  const std::vector<std::string> parts = absl::StrSplit(token, '.');
  ASSERT_EQ(parts.size(), 3U);
  // Each bit of a signature and of a claim counts, also those that no byte has.
  for (size_t i = token.find('.') + 1; i < token.size(); ++i) {
    if (token[i] == '.') continue;
    std::string altered = token;
    altered[i] = altered[i] == 'A' ? 'B' : 'A';
    EXPECT_THAT(Problem(altered), testing::Not(HasSubstr("taken"))) << i;
  }
  std::string admin;
  ASSERT_TRUE(absl::WebSafeBase64Unescape(parts[1], &admin));
  admin.replace(admin.find("/user/"), 6, "/admin/");
  const std::string zeros(64, '\0'), ones(64, '\xff');
  for (const std::string& wrong :
       {absl::StrCat(parts[0], ".", absl::WebSafeBase64Escape(admin), ".", parts[2]),
        absl::StrCat(parts[0], ".", parts[1], "."), absl::StrCat(parts[0], ".", parts[1]), absl::StrCat(parts[0], "."),
        parts[0], absl::StrCat(parts[0], "..", parts[2]), absl::StrCat(token, "."), absl::StrCat(token, "=="),
        absl::StrCat(token, ".", parts[2]), absl::StrCat(parts[0], ".", parts[1], "==.", parts[2]),
        absl::StrCat(parts[0], ".", parts[1], ".", parts[2].substr(0, 40)), absl::StrCat(token, " "),
        absl::StrCat(parts[0], ".", parts[1], ".", absl::WebSafeBase64Escape(zeros)),
        absl::StrCat(parts[0], ".", parts[1], ".", absl::WebSafeBase64Escape(ones)), std::string()}) {
    EXPECT_THAT(Problem(wrong), testing::Not(HasSubstr("taken"))) << wrong;
  }
}

TEST_F(TokenTest, WithWrongClaimsIsRefused) {
  const std::pair<std::string, const char*> wrong[] = {
      {With("aud", "other-service"), "for another service"},
      {With("aud", {kTokenAudience, "other"}), "for another service"},
      {With("aud", nullptr), "for another service"},
      {With("iss", "https://elsewhere"), "for another service"},
      {With("exp", now_), "has expired"},
      {With("exp", now_ + 25 * kHour), "more than 24 hours"},
      {With("exp", "tomorrow"), "does not say when"},
      {With("exp", nullptr), "does not say when"},
      {With("nbf", now_ + 60), "not valid yet"},
      {With("nbf", nullptr), "does not say when"},
      {With("iat", nullptr), "does not say when"},
      {With("iat", std::numeric_limits<int64_t>::min()), "more than 24 hours"},
      {With("iat", std::numeric_limits<int64_t>::max()), "more than 24 hours"},
      {With("sub", "spiffe://tacc/worker/w"), "needs a certificate"},
      {With("sub", "spiffe://tacc/server/s"), "needs a certificate"},
      {With("sub", "spiffe://tacc/root/r"), "names nobody"},
      {With("sub", "spiffe://other/user/alice"), "names nobody"},
      {With("sub", nullptr), "names nobody"},
      {With("sub", "spiffe://tacc/admin/alice"), "names nobody"},  // Which has no project.
      {With("project", nullptr), "names nobody"},
      {With("project", "*"), "names nobody"},
      {Sign(header_, nlohmann::json::array()), "has no claims"},
      {Sign(header_, nlohmann::json("text")), "has no claims"},
  };
  for (const auto& [token, message] : wrong) EXPECT_THAT(Problem(token), HasSubstr(message));
}

TEST_F(TokenTest, IsOfAnAuthorityThatIsTrustedNow) {
  const std::string token = Issue(kAlice);
  const auto other = Authority::Make(ValidFor(10, now_));
  EXPECT_THAT(Problem(*IssueToken(*other, kAlice, 1, now_)), HasSubstr("was signed by none"));
  const auto taken = [&](const std::string& authorities) {
    return ReadToken(token, TokenKeys(authorities, now_), now_).ok();
  };
  EXPECT_TRUE(taken(*other->CertificatePem() + pem_)) << "two authorities, while one takes the other's place";
  EXPECT_FALSE(taken(*other->CertificatePem()));
  EXPECT_FALSE(taken(""));
  EXPECT_TRUE(TokenKeys(pem_, now_ + 11 * 24 * kHour).empty()) << "expired";
  const auto leaf = authority_.Issue({kAlice, {}, ValidFor(1, now_)});
  EXPECT_TRUE(TokenKeys(*leaf, now_).empty()) << "no authority";
}

class TokenFileTest : public testing::Test {
 protected:
  TokenFileTest() { std::filesystem::create_directories(folder_); }
  ~TokenFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Problem(const std::string& text, mode_t mode = 0600) const {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), mode);
    const absl::StatusOr<std::string> token = ReadTokenFile(path_);
    return token.ok() ? "token " + *token : std::string(token.status().message());
  }
  const std::string folder_ = absl::StrCat(testing::TempDir(), "token-", getpid());
  const std::string path_ = folder_ + "/token";
};

TEST_F(TokenFileTest, HoldsOneTokenForItsHolderAlone) {
  EXPECT_EQ(Problem("a.b-c_d\n"), "token a.b-c_d");
  EXPECT_EQ(Problem("a.b", 0640), "token a.b");
  EXPECT_THAT(Problem("a.b", 0644), HasSubstr("chmod 600"));
  EXPECT_THAT(Problem("\n"), HasSubstr("is empty"));
  EXPECT_THAT(Problem("secret.a\nsecret.b"), HasSubstr("characters that none has"));
  EXPECT_THAT(Problem("secret.a\nsecret.b"), testing::Not(HasSubstr("secret.")));
  EXPECT_THAT(Problem(std::string(kMaxTokenBytes + 1, 'a')), HasSubstr("may have 4096"));
  EXPECT_THAT(std::string(ReadTokenFile(folder_ + "/none").status().message()), HasSubstr("cannot read"));
}

class AuthenticatorTest : public testing::Test {
 protected:
  AuthenticatorTest() {
    std::filesystem::remove_all(base_);
    std::filesystem::create_directories(base_);
    EXPECT_TRUE(
        MakeFolders(base_ + "/pki", ValidFor(10, now_), {{{Role::kServer, "server", ""}, {"h"}, ValidFor(1, now_)}})
            .ok());
  }
  ~AuthenticatorTest() override { std::filesystem::remove_all(base_); }

  const std::time_t now_ = std::time(nullptr);
  const std::string base_ = absl::StrCat(testing::TempDir(), "authenticator-", getpid());
};

TEST_F(AuthenticatorTest, ReadsTheHeader) {
  Authenticator authenticator(base_ + "/pki/server", nullptr);
  const absl::StatusOr<std::string> token = MakeToken(base_ + "/pki", kAlice, 1, now_);
  ASSERT_TRUE(token.ok()) << token.status();
  for (const char* scheme : {"Bearer ", "bearer "})
    EXPECT_TRUE(authenticator.Authenticate(scheme + *token).ok()) << scheme;
  EXPECT_EQ(Describe(*authenticator.Recall("Bearer " + *token)), "user alice of project vision");
  for (const std::string& wrong :
       {*token, "Basic " + *token, "Bearer" + *token, "Bearer  " + *token, "Bearer " + *token + ", Bearer " + *token,
        "Bearer " + *token + "\n", "Bearer " + std::string(kMaxTokenBytes + 1, 'a'), std::string("Bearer "),
        std::string("Bearer a"), std::string()}) {
    const absl::Status status = authenticator.Authenticate(wrong).status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << wrong << status;
    EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr(*token)));
  }
}

TEST_F(AuthenticatorTest, TakesAnotherAuthorityWithoutARestart) {
  Authenticator authenticator(base_ + "/pki/server", nullptr);
  const std::string header = "Bearer " + *MakeToken(base_ + "/pki", kAlice, 1, now_);
  EXPECT_TRUE(authenticator.Authenticate(header).ok());
  std::ofstream(base_ + "/pki/server/ca.crt") << *Authority::Make(ValidFor(10, now_))->CertificatePem();
  sleep(1);  // It looks at the file once a second.
  EXPECT_TRUE(absl::IsUnauthenticated(authenticator.Authenticate(header).status()));
  std::filesystem::remove(base_ + "/pki/server/ca.crt");
  sleep(1);
  EXPECT_TRUE(absl::IsUnavailable(authenticator.Authenticate(header).status()));
}

// Knows one token.
class FakeReviewer : public TokenReviewer {
 public:
  absl::StatusOr<Principal> Review(absl::string_view token) override {
    ++num_reviews;
    return token == "theirs" ? absl::StatusOr<Principal>(kAlice) : absl::UnauthenticatedError("nobody");
  }
  absl::StatusOr<Principal> Recall(absl::string_view token) override { return kAlice; }
  int num_reviews = 0;
};

TEST_F(AuthenticatorTest, AsksOthersOfTheirTokensAlone) {
  const auto reviewer = std::make_shared<FakeReviewer>();
  Authenticator authenticator(base_ + "/pki/server", reviewer);
  EXPECT_TRUE(authenticator.Authenticate("Bearer theirs").ok());
  EXPECT_TRUE(absl::IsUnauthenticated(authenticator.Authenticate("Bearer nobodys").status()));
  EXPECT_EQ(reviewer->num_reviews, 2);
  const std::string ours = *MakeToken(base_ + "/pki", kAlice, 1, now_),
                    expired = *MakeToken(base_ + "/pki", kAlice, 1, 0);
  EXPECT_TRUE(authenticator.Authenticate("Bearer " + ours).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(authenticator.Authenticate("Bearer " + expired).status()));
  EXPECT_EQ(reviewer->num_reviews, 2) << "one of ours, also a bad one, is told to nobody";
}

}  // namespace
}  // namespace tacc::identity
