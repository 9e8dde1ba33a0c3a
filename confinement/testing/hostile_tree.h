// For tests: a folder that is allowed, a secret beside it, and paths that want to get there.
#ifndef TACC_CONFINEMENT_TESTING_HOSTILE_TREE_H_
#define TACC_CONFINEMENT_TESTING_HOSTILE_TREE_H_

#include <fcntl.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "machine/descriptor.h"
#include "machine/testing/test_directory.h"

namespace tacc {

inline constexpr char kSecret[] = "the secret of another user\n";

class HostileTree {
 public:
  HostileTree() : watch_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    for (const char* folder : {"allowed/data/inner", "allowed-not", "outside/folder"})
      std::filesystem::create_directories(directory_.File(folder));
    for (const char* file : {"outside/secret", "outside/folder/config.json", "allowed-not/secret"})
      TestDirectory::Write(directory_.File(file), kSecret);
    TestDirectory::Write(Allowed("data/tokens"), "harmless");
    secret_ = Descriptor(open(Outside("secret").c_str(), O_PATH | O_CLOEXEC));
    outside_fd_ = Descriptor(open(Outside("").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    for (const std::string& folder : {Outside(""), Outside("folder"), directory_.File("allowed-not")}) Watch(folder);
    AddDotDots();
    AddElsewhere();
    AddProc();
    AddLinks();
    AddSpecialFiles();
    AddTexts();
  }

  std::string root() const { return directory_.File("allowed"); }
  std::string Allowed(const std::string& name) const { return absl::StrCat(root(), "/", name); }
  std::string Outside(const std::string& name) const { return absl::StrCat(directory_.File("outside"), "/", name); }

  // None may be used, neither to read nor to write; none has anything to do with another.
  const std::vector<std::string>& paths() const { return paths_; }

  // How often since the last call something outside, or a pipe, was opened, made or changed.
  int TakeTouched() {
    char events[1 << 16];
    int touched = 0;
    for (ssize_t size; (size = read(watch_.get(), events, sizeof(events))) > 0;) {
      for (ssize_t at = 0; at < size; ++touched)
        at += static_cast<ssize_t>(sizeof(inotify_event)) + reinterpret_cast<inotify_event*>(events + at)->len;
    }
    return touched;
  }

 private:
  void Watch(const std::string& path) {
    constexpr uint32_t kTouched = IN_OPEN | IN_ACCESS | IN_MODIFY | IN_ATTRIB | IN_CREATE | IN_DELETE | IN_MOVE;
    if (inotify_add_watch(watch_.get(), path.c_str(), kTouched) < 0) abort();
  }
  void Add(std::string path) { paths_.push_back(std::move(path)); }

  // To what is there and what is not.
  void AddBoth(const std::string& outside) {
    Add(absl::StrCat(outside, "/secret"));
    Add(absl::StrCat(outside, "/folder"));
    Add(absl::StrCat(outside, "/new/run"));
  }

  void AddDotDots() {
    std::string up;
    for (int depth = 1; depth <= 12; ++depth) {
      up += "/..";
      Add(absl::StrCat(root(), up, Outside("secret")));
      Add(absl::StrCat(root(), up, "/outside/secret"));
    }
    for (const char* way : {"/data/../../outside", "/./../outside", "//..//outside", "/data/inner/../../../outside",
                            "/missing/../../outside", "/data/../data/../../outside", "/../allowed/../outside"})
      AddBoth(root() + way);
    for (const char* end : {"/..", "/../", "/../.", "/data/../..", "/missing/..", "/data/tokens/../../../outside"})
      Add(root() + end);
  }

  void AddElsewhere() {
    AddBoth(directory_.File("outside"));
    AddBoth(directory_.File("allowed-not"));  // A name that only begins as the root's.
    for (const char* path : {"/", "/etc", "/etc/passwd", "/etc/shadow", "/root/.ssh/id_rsa", "/home", "/dev/null",
                             "/dev/zero", "/dev/tty", "/dev/shm", "/dev/stdin", "/sys/kernel"})
      Add(path);
    Add(directory_.path());
    Add(root().substr(0, root().size() - 1));
  }

  void AddProc() {
    for (const char* process : {"/proc/self", "/proc/thread-self", "/proc/1"}) {
      Add(absl::StrCat(process, "/environ"));
      Add(absl::StrCat(process, "/root", Outside("secret")));
      Add(absl::StrCat(process, "/cwd"));
    }
    for (const char* descriptors : {"/proc/self/fd/", "/dev/fd/"}) {
      Add(absl::StrCat(descriptors, secret_.get()));
      AddBoth(absl::StrCat(descriptors, outside_fd_.get()));
    }
    Link("proc", "/proc/self/root");
    AddBoth(absl::StrCat(Allowed("proc"), directory_.File("outside")));
    Link("fd", "/proc/self/fd");
    AddBoth(absl::StrCat(Allowed("fd/"), outside_fd_.get()));
    Link("environ", "/proc/self/environ");
    Add(Allowed("environ"));
  }

  void Link(const std::string& name, const std::string& target) {
    if (symlink(target.c_str(), Allowed(name).c_str()) != 0) abort();
  }

  void AddLinks() {
    const std::pair<const char*, std::string> folders[] = {{"absolute", Outside("")},
                                                           {"relative", "../outside"},
                                                           {"winding", "data/../../outside"},
                                                           {"whole", "/"},
                                                           {"up", ".."},
                                                           {"up-up", "../.."}};
    for (const auto& [name, target] : folders) Link(name, target);
    for (const char* way : {"absolute", "relative", "winding", "up/outside", "data/../relative"}) AddBoth(Allowed(way));
    AddBoth(absl::StrCat(Allowed("whole"), directory_.File("outside")));
    Add(Allowed("up-up/etc"));
    Link("file-absolute", Outside("secret"));
    Link("file-relative", "../outside/secret");
    Link("dangling-absolute", Outside("not-there"));
    Link("dangling-relative", "../outside/not-there");
    Link("passwd", "/etc/passwd");
    for (const char* name : {"file-absolute", "file-relative", "dangling-absolute", "dangling-relative", "passwd"})
      Add(Allowed(name));
    Link("chain-0", "../outside");
    for (int i = 1; i <= 10; ++i) {
      Link(absl::StrCat("chain-", i), absl::StrCat("chain-", i - 1));
      AddBoth(Allowed(absl::StrCat("chain-", i)));
    }
    Link("loop", "loop");
    Link("loop-a", "loop-b");
    Link("loop-b", "loop-a");
    for (const char* name : {"loop", "loop-a", "loop/run"}) Add(Allowed(name));
  }

  void AddSpecialFiles() {
    for (const char* name : {"pipe", "data/pipe"}) {
      if (mkfifo(Allowed(name).c_str(), 0666) != 0) abort();
      Watch(Allowed(name));
      Add(Allowed(name));
    }
    Link("to-pipe", "../outside/pipe");
    if (mkfifo(Outside("pipe").c_str(), 0666) != 0) abort();
    Add(Allowed("to-pipe"));
    const Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    Allowed("socket").copy(address.sun_path, sizeof(address.sun_path) - 1);
    if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) abort();
    Add(Allowed("socket"));
    for (const char* device : {"/dev/null", "/dev/zero", "/dev/mem", "/dev/vda"}) {
      const std::string name = absl::StrCat("to", std::string(device + 4));
      std::filesystem::create_directories(Allowed("to"));
      Link(name, device);
      Add(Allowed(name));
    }
    // Only root makes one.
    if (mknod(Allowed("null").c_str(), S_IFCHR | 0666, static_cast<dev_t>(0x103)) == 0) Add(Allowed("null"));
    (void)TakeTouched();
  }

