#ifndef TACC_WORKER_RANK_SESSION_TESTING_TEST_CLIENT_H_
#define TACC_WORKER_RANK_SESSION_TESTING_TEST_CLIENT_H_

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/rank/session/client_link.h"
#include "worker/rank/session/frame.h"

namespace tacc::worker {

// A client as a test plays it, over the Unix socket or over TCP.
class TestClient {
 public:
  explicit TestClient(const ClientEndpoint& endpoint, bool is_local = true)
      : fd_(socket(is_local ? AF_UNIX : AF_INET, SOCK_STREAM, 0)) {
    if (is_local) {
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      const size_t at = endpoint.local.front() == '/' ? 0 : 1;  // An abstract name comes after a zero.
      std::memcpy(address.sun_path + at, endpoint.local.data(), endpoint.local.size());
      Connect(address, offsetof(sockaddr_un, sun_path) + at + endpoint.local.size());
    } else {
      sockaddr_in address = {};
      address.sin_family = AF_INET;
      address.sin_port = htons(endpoint.port);
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      Connect(address, sizeof(address));
    }
  }
  ~TestClient() { close(fd_); }

  void SendRaw(const std::string& bytes, int memory_fd = -1) const {
    iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (memory_fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &memory_fd, sizeof(int));
    }
    ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL);
    while (sent > 0 && sent < static_cast<ssize_t>(bytes.size())) {
      const ssize_t count = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      sent = count > 0 ? sent + count : count;
    }
    EXPECT_EQ(sent, static_cast<ssize_t>(bytes.size()));
  }
  void Send(const nlohmann::json& header, const std::string& bytes = "", int memory_fd = -1) const {
    SendRaw(FrameHead(header, bytes.size()) + bytes, memory_fd);
  }
  nlohmann::json Hello(const ClientEndpoint& endpoint, const std::string& name, int memory_fd = -1) {
    Send({{"hello", true}, {"protocol", 1}, {"token", endpoint.token}, {"client", name}}, "", memory_fd);
    return Receive();
  }
  // The next frame's header; null when the connection is over.
  nlohmann::json Receive() {
    uint32_t length = 0;
    if (!Read(reinterpret_cast<char*>(&length), sizeof(length))) return nlohmann::json();
    std::string text(length, '\0');
    if (!Read(text.data(), length)) return nlohmann::json();
    nlohmann::json header = nlohmann::json::parse(text);
    bytes.assign(header.value("bytes", size_t{0}), '\0');
    return Read(bytes.data(), bytes.size()) ? header : nlohmann::json();
  }

  std::string bytes;  // Behind the header that was received last.

  int fd() const { return fd_; }

 private:
  template <typename Address>
  void Connect(const Address& address, socklen_t size) const {
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), size), 0);
  }
  bool Read(char* to, size_t size) const {
    for (size_t done = 0; done < size;) {
      const ssize_t count = recv(fd_, to + done, size - done, 0);
      if (count <= 0) return false;
      done += count;
    }
    return true;
  }
  int fd_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_TESTING_TEST_CLIENT_H_
