#include "coordinator/kubernetes/token_review.h"

#include <curl/curl.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "identity/token.h"
#include "json/parse_json.h"
#include "machine/clock.h"

namespace tacc::coordinator {
namespace {

constexpr long kTimeoutSeconds = 5;
constexpr size_t kMaxAnswerBytes = 64 << 10;
constexpr char kPath[] = "/apis/authentication.k8s.io/v1/tokenreviews";

absl::Status Unknown(absl::string_view why) {
  return identity::TokenUnchecked(absl::StrCat("cannot ask the Kubernetes API server: ", why));
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  if (!in || text.str().empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read, or is empty"));
  return text.str();
}

// The coordinator's own, which is read anew for each call: kubelet replaces it.
absl::StatusOr<std::string> ReadOwnToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadText(path);
  if (!text.ok()) return text.status();
  absl::StripTrailingAsciiWhitespace(&*text);
  if (absl::Status status = identity::CheckToken(*text); !status.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return text;
}

// What a token says of itself, of one that the API server has found good.
double ExpiryOf(absl::string_view token) {
  const std::vector<absl::string_view> parts = absl::StrSplit(token, '.');
  std::string payload;
  if (parts.size() != 3 || !absl::WebSafeBase64Unescape(parts[1], &payload))
    return std::numeric_limits<double>::infinity();
  const nlohmann::json claims = ParseJson(payload);
  const bool expires = claims.is_object() && claims.contains("exp") && claims["exp"].is_number();
  return expires ? claims["exp"].get<double>() : std::numeric_limits<double>::infinity();
}

// curl's callback: refuses an answer that is too long.
size_t Append(char* data, size_t, size_t size, void* answer) {
  auto* text = static_cast<std::string*>(answer);
  if (text->size() + size > kMaxAnswerBytes) return 0;
  text->append(data, size);
  return size;
}

struct CurlFree {
  void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct Answer {
  long code = 0;
  std::string text;
};

// Of a POST of JSON.
absl::StatusOr<Answer> Post(const std::string& url, const std::string& ca_file, const std::string& token,
                            const std::string& body) {
  const std::unique_ptr<CURL, CurlFree> curl(curl_easy_init());
  std::unique_ptr<curl_slist, CurlFree> headers;
  for (const std::string& header : {absl::StrCat("Authorization: Bearer ", token),
                                    std::string("Content-Type: application/json"), std::string("Expect:")}) {
    curl_slist* longer = curl_slist_append(headers.get(), header.c_str());
    if (longer == nullptr) return Unknown("no memory");
    headers.release();  // It is the longer list's.
    headers.reset(longer);
  }
  if (curl == nullptr) return Unknown("libcurl does not start");
  Answer answer;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(curl.get(), CURLOPT_CAINFO, ca_file.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_CAPATH, nullptr);  // The system's authorities are not trusted.
  curl_easy_setopt(curl.get(), CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_SSL_VERIFYHOST, 2L);
  curl_easy_setopt(curl.get(), CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kTimeoutSeconds);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(body.size()));
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, Append);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer.text);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK) return Unknown(absl::StrCat(url, ": ", curl_easy_strerror(code)));
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.code);
  return answer;
}

// gRPC checks calls in a pool that begins a thread for each CPU, and more only for calls that come later: a burst of
// calls stands behind those that wait, unless a thread is left that does not.
size_t MaxWaiting() { return std::clamp<size_t>(std::thread::hardware_concurrency(), 2, 33) - 1; }

// NAMESPACE/NAME of system:serviceaccount:NAMESPACE:NAME; empty: it is no service account's.
std::string AccountOf(absl::string_view username) {
  if (!absl::ConsumePrefix(&username, "system:serviceaccount:")) return "";
  const std::vector<std::string> parts = absl::StrSplit(username, ':');
  return parts.size() == 2 ? absl::StrCat(parts[0], "/", parts[1]) : "";
}

}  // namespace

absl::StatusOr<identity::TokenReview> ReadTokenReview(const KubernetesTokens& tokens, const std::string& answer,
                                                      absl::string_view token) {
  struct {
    bool authenticated = false;
    std::vector<std::string> audiences;
    std::string username;
  } status;
  try {
    const nlohmann::json json = ParseJson(answer);
    if (json.at("kind") != "TokenReview") return Unknown("its answer is no TokenReview");
    const nlohmann::json& said = json.at("status");
    status.authenticated = said.value("authenticated", false);
    if (status.authenticated) {
      status.audiences = said.value("audiences", std::vector<std::string>());
      status.username = said.at("user").at("username").get<std::string>();
    }
  } catch (const nlohmann::json::exception&) {
    return Unknown("its answer is no TokenReview");
  }
  if (!status.authenticated)
    return absl::UnauthenticatedError("the token is neither this service's nor good to Kubernetes");
  if (std::find(status.audiences.begin(), status.audiences.end(), tokens.audience) == status.audiences.end())
    return absl::UnauthenticatedError(absl::StrCat("the token is not for the audience ", tokens.audience));
  const auto found = tokens.service_accounts.find(AccountOf(status.username));
  if (found == tokens.service_accounts.end()) {
    return absl::UnauthenticatedError(absl::StrCat("the token is of ", status.username.substr(0, 300),
                                                   ", which is not among the coordinator's service_accounts"));
  }
  return identity::TokenReview{found->second, ExpiryOf(token)};
}

absl::StatusOr<identity::TokenReview> AskTokenReview(const KubernetesTokens& tokens, absl::string_view token) {
  const absl::StatusOr<std::string> own = ReadOwnToken(tokens.token_file);
  if (!own.ok()) return Unknown(own.status().message());
  const nlohmann::json body = {
      {"apiVersion", "authentication.k8s.io/v1"},
      {"kind", "TokenReview"},
      {"spec", {{"token", std::string(token)}, {"audiences", nlohmann::json::array({tokens.audience})}}}};
  const absl::StatusOr<Answer> answer = Post(absl::StrCat(tokens.api_server, kPath), tokens.ca_file, *own, body.dump());
  if (!answer.ok()) return answer.status();
  if (answer->code != 200 && answer->code != 201) {
    return Unknown(absl::StrCat("it answers ", answer->code,
                                answer->code == 403 ? "; let the coordinator's account create tokenreviews" : ""));
  }
  return ReadTokenReview(tokens, answer->text, token);
}

absl::StatusOr<std::shared_ptr<identity::TokenReviewer>> MakeTokenReviewer(const KubernetesTokens& tokens) {
  absl::Status status = ReadOwnToken(tokens.token_file).status();
  status.Update(ReadText(tokens.ca_file).status());
  if (!status.ok()) return status;
  if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return absl::InternalError("libcurl does not start");
  const auto ask = [tokens](absl::string_view token) { return AskTokenReview(tokens, token); };
  return std::make_shared<identity::CachedReviewer>(identity::CachedReviewer::Limits{.max_waiting = MaxWaiting()}, ask,
                                                    WallSeconds);
}

}  // namespace tacc::coordinator
