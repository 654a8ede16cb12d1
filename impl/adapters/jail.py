"""Starts a command in a network namespace with only a loopback interface: `python jail.py FD PORT COMMAND …`.

The command can reach no other host. The only address that responds is 127.0.0.1:PORT: this program creates a listener
inside the namespace and passes it to the parent process through the socket FD, and the parent serves it. If the system
does not allow network namespaces, the command gets dead proxy settings instead, and the reason is sent through FD.

This runs as a separate program that replaces itself with the command (exec), and uses only the standard library.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

NEW_USER, NEW_NET = 0x10000000, 0x40000000  # of unshare(2)
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 0x1  # of netdevice(7)
NOWHERE = "http://127.0.0.1:9"
PROXIES = {name: NOWHERE for proxy in ("http_proxy", "https_proxy", "all_proxy") for name in (proxy, proxy.upper())}
DIRECT = dict.fromkeys(("no_proxy", "NO_PROXY"), "127.0.0.1,localhost")


def leave_network() -> None:
    """Move this process into a new network namespace, and bring up its loopback interface."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NET if user == 0 else NEW_USER | NEW_NET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack("16sh", fcntl.ioctl(control, GET_FLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP))


def main() -> None:
    descriptor, port, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    with socket.socket(fileno=descriptor) as parent:
        try:
            if port < 0:
                raise OSError("the network was asked for")
            leave_network()
            with socket.create_server(("127.0.0.1", port)) as listener:
                socket.send_fds(parent, [b"alone"], [listener.fileno()])
        except (OSError, AttributeError) as error:
            os.environ |= PROXIES | DIRECT
            parent.sendall(f"not alone: {error}".encode())
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
