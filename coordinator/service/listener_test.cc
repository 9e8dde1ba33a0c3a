#include "coordinator/service/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "absl/synchronization/notification.h"

namespace tacc::coordinator {
namespace {

// A socket of its own port on 127.0.0.1 or ::1, or -1 where the machine has no such address.
int BindLoopback(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = family == AF_INET6 ? bind(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                                        : bind(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
  if (bound) return fd;
  close(fd);
  return -1;
}

bool Exists(int family) {
  const int fd = BindLoopback(family);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// Whether the loopback address of `family` takes a connection at the port of `address`.
bool Takes(int family, const std::string& address) {
  const int fd = BindLoopback(family);
  if (fd < 0) return false;
  const uint16_t port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  v6.sin6_port = port;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = port;
  const bool connected = family == AF_INET6 ? connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                                            : connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
  close(fd);
  return connected;
}

TEST(ListenerTest, AllAddressesOfIPv4AreNotThoseOfIPv6) {
  const auto listener = Listener::Listen("0.0.0.0:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(Takes(AF_INET, (*listener)->address()));
  EXPECT_FALSE(Takes(AF_INET6, (*listener)->address()));
}

// Whatever net.ipv6.bindv6only says: in a network namespace of its own, `unshare -n`, it can be set to 1.
TEST(ListenerTest, AllAddressesOfIPv6AreThoseOfIPv4AsWell) {
  const auto listener = Listener::Listen("[::]:0");
  if (listener.ok()) {
    EXPECT_TRUE(Takes(AF_INET, (*listener)->address()));
    EXPECT_EQ(Takes(AF_INET6, (*listener)->address()), Exists(AF_INET6));
  } else {
    // Only a machine without IPv6 refuses, and says where.
    EXPECT_FALSE(Exists(AF_INET6));
    EXPECT_NE(listener.status().message().find("cannot listen on [::]:0: "), std::string::npos) << listener.status();
  }
}

class UnixListenerTest : public testing::Test {
 protected:
  UnixListenerTest() : old_mask_(umask(0)) {}
  ~UnixListenerTest() override {
    umask(old_mask_);
    std::filesystem::remove_all(folder_);
  }
  static mode_t Mode(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
    return info.st_mode & 07777;
  }
  // A socket at `path`; when it is closed, what it was bound to stays.
  static int Bind(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // A connection; -1: refused.
  static int Connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(path.begin(), path.end(), address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
    close(fd);
    return -1;
  }
  std::string Why(const std::string& address) { return std::string(Listener::Listen(address).status().message()); }

  const mode_t old_mask_;
  const std::string folder_ = "/tmp/listener-test-" + std::to_string(getpid());
  const std::string path_ = folder_ + "/socket";
  const std::string address_ = "unix:" + path_;
};

TEST_F(UnixListenerTest, IsForItsUserAloneWhateverTheUmaskAndLeavesNoSocket) {
  {
    const auto listener = Listener::Listen(address_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_EQ((*listener)->address(), address_);
    EXPECT_EQ(Mode(folder_), 0700u);
    EXPECT_EQ(Mode(path_), 0600u);
    EXPECT_EQ(Mode(path_ + ".lock"), 0600u);
    absl::Notification came;
    (*listener)->Start(1 << 20, [&came](int, int fd) {
      EXPECT_EQ(write(fd, "x", 1), 1);
      close(fd);
      came.Notify();
    });
    const int fd = Connect(path_);
    ASSERT_GE(fd, 0);
    char byte = 0;
    EXPECT_EQ(read(fd, &byte, 1), 1);
    close(fd);
    came.WaitForNotification();
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(UnixListenerTest, TakesTheSocketOfADeadCoordinatorAndNotThatOfALiveOne) {
  ASSERT_TRUE(std::filesystem::create_directory(folder_));
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  close(Bind(path_));  // As one that was killed leaves it.
  auto first = Listener::Listen(address_);
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string in_use =
      "cannot listen on " + address_ + ": another coordinator listens there; stop it, or choose another with --listen";
  EXPECT_EQ(Why(address_), in_use);
  EXPECT_GE(Connect(path_), 0) << "the first has its socket still";
  first->reset();
  EXPECT_TRUE(Listener::Listen(address_).ok());

  // One that knows nothing of the lock.
  const int other = Bind(path_);
  ASSERT_EQ(listen(other, 1), 0);
  EXPECT_EQ(Why(address_), in_use);
  EXPECT_GE(Connect(path_), 0);
  close(other);
}

TEST_F(UnixListenerTest, RefusesWhatItCannotKeepForItsUser) {
  ASSERT_TRUE(std::filesystem::create_directory(folder_));
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  EXPECT_EQ(Why(address_), "cannot listen on " + address_ + ": folder " + folder_ +
                               " can be entered by other users (mode 0777); `chmod 700` it, or take another");
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  std::ofstream(path_) << "text";
  EXPECT_EQ(Why(address_), "cannot listen on " + address_ +
                               ": what is there is no socket; remove it, or choose another with --listen");
  EXPECT_EQ(Why("unix:here"), "cannot listen on unix:here: \"unix:here\" is not unix:/PATH, with a whole path");
  const std::string too_long = "unix:/" + std::string(107, 'x');
  EXPECT_EQ(Why(too_long), "cannot listen on " + too_long + ": the path of " + too_long +
                               " has 108 bytes; that of a socket may have 107: give a shorter one");
}

// A connection of another user: who has a descriptor of the folder from before can come.
TEST_F(UnixListenerTest, ClosesConnectionsOfOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  constexpr uid_t kOther = 4242;
  ASSERT_TRUE(std::filesystem::create_directory(folder_));
  ASSERT_EQ(chown(folder_.c_str(), kOther, kOther), 0);
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  // The listener is of user kOther; root and kOther are taken, user kOther + 1 is not.
  const auto as_user = [](uid_t user, const std::function<int()>& does) {
    const pid_t child = fork();
    if (child == 0)
      _exit(user != 0 && (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0) ? 99 : does());
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t server = fork();
  if (server == 0) {
    close(end[1]);
    if (setresgid(kOther, kOther, kOther) != 0 || setresuid(kOther, kOther, kOther) != 0) _exit(99);
    const auto listener = Listener::Listen(address_);
    if (!listener.ok()) _exit(98);
    (*listener)->Start(1 << 20, [](int, int fd) { _exit(write(fd, "x", 1) == 1 ? close(fd) : 97); });
    char byte = 'r';
    if (write(ready[1], &byte, 1) != 1) _exit(96);
    while (read(end[0], &byte, 1) > 0) continue;
    _exit(42);
  }
  close(end[0]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  ASSERT_EQ(chmod(folder_.c_str(), 0711), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0666), 0);
  const auto bytes_read = [this] {
    const int fd = Connect(path_);
    char byte = 0;
    return fd < 0 ? 90 : static_cast<int>(read(fd, &byte, 1));
  };
  EXPECT_EQ(as_user(kOther + 1, bytes_read), 0) << "closed without a byte";
  close(end[1]);
  int status = 0;
  ASSERT_EQ(waitpid(server, &status, 0), server);
  EXPECT_EQ(WEXITSTATUS(status), 42) << "the connection was not handed on";
}

TEST(ListenerTest, APortIsTakenOnce) {
  const auto first = Listener::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Listener::Listen((*first)->address());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("in use by another coordinator"), std::string::npos) << second.status();
}

}  // namespace
}  // namespace tacc::coordinator
