#include "identity/folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "identity/openssl_pointer.h"
#include "identity/token.h"

namespace tacc::identity {
namespace {

constexpr char kAuthorityFolder[] = "ca";
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status Failed(const char* what, const std::string& path) {
  return absl::FailedPreconditionError(absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

enum class Readers { kAny, kNotEverybody };

absl::StatusOr<std::string> ReadFile(const std::string& path, Readers readers = Readers::kAny) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failed("read", path);
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat about {};
  if (readers == Readers::kNotEverybody && (fstat(fd, &about) != 0 || (about.st_mode & S_IRWXO) != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": everybody on this machine may read what is secret in it; chmod 600 ", path));
  }
  std::string text(kMaxFileBytes, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("read", path);
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return text;
}

// A file that is not there yet, on disk when this returns.
absl::Status WriteNewFile(const std::string& path, const std::string& text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return Failed("write", path);
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(fd, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    written += static_cast<size_t>(count);
  }
  const bool is_whole = written == text.size() && fsync(fd) == 0;
  const absl::Status status = is_whole ? absl::OkStatus() : Failed("write", path);
  close(fd);
  return status;
}

absl::Status SyncFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("read", folder);
  const absl::Status status = fsync(fd) == 0 ? absl::OkStatus() : Failed("write", folder);
  close(fd);
  return status;
}

std::string ParentOf(const std::string& path) {
  return std::filesystem::absolute(std::filesystem::path(path)).parent_path().string();
}

// Fills a new folder by `fill` and gives it its name when it is whole.
template <typename Fill>
absl::Status MakeWhole(const std::string& folder, const Fill& fill) {
  std::string temporary = absl::StrCat(ParentOf(folder), "/.new-identity-XXXXXX");
  if (mkdtemp(temporary.data()) == nullptr) return Failed("make a folder in", ParentOf(folder));  // 0700
  absl::Cleanup remove = [&temporary] {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
  };
  if (absl::Status status = fill(temporary); !status.ok()) return status;
  if (absl::Status status = SyncFolder(temporary); !status.ok()) return status;
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_NOREPLACE) != 0) {
    return errno == EEXIST ? absl::AlreadyExistsError(absl::StrCat(folder, " is there already; nothing was changed"))
                           : Failed("make", folder);
  }
  std::move(remove).Cancel();
  return SyncFolder(ParentOf(folder));
}

absl::Status WriteIdentity(const Authority& authority, const CertificateRequest& request, const std::string& folder) {
  const absl::StatusOr<std::string> trusted = authority.CertificatePem();
  if (!trusted.ok()) return trusted.status();
  const absl::StatusOr<std::string> pem = authority.Issue(request);
  if (!pem.ok()) return pem.status();
  absl::Status status = WriteNewFile(AuthorityPath(folder), *trusted);
  status.Update(WriteNewFile(IdentityPath(folder), *pem));
  return status;
}

absl::StatusOr<Authority> ReadAuthority(const std::string& out) {
  const std::string folder = absl::StrCat(out, "/", kAuthorityFolder);
  const absl::StatusOr<std::string> certificate = ReadFile(AuthorityPath(folder));
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<std::string> key = ReadFile(absl::StrCat(folder, "/ca.key"));
  if (!key.ok()) return key.status();
  absl::StatusOr<Authority> authority = Authority::Read(*certificate, *key);
  if (!authority.ok()) return absl::InvalidArgumentError(absl::StrCat(folder, ": ", authority.status().message()));
  return authority;
}

// Whether one of the authorities in `trusted` (PEM) has signed it.
bool IsSignedBy(const std::string& trusted, X509* certificate) {
  const BioPointer in(BIO_new_mem_buf(trusted.data(), static_cast<int>(trusted.size())));
  const std::unique_ptr<X509_STORE, OpensslFree<X509_STORE_free>> store(X509_STORE_new());
  while (true) {
    const CertificatePointer authority(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (authority == nullptr) break;
    X509_STORE_add_cert(store.get(), authority.get());
  }
  const std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  const bool is_signed = X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr) == 1 &&
                         X509_verify_cert(context.get()) == 1;
  ERR_clear_error();
  return is_signed;
}

}  // namespace

std::string AuthorityPath(const std::string& folder) { return absl::StrCat(folder, "/ca.crt"); }

std::string IdentityPath(const std::string& folder) { return absl::StrCat(folder, "/tls.pem"); }