  void AddTexts() {
    for (char c = 1; c < 32; ++c) Add(Allowed(absl::StrCat("data/", std::string(1, c), "x")));
    Add(Allowed("data/\x7fx"));
    Add(Allowed("data\n2026-01-01T00:00:00.000 E a line of somebody's own"));
    Add(absl::StrCat(root(), std::string(1, '\0'), "/tokens"));
    for (const size_t size : {4096, 4097, 5000, 100000}) {
      std::string path = root();
      while (path.size() < size) path += "/name";
      path.resize(size, 'x');
      Add(path);
    }
    for (const size_t size : {256, 300, 4000}) Add(Allowed(std::string(size, 'n')));
    for (const char* path : {"", ".", "..", "data", "~/data", "../outside/secret", "file:///etc/passwd", "C:\\data"})
      Add(path);
  }

  TestDirectory directory_;
  Descriptor watch_, secret_, outside_fd_;
  std::vector<std::string> paths_;
};

// A path beneath the root whose folder a thread makes a link to the outside and back again, all the time.
class SwappedFolder {
 public:
  explicit SwappedFolder(const HostileTree& tree)
      : path_(tree.Allowed("swapped")), link_(tree.Allowed("swapped-link")) {
    std::filesystem::create_directories(path_);
    TestDirectory::Write(absl::StrCat(path_, "/secret"), "harmless");
    if (symlink("../outside", link_.c_str()) != 0) abort();
    thread_ = std::thread([this] {
      while (!is_over_) {
        if (renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, link_.c_str(), RENAME_EXCHANGE) == 0) ++num_swaps_;
      }
    });
  }
  ~SwappedFolder() {
    is_over_ = true;
    thread_.join();
  }
  std::string File() const { return absl::StrCat(path_, "/secret"); }
  int num_swaps() const { return num_swaps_; }

 private:
  const std::string path_, link_;
  std::atomic<bool> is_over_ = false;
  std::atomic<int> num_swaps_ = 0;
  std::thread thread_;
};

}  // namespace tacc

#endif  // TACC_CONFINEMENT_TESTING_HOSTILE_TREE_H_
