#include "coordinator/kubernetes/tokens_file.h"

#include <yaml-cpp/yaml.h>

#include <exception>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "identity/token.h"

namespace tacc::coordinator {
namespace {

// Where the file is wrong, for the one place that catches it.
struct Mistake : std::exception {
  Mistake(YAML::Mark mark, std::string what) : mark(mark), text(std::move(what)) {}
  YAML::Mark mark;
  std::string text;
};

std::string TextOf(const YAML::Node& node, const std::string& key) {
  if (!node.IsScalar()) throw Mistake(node.Mark(), absl::StrCat(key, ": give one text"));
  return node.Scalar();
}

// A field's name. The last of two would count, with whatever rights it gives.
std::string NameOf(const YAML::Node& key, const std::string& what, std::set<std::string>* seen) {
  const std::string name = TextOf(key, what);
  if (!seen->insert(name).second) throw Mistake(key.Mark(), absl::StrCat(name, " is there twice"));
  return name;
}

void CheckAccountName(const YAML::Node& at, const std::string& account) {
  const std::vector<std::string> parts = absl::StrSplit(account, '/');
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty() || absl::StrContains(account, ':'))
    throw Mistake(at.Mark(), absl::StrCat("\"", account, "\" is not NAMESPACE/NAME of a service account"));
}

// Of what an account has: role, and for a user project.
identity::Principal PrincipalOf(const std::string& account, const YAML::Node& node) {
  if (!node.IsMap()) throw Mistake(node.Mark(), absl::StrCat(account, ": give it a role, as {role: viewer}"));
  identity::Principal principal;
  // No namespace has an underscore, so that two accounts have two names.
  principal.name = absl::StrReplaceAll(account, {{"/", "_"}});
  std::optional<identity::Role> role;
  std::set<std::string> seen;
  for (const auto& field : node) {
    const std::string key = NameOf(field.first, account, &seen), value = TextOf(field.second, key);
    if (key == "role") {
      role = identity::FindRole(value);
      if (!role.has_value() || !identity::MayHaveToken(*role)) {
        throw Mistake(field.second.Mark(), absl::StrCat("role = ", value, " is not admin, user, viewer or metrics"));
      }
    } else if (key == "project") {
      principal.project = value;
    } else if (key == "name") {
      principal.name = value;
    } else {
      throw Mistake(field.first.Mark(), absl::StrCat(key, ": there is role, project and name"));
    }
  }
  if (!role.has_value()) throw Mistake(node.Mark(), absl::StrCat(account, ": give it a role, as {role: viewer}"));
  principal.role = *role;
  if (const absl::Status status = identity::CheckPrincipal(principal); !status.ok())
    throw Mistake(node.Mark(), absl::StrCat(account, ": ", status.message()));
  return principal;
}

void ReadAccounts(const YAML::Node& node, KubernetesTokens* tokens) {
  if (!node.IsMap()) throw Mistake(node.Mark(), "service_accounts: give NAMESPACE/NAME: {role: ...} for each");
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string account = NameOf(entry.first, "service_accounts", &seen);
    CheckAccountName(entry.first, account);
    tokens->service_accounts.emplace(account, PrincipalOf(account, entry.second));
  }
}

KubernetesTokens Read(const YAML::Node& file) {
  KubernetesTokens tokens;
  if (!file.IsMap()) throw Mistake(file.Mark(), "give service_accounts, and for each its role");
  const std::map<std::string, std::string*> texts = {{"api_server", &tokens.api_server},
                                                     {"audience", &tokens.audience},
                                                     {"token_file", &tokens.token_file},
                                                     {"ca_file", &tokens.ca_file}};
  std::set<std::string> seen;
  for (const auto& field : file) {
    const std::string key = NameOf(field.first, "a field", &seen);
    if (key == "service_accounts") {
      ReadAccounts(field.second, &tokens);
      continue;
    }
    const auto text = texts.find(key);
    if (text == texts.end()) {
      throw Mistake(field.first.Mark(),
                    absl::StrCat(key, ": there is service_accounts, audience, api_server, ", "token_file and ca_file"));
    }
    *text->second = TextOf(field.second, key);
    if (text->second->empty()) throw Mistake(field.second.Mark(), absl::StrCat(key, " is empty"));
    if (key == "api_server" && !absl::StartsWith(tokens.api_server, "https://"))
      throw Mistake(field.second.Mark(), "api_server does not begin with https://, and tokens go over TLS alone");
  }
  if (tokens.service_accounts.empty()) throw Mistake(file.Mark(), "service_accounts: none may call; give some");
  return tokens;
}

}  // namespace

absl::StatusOr<KubernetesTokens> ReadKubernetesTokens(const std::string& path) {
  const auto wrong = [&path](const YAML::Mark& mark, const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ":", mark.column + 1, ": ", what));
  };
  try {
    return Read(YAML::LoadFile(path));
  } catch (const Mistake& mistake) {
    return wrong(mistake.mark, mistake.text);
  } catch (const YAML::BadFile&) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  } catch (const YAML::Exception& error) {
    return wrong(error.mark, error.msg);
  }
}

}  // namespace tacc::coordinator