absl::StatusOr<Principal> CheckFolder(const std::string& folder, std::time_t now) {
  const std::string path = IdentityPath(folder);
  const auto wrong = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  const absl::StatusOr<std::string> trusted = ReadAuthorities(folder);
  if (!trusted.ok()) return trusted.status();
  const absl::StatusOr<std::string> pem = ReadFile(path, Readers::kNotEverybody);
  if (!pem.ok()) return absl::InvalidArgumentError(pem.status().message());
  const CertificatePointer certificate = ReadCertificate(*pem);
  const KeyPointer key = ReadKey(*pem);
  if (certificate == nullptr) return wrong("has no certificate in PEM");
  if (key == nullptr) return wrong("has no key in PEM, or one with a password");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return wrong("its key is of another certificate");
  }
  const absl::StatusOr<Principal> principal = ReadPrincipal(*pem, now);
  if (!principal.ok()) return wrong(principal.status().message());
  if (!IsSignedBy(*trusted, certificate.get()))
    return wrong(absl::StrCat("none of the authorities in ", AuthorityPath(folder), " has signed its certificate"));
  return principal;
}

absl::StatusOr<std::string> ReadAuthorities(const std::string& folder) {
  absl::StatusOr<std::string> pem = ReadFile(AuthorityPath(folder));
  if (!pem.ok()) return absl::InvalidArgumentError(pem.status().message());
  if (ReadCertificate(*pem) == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(AuthorityPath(folder), ": has no certificate in PEM"));
  return pem;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, Readers::kNotEverybody);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  const std::string token(absl::StripTrailingAsciiWhitespace(*text));
  if (absl::Status status = CheckToken(token); !status.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  return token;
}

std::vector<std::string> HostsOf(const std::string& folder) {
  const absl::StatusOr<std::string> pem = ReadFile(IdentityPath(folder));
  return pem.ok() ? HostsOfPem(*pem) : std::vector<std::string>();
}

std::time_t NotAfterOf(const std::string& folder) {
  const absl::StatusOr<std::string> pem = ReadFile(IdentityPath(folder));
  return pem.ok() ? NotAfterOfPem(*pem) : 0;
}

absl::Status MakeFolders(const std::string& out, const Validity& validity,
                         const std::vector<CertificateRequest>& requests) {
  return MakeWhole(out, [&](const std::string& temporary) -> absl::Status {
    const absl::StatusOr<Authority> authority = Authority::Make(validity);
    if (!authority.ok()) return authority.status();
    const absl::Status made =
        MakeWhole(absl::StrCat(temporary, "/", kAuthorityFolder), [&](const std::string& folder) -> absl::Status {
          const absl::StatusOr<std::string> certificate = authority->CertificatePem();
          if (!certificate.ok()) return certificate.status();
          const absl::StatusOr<std::string> key = authority->KeyPem();
          if (!key.ok()) return key.status();
          absl::Status status = WriteNewFile(AuthorityPath(folder), *certificate);
          status.Update(WriteNewFile(absl::StrCat(folder, "/ca.key"), *key));
          return status;
        });
    if (!made.ok()) return made;
    for (const CertificateRequest& request : requests) {
      if (absl::Status status = AddFolder(temporary, request); !status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

absl::Status AddFolder(const std::string& out, const CertificateRequest& request) {
  if (absl::Status status = CheckName("name", request.principal.name); !status.ok()) return status;
  const absl::StatusOr<Authority> authority = ReadAuthority(out);
  if (!authority.ok()) return authority.status();
  return MakeWhole(absl::StrCat(out, "/", request.principal.name),
                   [&](const std::string& folder) { return WriteIdentity(*authority, request, folder); });
}

absl::StatusOr<Principal> RenewFolder(const std::string& out, const std::string& name, const Validity& validity) {
  if (absl::Status status = CheckName("name", name); !status.ok()) return status;
  const absl::StatusOr<Authority> authority = ReadAuthority(out);
  if (!authority.ok()) return authority.status();
  const std::string path = IdentityPath(absl::StrCat(out, "/", name));
  const absl::StatusOr<std::string> old = ReadFile(path);
  if (!old.ok()) return old.status();
  // Also one that has expired, as of its last second.
  CertificateRequest request;
  absl::StatusOr<Principal> principal = ReadPrincipal(*old, NotAfterOfPem(*old) - 1);
  if (!principal.ok()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", principal.status().message()));
  request.principal = *principal;
  request.hosts = HostsOfPem(*old);
  request.validity = validity;
  const absl::StatusOr<std::string> pem = authority->Issue(request);
  if (!pem.ok()) return pem.status();
  const std::string temporary = absl::StrCat(path, ".new");
  unlink(temporary.c_str());  // Of one that was killed.
  if (absl::Status status = WriteNewFile(temporary, *pem); !status.ok()) return status;
  if (rename(temporary.c_str(), path.c_str()) != 0) return Failed("write", path);
  if (absl::Status status = SyncFolder(ParentOf(path)); !status.ok()) return status;
  return principal;
}

absl::StatusOr<std::string> MakeToken(const std::string& out, const Principal& principal, int hours, std::time_t now) {
  const absl::StatusOr<Authority> authority = ReadAuthority(out);
  if (!authority.ok()) return authority.status();
  return IssueToken(*authority, principal, hours, now);
}

}  // namespace tacc::identity
