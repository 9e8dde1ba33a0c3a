// A client of /metrics, /healthz and /readyz.
#ifndef TACC_COORDINATOR_TESTING_HTTP_GET_H_
#define TACC_COORDINATOR_TESTING_HTTP_GET_H_

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace tacc::coordinator {

// A connection to HOST:PORT; -1: none.
inline int HttpConnect(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) return -1;
  int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  if (connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
    close(fd);
    fd = -1;
  }
  freeaddrinfo(found);
  return fd;
}

// What comes by that connection, which it closes, head included; empty when nothing comes for 10 s, as long as
// Prometheus waits.
inline std::string HttpAsk(int fd, const std::string& path) {
  const timeval patience{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  std::string text;
  if (write(fd, request.data(), request.size()) > 0) {
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

// What HOST:PORT answers.
inline std::string HttpGet(const std::string& address, const std::string& path) {
  return HttpAsk(HttpConnect(address), path);
}

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_TESTING_HTTP_GET_H_
