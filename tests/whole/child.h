// A client in a process of its own, to be killed: forked from the test, talks to it by a pipe of
// lines. To be made before any thread: what a thread held at the fork stays held in the child.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include "tests/whole/process.h"

namespace whole {

class Child {
 public:
  // `body` says things with say() and returns the exit code. It must use nothing of the parent's
  // clients. Exceptions end it with code 99.
  using Say = std::function<void(const std::string&)>;
  explicit Child(const std::function<int(const Say&)>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    base::UniqueFd ours(ends[0]), theirs(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(98);
      int code = 99;
      try {
        code = body([&](const std::string& line) {
          const auto text = line + "\n";
          (void)!::write(theirs.get(), text.data(), text.size());
        });
      } catch (...) {
      }
      ::_exit(code);
    }
    input_ = std::move(ours);
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;

  // The next line, or nullopt when the child has ended or is silent for too long.
  std::optional<std::string> line() {
    std::string text;
    pollfd waiting{input_.get(), POLLIN, 0};
    for (char c = 0;;) {
      if (::poll(&waiting, 1, 60000) <= 0 || ::read(input_.get(), &c, 1) != 1) return std::nullopt;
      if (c == '\n') return text;
      text += c;
    }
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  base::UniqueFd input_;
};

// One descriptor through a Unix socket.
inline void send_fd(int socket, int fd) {
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
  iovec vector{&byte, 1};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  auto* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  (void)!::sendmsg(socket, &message, 0);
}

inline int receive_fd(int socket) {
  char byte = 0, control[CMSG_SPACE(sizeof(int))] = {};
  iovec vector{&byte, 1};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
  int fd = -1;
  if (auto* header = CMSG_FIRSTHDR(&message)) std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
  return fd;
}

}  // namespace whole
