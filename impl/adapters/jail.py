"""Starts a command where no network is but a loopback of its own: `python jail.py FD PORT COMMAND …`.

In a network namespace of its own the command can call nobody. One address answers there: a listener on 127.0.0.1:PORT,
which is made inside and handed out through the socket FD, so that whoever started this can serve it. Where the system
does not allow such a namespace, the command gets proxies that lead nowhere instead, and FD is told why.

This runs as a file of its own, before the command and in its place, with the standard library alone.
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
    """This process has a network of its own from now on, in which there is a loopback and nothing else."""
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
